"""The agent loop: generate a turn, run its command, append what it printed, until submission or a limit (Appendix D.2).

    prompt -> generate -> parse -> run in the sandbox -> observation -> generate -> ... -> submit or a limit
           -> ContentReady -> verifier -> RewardReady

TurnReady is emitted for every turn, in the order of the turns and before ContentReady: without a teacher at once, with
one when the turn has been scored, which happens while its command runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from thundersync.batch import SourceKey, Task, Trajectory, TrajectoryKey, Turn
from thundersync.ports import ContentReady, Event, RewardReady, TurnReady, TurnTimes
from thundersync.rollout.chat import Chat
from thundersync.rollout.engine import GenerationRequest, GenerationResult
from thundersync.rollout.seeds import sampling_seed
from thundersync.rollout.settings import GenerationSettings
from thundersync.rollout.tools import PARSER_ERROR_OBSERVATION, ParserError, parse_tool_call

if TYPE_CHECKING:
    from thundersync.environments.workload import Episode

Generate = Callable[[GenerationRequest], Awaitable[GenerationResult]]


class Scorer(Protocol):
    """The frozen teacher as the agent loop sees it; `teacher.TeacherScorer` in process, a Ray actor in a cluster."""

    async def score(self, source: SourceKey, history_ids: np.ndarray, action_ids_A: np.ndarray) -> np.ndarray:
        """float32 [A]: log pi_T of each action token given the student's unchanged serialised history."""
        ...

    async def forget(self, trajectory: TrajectoryKey) -> None:
        """No further turn of this trajectory will be scored."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one trajectory is run with."""

    key: TrajectoryKey
    task: Task
    run_seed: int
    chat: Chat
    settings: GenerationSettings
    generate: Generate
    now: Callable[[], float]
    emit: Callable[[Event], None]
    scorer: Scorer | None = None


async def run_trajectory(attempt: Attempt, episode: Episode) -> Trajectory:
    """Runs one attempt in its fresh episode and returns it with its reward. The caller closes the episode.

    Raises ValueError for a prompt over `max_prompt_tokens`: such tasks are excluded before training.
    """
    prompt_P = attempt.chat.prompt(attempt.task.instruction)
    if len(prompt_P) > attempt.settings.max_prompt_tokens:
        raise ValueError(
            f"task {attempt.task.task_id}: its prompt has {len(prompt_P)} tokens, more than "
            f"generation.max_prompt_tokens, {attempt.settings.max_prompt_tokens}; exclude it before training"
        )
    started, times = attempt.now(), []
    turns, outcome = await _run_turns(attempt, episode, prompt_P, times)
    trajectory = Trajectory(
        key=attempt.key,
        task_id=attempt.task.task_id,
        prompt_ids_P=prompt_P,
        turns=tuple(turns),
        reward=None,
        success=None,
        outcome=outcome,
    )
    attempt.emit(ContentReady(trajectory=trajectory, at=attempt.now()))
    verdict = await episode.verify()
    trajectory = replace(trajectory, reward=verdict.reward, success=verdict.success)
    attempt.emit(RewardReady(trajectory=trajectory, at=attempt.now(), started_at=started, turn_times=tuple(times)))
    return trajectory


async def _run_turns(
    attempt: Attempt, episode: Episode, prompt_P: np.ndarray, times: list[TurnTimes]
) -> tuple[list[Turn], str]:
    """The turns and why they ended; `times` is filled with when each of them did what."""
    settings = attempt.settings
    turns: list[Turn] = []
    history, context_C = prompt_P, np.zeros(0, np.int32)
    generated = 0
    try:
        while True:
            # Independent ceilings; the one that leaves least is what ends the attempt.
            left = {
                "generation_limit": settings.max_generated_tokens - generated,
                "context_limit": settings.max_context_tokens - len(history),
            }
            began = attempt.now()
            result = await attempt.generate(_request(attempt, len(turns), history, min(left.values())))
            turn = Turn(
                context_ids_C=context_C,
                action_ids_A=result.action_ids,
                logprobs_A=result.logprobs,
                versions_A=result.versions,
            )
            generated_at = attempt.now()
            observation, ended, acted, scored = await _act_and_score(
                attempt, episode, len(turns), prompt_P, history, turn
            )
            times.append(
                TurnTimes(generation_started_at=began, generated_at=generated_at, scored_at=scored, acted_at=acted)
            )
            turns.append(turn)
            generated += len(result.action_ids)
            exhausted = next((name for name, tokens in left.items() if tokens == len(result.action_ids)), None)
            if len(turns) == settings.max_turns:
                exhausted = exhausted or "turn_limit"
            if ended or exhausted:
                return turns, ended or exhausted
            context_C = attempt.chat.context(
                observation,
                cut=result.finish == "length",
                head=settings.observation_head,
                tail=settings.observation_tail,
            )
            history = np.concatenate([history, result.action_ids, context_C])
            if len(history) >= settings.max_context_tokens:
                return turns, "context_limit"
    finally:
        if attempt.scorer is not None:
            await attempt.scorer.forget(attempt.key)


def _request(attempt: Attempt, turn: int, history: np.ndarray, tokens_left: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=str(attempt.key.turn(turn)),
        token_ids=history,
        max_tokens=min(attempt.settings.max_tokens_per_turn, tokens_left),
        seed=sampling_seed(
            run_seed=attempt.run_seed,
            update=attempt.key.update,
            task_id=attempt.task.task_id,
            trajectory=attempt.key.trajectory,
            turn=turn,
        ),
    )


async def _act_and_score(
    attempt: Attempt, episode: Episode, turn_index: int, prompt_P: np.ndarray, history: np.ndarray, turn: Turn
) -> tuple[str, str | None, float, float | None]:
    """Acts while the teacher scores; emits TurnReady when the scores are there.

    Returns as `_act`, and when the scores were there (None without a teacher).
    """
    if attempt.scorer is None:
        key = attempt.key.turn(turn_index)
        attempt.emit(TurnReady(key=key, prompt_ids_P=prompt_P, turn=turn, teacher_logprobs_A=None, at=attempt.now()))
        return *await _act(attempt, episode, turn), None
    scoring = asyncio.ensure_future(_score(attempt, attempt.key.turn(turn_index), prompt_P, history, turn))
    acting = asyncio.ensure_future(_act(attempt, episode, turn))
    scoring.add_done_callback(
        lambda done: None if done.cancelled() or done.exception() else attempt.emit(done.result())
    )
    try:
        await asyncio.gather(scoring, acting)
    finally:
        # Neither may outlive its trajectory when the other one failed.
        scoring.cancel()
        acting.cancel()
    return *acting.result(), scoring.result().at


async def _act(attempt: Attempt, episode: Episode, turn: Turn) -> tuple[str, str | None, float]:
    """Runs the action's command: what it printed, the outcome if it ends the attempt, and when that was.

    Nothing runs for an unparsable action. A command that meets `tool_timeout_s` loses its
    sandbox, and with it the attempt.
    """
    try:
        call = parse_tool_call(attempt.chat.text(turn.action_ids_A))
    except ParserError:
        return PARSER_ERROR_OBSERVATION, None, attempt.now()
    if call.submits:
        return "", "submitted", attempt.now()
    try:
        async with asyncio.timeout(attempt.settings.tool_timeout_s):
            observation = await episode.run(call.command)
    except TimeoutError:
        await episode.close()
        return "", "tool_timeout", attempt.now()
    return observation.text, None, attempt.now()


async def _score(
    attempt: Attempt, source: SourceKey, prompt_P: np.ndarray, history: np.ndarray, turn: Turn
) -> TurnReady:
    scores_A = await attempt.scorer.score(source, history, turn.action_ids_A)
    if len(scores_A) != len(turn.action_ids_A):
        raise ValueError(
            f"{source}: the teacher scored {len(scores_A)} tokens of an action of {len(turn.action_ids_A)}"
        )
    return TurnReady(key=source, prompt_ids_P=prompt_P, turn=turn, teacher_logprobs_A=scores_A, at=attempt.now())
