"""Scripted trajectories: set lengths, real log-probabilities, the same in every schedule.

1. The engine takes the scripted tokens and reports the policy's own log-probabilities of them.
2. Number of turns and tokens are a function of the trajectory's key; mean and spread are what was asked for.
3. A replica that follows a script runs its commands and ends by submitting.
"""

import asyncio
import re

import numpy as np
import pytest
from rollout_parts import plain_logprobs, small_chat, small_settings, tiny_model

from thundersync.batch import GroupKey, GroupPlan, LogicalBatch, SourceKey, TrajectoryKey
from thundersync.ports import RewardReady
from thundersync.rollout.engine import GenerationRequest
from thundersync.rollout.fakes import FakeWorkload
from thundersync.rollout.replica import Replica
from thundersync.rollout.script import TurnScript
from thundersync.rollout.transformers_engine import TransformersEngine

chat = small_chat()


def engine(model) -> TransformersEngine:
    return TransformersEngine(model, stop_id=chat.end_id, settings=small_settings())


def test_the_engine_takes_scripted_tokens_at_the_policys_log_probabilities():
    model, prompt = tiny_model(), np.array([7, 8, 9], np.int32)
    scripted = np.array([11, 12, 13, chat.end_id], np.int32)
    expected = plain_logprobs(model, np.concatenate([prompt, scripted]))[2:]
    one = engine(model)
    for name, ids in (("scripted", scripted), ("sampled", None)):  # side by side, in one step
        one.submit(GenerationRequest(request_id=name, token_ids=prompt, max_tokens=8, seed=1, scripted_ids=ids))
    results = {}
    while one.busy:
        results |= {result.request_id: result for result in one.step()}
    assert results["scripted"].action_ids.tolist() == scripted.tolist() and results["scripted"].finish == "stop"
    np.testing.assert_allclose(results["scripted"].logprobs, expected[np.arange(4), scripted], atol=2e-5)
    alone = engine(tiny_model())
    alone.submit(GenerationRequest(request_id="sampled", token_ids=prompt, max_tokens=8, seed=1))
    while alone.busy:
        sampled = alone.step()
    assert results["sampled"].action_ids.tolist() == sampled[0].action_ids.tolist()


def test_turns_have_the_mean_and_spread_that_were_asked_for():
    script = TurnScript(turns=20, spread=0.6, seed=3)
    drawn = np.array([script.turns_of(TrajectoryKey(0, g, i)) for g in range(400) for i in range(5)])
    assert drawn.mean() == pytest.approx(20, rel=0.05) and drawn.std() / drawn.mean() == pytest.approx(0.6, rel=0.08)
    assert {TurnScript(turns=4).turns_of(TrajectoryKey(0, g, 0)) for g in range(9)} == {4}
    assert min(TurnScript(turns=1, spread=2.0).turns_of(TrajectoryKey(0, g, 0)) for g in range(50)) == 1


def test_actions_have_the_length_that_was_asked_for_and_differ():
    script = TurnScript(turns=3, tokens=30, observation=20)
    ids = [script.action_ids(chat, SourceKey(0, 0, i, t)) for i in range(3) for t in range(2)]
    assert {len(one) for one in ids} == {30} and len({one.tobytes() for one in ids}) == 6
    assert ids[0].tolist() == script.action_ids(chat, SourceKey(0, 0, 0, 0)).tolist()
    assert re.fullmatch(r"```\nprintf %020d [1-9]+\n```", chat.text(ids[0]))  # no leading zero: it would be octal
    assert chat.text(script.action_ids(chat, SourceKey(0, 0, 0, 2))) == "```\nsubmit\n```"


@pytest.mark.parametrize(
    "wrong",
    [
        {"turns": 0},
        {"turns": 2, "spread": -1},
        {"turns": 2, "tokens": 3},
        {"turns": 2, "observation": -1},
        {"turns": 2, "observation": 40, "tokens": 33},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=f"script.{[*wrong][-1]} is"):
        TurnScript(**wrong)


def test_a_replica_follows_the_script():
    workload, script = FakeWorkload(), TurnScript(turns=3, tokens=24)
    batch = LogicalBatch(update=0, groups=(GroupPlan(key=GroupKey(0, 0), task=workload.training[0], size=2),))

    async def main():
        parts = dict(engine=engine(tiny_model()), chat=chat, workload=workload, settings=small_settings())
        replica = Replica(**parts, run_seed=0, script=script)
        replica.start(batch)
        finished = []
        while len(finished) < 2:
            event = await replica.next_event()
            finished += [event.trajectory] if isinstance(event, RewardReady) else []
        waiting = asyncio.ensure_future(replica.next_event())
        await asyncio.sleep(0)
        await replica.close()
        with pytest.raises(RuntimeError, match="the replica was closed"):  # or the call would keep the replica alive
            await waiting
        return finished

    trajectories = asyncio.run(main())
    assert [(len(t.turns), t.outcome) for t in trajectories] == [(3, "submitted")] * 2
    assert all(command.startswith("echo ") for episode in workload.episodes for command in episode.commands)
    assert [len(episode.commands) for episode in workload.episodes] == [2, 2]
