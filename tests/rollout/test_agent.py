"""The agent loop with a scripted engine and a fake episode: contract of Appendix D.2, cases D4, D7 and D12.

1. Tokens in, tokens out: the next history is history + sampled ids + context, bit for bit.
2. A parser error consumes its turn, runs nothing, and the other trajectories go on.
3. Every limit ends the attempt with its own outcome, and the attempt is still verified.
4. TurnReady in the order of turns, before ContentReady; with a teacher, scoring overlaps the tool call.
"""

import asyncio
from collections import defaultdict

import numpy as np
import pytest
from rollout_parts import small_chat, small_settings

from thundersync.batch import GroupKey, GroupPlan, LogicalBatch, TrajectoryKey
from thundersync.ports import ContentReady, RewardReady, TurnReady
from thundersync.rollout.fakes import FakeWorkload, ScriptedEngine
from thundersync.rollout.replica import Replica
from thundersync.rollout.seeds import sampling_seed
from thundersync.rollout.tools import PARSER_ERROR_OBSERVATION, fenced

chat = small_chat()
SOLUTION = ("cat hint", "write answer red", "submit")


def turn_of(request) -> int:
    return int(request.request_id.rpartition("turn=")[2])


def trajectory_of(request) -> int:
    return int(request.request_id.split("trajectory=")[1].split("/")[0])


def commands(*texts):
    """A script that answers turn t with the t-th text in a fence."""
    return lambda request, version: chat.action(fenced(texts[turn_of(request)]))


def batch_of(workload, size, update=0) -> LogicalBatch:
    plan = GroupPlan(key=GroupKey(update, 0), task=workload.training[0], size=size)
    return LogicalBatch(update=update, groups=(plan,))


def roll_out(script, *, size=1, scorer=None, workload=None, run_seed=0, **changes):
    """(events in order, engine, workload) of one batch."""
    workload = workload or FakeWorkload()
    engine = ScriptedEngine(script, stop_id=chat.end_id)
    ticks = iter(range(10**6))

    async def main():
        replica = Replica(
            engine=engine,
            chat=chat,
            workload=workload,
            settings=small_settings(**changes),
            run_seed=run_seed,
            scorer=scorer,
            now=lambda: float(next(ticks)),
        )
        replica.start(batch_of(workload, size))
        events = []
        while sum(isinstance(event, RewardReady) for event in events) < size:
            events.append(await asyncio.wait_for(replica.next_event(), 20))
        await replica.close()
        return events

    events = asyncio.run(main())
    assert all(episode.closed for episode in workload.episodes)
    return events, engine, workload


def trajectory_in(events):
    return next(event.trajectory for event in events if isinstance(event, RewardReady))


def test_a_solving_policy_gets_its_reward_and_events_come_in_order():
    events, engine, workload = roll_out(commands(*SOLUTION))
    assert [type(event) for event in events] == [*[TurnReady] * 3, ContentReady, RewardReady]
    trajectory = trajectory_in(events)
    assert (trajectory.reward, trajectory.success, trajectory.outcome) == (1.0, True, "submitted")
    assert workload.episodes[0].commands == ["cat hint", "write answer red"]
    assert events[0].at < events[1].at
    assert [request.seed for request in engine.requests] == [
        sampling_seed(run_seed=0, update=0, task_id="fake-0", trajectory=0, turn=turn) for turn in range(3)
    ]


def test_sampled_ids_are_never_retokenised():
    """D4: an action sampled in single characters stays so, though the tokenizer would merge them."""
    spelled = np.concatenate([chat.encode(c) for c in "```\ncat hint\n```"] + [[chat.end_id]]).astype(np.int32)
    merged = chat.action(fenced("cat hint"))
    assert len(spelled) > len(merged) and chat.text(spelled) == chat.text(merged)
    script = lambda request, version: spelled if turn_of(request) == 0 else chat.action(fenced("submit"))  # noqa: E731
    events, engine, workload = roll_out(script)
    trajectory = trajectory_in(events)
    prompt = chat.prompt(workload.training[0].instruction)
    context = chat.context("red\n", cut=False, head=20, tail=20)
    np.testing.assert_array_equal(engine.requests[0].token_ids, prompt)
    np.testing.assert_array_equal(engine.requests[1].token_ids, np.concatenate([prompt, spelled, context]))
    first, second = trajectory.turns
    np.testing.assert_array_equal(first.action_ids_A, spelled)
    np.testing.assert_array_equal(second.context_ids_C, context)
    np.testing.assert_allclose(first.logprobs_A, -np.arange(1, len(spelled) + 1) / 10, rtol=1e-6)
    assert len(first.ids) == len(first.scored) == len(spelled) and first.scored.all()
    assert second.scored.tolist() == [False] * len(context) + [True] * len(second.action_ids_A)


MALFORMED = ("```\nls", '<tool_call>{"name": "shell"</tool_call>', "<tool_call>[1, 2]</tool_call>", "")


def test_malformed_actions_consume_their_turn_and_nothing_is_run():
    """D12: 16 episodes, 4 of them with a malformed first action."""

    def script(request, version):
        index, turn = trajectory_of(request), turn_of(request)
        if index < 4:
            if turn == 0:
                return chat.action(MALFORMED[index])
            turn -= 1
        return chat.action(fenced(SOLUTION[turn]))

    events, _, workload = roll_out(script, size=16, max_tokens_per_turn=60, max_generated_tokens=300)
    finished = {event.trajectory.key.trajectory: event.trajectory for event in events if isinstance(event, RewardReady)}
    assert sorted(finished) == list(range(16))
    observation = chat.context(PARSER_ERROR_OBSERVATION, cut=False, head=20, tail=20)
    for index, trajectory in finished.items():
        assert trajectory.reward == 1.0
        assert len(trajectory.turns) == (4 if index < 4 else 3)
        if index < 4:
            np.testing.assert_array_equal(trajectory.turns[0].action_ids_A, chat.action(MALFORMED[index]))
            assert trajectory.turns[0].scored.all()
            np.testing.assert_array_equal(trajectory.turns[1].context_ids_C, observation)
    assert all(episode.commands == list(SOLUTION[:2]) for episode in workload.episodes)


def test_turn_limit_ends_the_attempt_and_it_is_verified():
    events, _, _ = roll_out(commands(*["write answer red"] * 9), max_turns=3)
    trajectory = trajectory_in(events)
    assert (len(trajectory.turns), trajectory.outcome, trajectory.reward) == (3, "turn_limit", 1.0)


def test_generation_limit_is_over_the_whole_trajectory():
    action = chat.action(fenced("cat hint"))
    limit = 2 * len(action) + 3
    events, engine, workload = roll_out(commands(*["cat hint"] * 9), max_turns=9, max_generated_tokens=limit)
    trajectory = trajectory_in(events)
    assert [len(turn.action_ids_A) for turn in trajectory.turns] == [len(action), len(action), 3]
    assert [request.max_tokens for request in engine.requests] == [limit, limit - len(action), 3]
    assert trajectory.outcome == "generation_limit"
    assert workload.episodes[0].commands == ["cat hint"] * 2


def test_context_limit_counts_everything_and_drops_nothing():
    workload = FakeWorkload()
    prompt = len(chat.prompt(workload.training[0].instruction))
    action = len(chat.action(fenced("cat hint")))
    context = len(chat.context("red\n", cut=False, head=20, tail=20))
    # Room for one turn and its observation, and two more tokens.
    limit = prompt + action + context + 2
    sizes = dict(max_context_tokens=limit, max_prompt_tokens=prompt)
    events, engine, _ = roll_out(commands(*["cat hint"] * 9), workload=workload, **sizes)
    trajectory = trajectory_in(events)
    assert [len(turn.action_ids_A) for turn in trajectory.turns] == [action, 2]
    assert trajectory.outcome == "context_limit"
    assert trajectory.turns[1].context_ids_C.size == context
    # An observation that fills the context leaves no room for an action.
    sizes = dict(max_context_tokens=limit - 2, max_prompt_tokens=prompt)
    events, _, _ = roll_out(commands(*["cat hint"] * 9), **sizes)
    assert (len(trajectory_in(events).turns), trajectory_in(events).outcome) == (1, "context_limit")


def test_an_action_cut_by_its_turn_limit_is_closed_in_the_context():
    events, _, _ = roll_out(commands("cat hint", *["submit"] * 3), max_tokens_per_turn=3, max_turns=2)
    trajectory = trajectory_in(events)
    assert len(trajectory.turns[0].action_ids_A) == 3
    expected = chat.context(PARSER_ERROR_OBSERVATION, cut=True, head=20, tail=20)
    np.testing.assert_array_equal(trajectory.turns[1].context_ids_C, expected)
    assert expected[0] == chat.end_id


def test_a_command_over_its_time_limit_ends_the_attempt():
    class Slow(FakeWorkload):
        async def open(self, task_id):
            episode = await super().open(task_id)
            run = episode.run

            async def slow(command):
                if command == "cat hint":
                    await asyncio.Event().wait()
                return await run(command)

            episode.run = slow
            return episode

    script = commands("write answer red", "cat hint", "submit")
    events, _, workload = roll_out(script, workload=Slow(), tool_timeout_s=0.05)
    trajectory = trajectory_in(events)
    assert (trajectory.outcome, len(trajectory.turns)) == ("tool_timeout", 2)


def test_a_prompt_over_its_limit_is_refused_by_task():
    with pytest.raises(ValueError, match="task fake-0.*max_prompt_tokens"):
        roll_out(commands("submit"), max_prompt_tokens=3)


class GatedScorer:
    """Scores with the token index; records the order of events, and can hold a score back until the tool has run."""

    def __init__(self, *, short=False):
        self.short = short
        self.log = []
        self.histories = {}

    async def score(self, source, history_ids, action_ids_A):
        self.log.append(("score", source.turn))
        self.histories[source] = history_ids
        for _ in range(20):
            await asyncio.sleep(0)
        self.log.append(("scored", source.turn))
        return np.arange(len(action_ids_A) - self.short, dtype=np.float32)

    async def forget(self, trajectory):
        self.log.append(("forget", trajectory.trajectory))


def test_turns_are_scored_in_order_while_their_command_runs_and_before_content_is_ready():
    scorer = GatedScorer()

    class Logging(FakeWorkload):
        async def open(self, task_id):
            episode = await super().open(task_id)
            run = episode.run

            async def logged(command):
                scorer.log.append(("run", command))
                return await run(command)

            episode.run = logged
            return episode

    events, engine, workload = roll_out(commands(*SOLUTION), scorer=scorer, workload=Logging())
    assert [type(event) for event in events] == [TurnReady] * 3 + [ContentReady, RewardReady]
    assert [event.key.turn for event in events[:3]] == [0, 1, 2]
    assert scorer.log == [
        *[("score", 0), ("run", "cat hint"), ("scored", 0)],
        *[("score", 1), ("run", "write answer red"), ("scored", 1)],
        *[("score", 2), ("scored", 2), ("forget", 0)],
    ]
    trajectory = trajectory_in(events)
    for event, request, turn in zip(events[:3], engine.requests, trajectory.turns, strict=True):
        np.testing.assert_array_equal(scorer.histories[event.key], request.token_ids)
        np.testing.assert_array_equal(event.turn.action_ids_A, turn.action_ids_A)
        np.testing.assert_array_equal(event.teacher_logprobs_A, np.arange(len(turn.action_ids_A)))
        np.testing.assert_array_equal(event.prompt_ids_P, trajectory.prompt_ids_P)


@pytest.mark.parametrize("taught", [False, True])
def test_a_reward_tells_when_its_turns_were_generated_scored_and_acted_on(taught):
    """The clock ticks at each reading, so that every time is its own place in the order of events."""
    events, _, _ = roll_out(commands(*SOLUTION), scorer=GatedScorer() if taught else None)
    *ready, content, reward = events
    assert len(reward.turn_times) == 3 and reward.started_at == 0
    at = reward.started_at
    for event, turn in zip(ready, reward.turn_times, strict=True):
        assert at < turn.generation_started_at < turn.generated_at < turn.acted_at < reward.at
        assert turn.generated_at < event.at and turn.scored_at == (event.at if taught else None)
        at = max(turn.acted_at, turn.scored_at or 0)
    assert at < content.at < reward.at


def test_a_teacher_that_scores_another_number_of_tokens_is_an_error():
    """D9: a length mismatch must raise."""
    with pytest.raises(ValueError, match="trajectory=0/turn=0.*scored"):
        roll_out(commands(*SOLUTION), scorer=GatedScorer(short=True))


def test_a_group_is_admitted_in_order_and_sandboxes_are_bounded():
    open_now, most = 0, 0

    class Counting(FakeWorkload):
        async def open(self, task_id):
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            episode = await super().open(task_id)
            close = episode.close

            async def closing():
                nonlocal open_now
                open_now -= 1
                await close()

            episode.close = closing
            return episode

    _, engine, _ = roll_out(commands(*SOLUTION), size=9, workload=Counting(), concurrent_episodes_per_replica=3)
    assert most == 3
    firsts = [trajectory_of(request) for request in engine.requests if turn_of(request) == 0]
    assert firsts == list(range(9))


def test_evaluation_attempts_use_the_same_loop_with_seeds_of_their_own():
    workload = FakeWorkload()
    engine = ScriptedEngine(commands(*SOLUTION), stop_id=chat.end_id)

    async def main():
        replica = Replica(engine=engine, chat=chat, workload=workload, settings=small_settings(), run_seed=1)
        trajectory = await replica.attempt(workload.training[0], TrajectoryKey(7, 0, 2), run_seed=99)
        assert replica.ready_events() == []
        await replica.close()
        return trajectory

    trajectory = asyncio.run(main())
    assert trajectory.success
    assert engine.requests[0].seed == sampling_seed(run_seed=99, update=7, task_id="fake-0", trajectory=2, turn=0)


def test_publication_clears_what_the_old_policy_computed():
    """D7: request at version 0, publish 1, request again: no cached tokens, version 1."""
    calls = defaultdict(int)

    def script(request, version):
        calls[version] += 1
        return chat.action(fenced("submit"))

    workload = FakeWorkload()
    engine = ScriptedEngine(script, stop_id=chat.end_id)

    async def main():
        replica = Replica(engine=engine, chat=chat, workload=workload, settings=small_settings(), run_seed=1)
        key = TrajectoryKey(0, 0, 0)
        first = await replica.attempt(workload.training[0], key)
        replica.load_weights({}, 1)
        assert not replica.served().cleared  # the publication is not complete yet, and says so
        replica.clear()
        served = replica.served()
        assert (served.version, served.cached_tokens, served.cleared) == (1, 0, True)
        hits = replica.counters.prefix_hit_tokens
        second = await replica.attempt(workload.training[0], key)
        assert replica.counters.prefix_hit_tokens == hits
        return first, second

    first, second = asyncio.run(main())
    assert (first.newest_version, second.oldest_version) == (0, 1)
    assert calls == {0: 1, 1: 1}


@pytest.mark.parametrize("broken", ["engine", "episode", "verifier"])
def test_what_breaks_is_reported_with_the_trajectory_it_broke(broken):
    class Broken(FakeWorkload):
        async def open(self, task_id):
            episode = await super().open(task_id)

            async def fail(*_):
                raise OSError("no space left")

            if broken != "engine":
                setattr(episode, {"episode": "run", "verifier": "verify"}[broken], fail)
            return episode

    def script(request, version):
        if broken == "engine":
            raise OSError("no space left")
        return chat.action(fenced(SOLUTION[turn_of(request)]))

    with pytest.raises((OSError, RuntimeError), match="no space left") as caught:
        roll_out(script, workload=Broken())
    assert "update=0/group=0/trajectory=0" in caught.value.__notes__[0]
