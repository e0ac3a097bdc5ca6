"""Evaluation runs and their ledger: case D11, resuming, seeds, and faults of the program."""

import asyncio
from dataclasses import asdict

import numpy as np
import pytest

from eval.checkpoints import offline_settings
from eval.ledger import AttemptLedger, Incomplete, InfrastructureError, attempt_seed
from eval.offline import evaluate
from thundersync.batch import Task, Trajectory, TrajectoryKey
from thundersync.records import AttemptRecord, RunDirectory
from thundersync.rollout.settings import GenerationSettings

TASKS = [Task(task_id=f"t{i:02d}", split_group="r", instruction="") for i in range(50)]


def finished(task: Task, success: bool | None) -> Trajectory:
    return Trajectory(
        key=TrajectoryKey(0, 0, 0),
        task_id=task.task_id,
        prompt_ids_P=np.zeros(1, np.int32),
        turns=(),
        reward=None,
        success=success,
        outcome="submitted",
    )


class Agent:
    """Solves every fourth task; the infrastructure fails `failures` times on each task of `broken`."""

    def __init__(self, broken=(), failures=10**9):
        self.calls, self.left = [], dict.fromkeys(broken, failures)
        self.running = self.most = 0

    async def __call__(self, task, attempt, seed):
        self.calls.append((task.task_id, attempt, seed))
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if self.left.get(task.task_id, 0) > 0:
            self.left[task.task_id] -= 1
            raise InfrastructureError("sandbox lost")
        return finished(task, int(task.task_id[1:]) % 4 == 0)


def run(agent, ledger, *, tasks=TASKS, attempts=1, **options):
    options = {"seed": 9, "concurrency": 4} | options
    return asyncio.run(evaluate("policy", tasks, attempts, agent, ledger, **options))


BROKEN = [task.task_id for task in TASKS[16:]]


def test_d11_lost_attempts_make_the_evaluation_incomplete_and_never_count_as_zero(tmp_path):
    ledger, agent = AttemptLedger(RunDirectory(tmp_path)), Agent(BROKEN)
    with pytest.raises(Incomplete, match="coverage 16/50"):
        run(agent, ledger, max_retries=2)
    by_task = {task_id: {seed for t, _, seed in agent.calls if t == task_id} for task_id in BROKEN}
    assert all(len(seeds) == 1 for seeds in by_task.values())  # the same seed in every retry
    assert len(agent.calls) == 16 + 3 * 34
    lost = [r for r in ledger.records if r.task_id == BROKEN[0]]
    assert [(r.outcome, r.success, r.retries) for r in lost] == [("infrastructure", None, i) for i in range(3)]
    assert sum(bool(r.success) for r in ledger.records) == 4


def test_d11_a_later_run_repeats_only_what_is_missing(tmp_path):
    with pytest.raises(Incomplete):
        run(Agent(BROKEN), AttemptLedger(RunDirectory(tmp_path)), max_retries=0)
    agent = Agent(BROKEN, failures=1)
    outcomes = run(agent, AttemptLedger(RunDirectory(tmp_path)))
    assert {task_id for task_id, _, _ in agent.calls} == set(BROKEN)
    assert outcomes.shape == (50, 1) and outcomes.dtype == bool
    np.testing.assert_array_equal(outcomes[:, 0], [i % 4 == 0 for i in range(50)])
    again = Agent()
    run(again, AttemptLedger(RunDirectory(tmp_path)))
    assert again.calls == []


def test_attempts_run_concurrently_but_never_more_than_allowed(tmp_path):
    agent = Agent()
    run(agent, AttemptLedger(RunDirectory(tmp_path)), attempts=3, concurrency=5)
    assert agent.most == 5 and len(agent.calls) == len(set(agent.calls)) == 150


def test_the_assigned_seed_depends_on_run_seed_task_and_attempt_only(tmp_path):
    agent = Agent()
    run(agent, AttemptLedger(RunDirectory(tmp_path)), attempts=3, concurrency=7)
    assert len({seed for _, _, seed in agent.calls}) == 150
    assert all(seed == attempt_seed(9, task, attempt) and 0 <= seed < 2**63 for task, attempt, seed in agent.calls)
    assert attempt_seed(9, "t00", 0) != attempt_seed(10, "t00", 0)


def test_a_fault_of_the_program_ends_the_evaluation_as_itself(tmp_path):
    async def broken(task, attempt, seed):
        raise ZeroDivisionError("a bug")

    ledger = AttemptLedger(RunDirectory(tmp_path))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run(broken, ledger)
    assert ledger.records == []

    async def undecided(task, attempt, seed):
        return finished(task, None)

    with pytest.raises(ValueError, match="t00 attempt 0 came back without a verdict"):
        run(undecided, ledger, concurrency=1)


def record(**changes) -> AttemptRecord:
    fields = {
        "policy_hash": "policy",
        "task_id": "t00",
        "attempt": 0,
        "seed": 1,
        "outcome": "graded",
        "success": True,
        "reward": None,
        "seconds": 0.0,
        "tokens": 0,
        "turns": 0,
        "ended": "submitted",
        "retries": 0,
    }
    return AttemptRecord(**fields | changes)


def test_the_ledger_allows_no_second_try_of_a_graded_attempt_and_no_new_seed(tmp_path):
    ledger = AttemptLedger(RunDirectory(tmp_path))
    ledger.record(record(outcome="infrastructure", success=None))
    with pytest.raises(ValueError, match="must be retried with its seed 1"):
        ledger.record(record(seed=2))
    ledger.record(record(retries=1))
    with pytest.raises(ValueError, match="graded already"):
        ledger.record(record(success=False))
    ledger.record(record(policy_hash="other", success=False))
    assert ledger.pending("policy", ["t00", "t01"], 1) == [("t01", 0)]
    with pytest.raises(ValueError, match="given if and only if"):
        record(success=None)


def test_bad_settings_are_refused(tmp_path):
    ledger = AttemptLedger(RunDirectory(tmp_path))
    with pytest.raises(ValueError, match="concurrency must be at least 1"):
        run(Agent(), ledger, concurrency=0)
    with pytest.raises(ValueError, match="a task appears twice"):
        run(Agent(), ledger, tasks=[TASKS[0], TASKS[0]])


def test_offline_more_attempts_run_at_once_under_the_same_limits():
    trained = GenerationSettings(active_sequences_per_replica=5, concurrent_episodes_per_replica=7)
    offline = asdict(offline_settings(trained))
    differing = {name: value for name, value in offline.items() if value != asdict(trained)[name]}
    assert differing == {"active_sequences_per_replica": 10, "concurrent_episodes_per_replica": 21}
