"""Both generated workloads, through the loaders that the real sets will use."""

import asyncio
import collections
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from thundersync.environments import seta, swe_smith, verifier
from thundersync.environments.episode import observation_text
from thundersync.environments.sandbox import CommandResult, SandboxError
from thundersync.environments.words import WORDS
from thundersync.environments.workload import load_workload, validate_task
from thundersync.splits import list_digest, split_groups

NAMES = ("micro_swe", "micro_terminal")
CONCURRENT = 8
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("workloads")


@pytest.fixture(params=NAMES, scope="module")
def workload(request, root):
    return load_workload(request.param, root=root)


def attempts(workload, plan):
    """(observations, verdict) of each (task_id, commands), several at once."""
    places = asyncio.Semaphore(CONCURRENT)

    async def one(task_id, commands):
        async with places:
            episode = await workload.open(task_id)
            try:
                return [await episode.run(c) for c in commands], await episode.verify()
            finally:
                await episode.close()

    async def main():
        return await asyncio.gather(*(one(task_id, commands) for task_id, commands in plan))

    return asyncio.run(main())


def test_sides_are_disjoint_by_group_and_follow_the_rule(workload):
    training = {t.split_group for t in workload.training}
    heldout = {t.split_group for t in workload.heldout}
    fraction = {"micro_swe": 0.16, "micro_terminal": 0.15}[workload.name]
    split = split_groups(training | heldout, fraction)
    assert (training, heldout) == (set(split.training), set(split.development))
    assert 200 <= len(workload.training) <= 400 and 40 <= len(workload.heldout) <= 60
    assert len(training) >= 60 and len(heldout) >= 16


def test_the_committed_manifest_describes_what_is_generated(workload):
    stored = json.loads((REPOSITORY / "data_manifests" / "embedded" / f"{workload.name}.json").read_text())
    for side in ("training", "heldout"):
        tasks = getattr(workload, side)
        assert stored[side]["tasks"] == len(tasks)
        assert stored[side]["groups"] == len({t.split_group for t in tasks})
        assert stored[side]["task_list_sha256"] == list_digest(t.task_id for t in tasks)
        assert stored[side]["group_list_sha256"] == list_digest({t.split_group for t in tasks})


def test_generated_once_and_alike(workload, root, tmp_path):
    before = sorted(root.iterdir())
    again = load_workload(workload.name, root=root)
    elsewhere = load_workload(workload.name, root=tmp_path)
    assert sorted(root.iterdir()) == before
    assert (
        (again.training, again.heldout)
        == (elsewhere.training, elsewhere.heldout)
        == (workload.training, workload.heldout)
    )
    other = load_workload(workload.name, root=tmp_path, seed=1)
    assert {t.task_id for t in other.training} != {t.task_id for t in workload.training}


def test_counts_keep_the_first_and_are_checked(workload, root):
    few = load_workload(workload.name, root=root, training_tasks=7, heldout_tasks=3)
    assert (few.training, few.heldout) == (workload.training[:7], workload.heldout[:3])
    with pytest.raises(ValueError, match=f"heldout_tasks must lie between 1 and {len(workload.heldout)}"):
        load_workload(workload.name, root=root, heldout_tasks=1000)


def test_an_unknown_name_lists_the_valid_ones(root):
    with pytest.raises(ValueError, match="micro_swe, micro_terminal"):
        load_workload("micro_sew", root=root)


def test_small_enough_for_a_small_model(workload):
    for task in (*workload.training, *workload.heldout):
        commands = workload.reference_commands(task.task_id)
        assert task.instruction.isascii() and len(task.instruction.split()) <= 60
        assert 2 <= len(commands) <= 6 and all(c.isascii() and len(c.split()) <= 15 for c in commands)
        numbers = re.findall(r"\d+", task.instruction)
        assert all(len(n) <= 3 for n in numbers)


def test_words_are_one_pool_without_traps():
    assert len(WORDS) == len(set(WORDS)) >= 140
    assert not set(WORDS) & sys.stdlib_module_names
    assert not [(a, b) for a in WORDS for b in WORDS if a != b and a in b], (
        "one word inside another confuses grep and sed"
    )


def test_heldout_words_also_occur_in_training(workload):
    """In what an agent reads or the reference writes: instructions, start files, commands."""

    def words(tasks):
        texts = [text for t in tasks for text in (t.instruction, *workload.reference_commands(t.task_id))]
        for task in tasks if workload.name == "micro_swe" else ():
            folder = (
                workload.source.root / "repositories" / workload.source.rows[task.task_id]["repo"].replace("/", "__")
            )
            texts += [path.read_text() for path in folder.glob("*/*.py")]
        return {word for text in texts for word in re.findall(r"[a-z]+", text)}

    assert not words(workload.heldout) - words(workload.training)


def test_noop_fails_and_reference_passes_on_a_sample(workload):
    tasks = (*workload.training[:8], *workload.heldout[:8])
    best = {"micro_swe": 1.0, "micro_terminal": 1.5}[workload.name]

    async def main():
        return await asyncio.gather(*(validate_task(workload, t.task_id) for t in tasks))

    for noop, reference in asyncio.run(main()):
        assert not noop.success and noop.reward == 0.0
        assert reference.success and reference.reward == best and all(reference.tests.values())


def test_looking_is_needed(workload):
    """The reference without its looks is not known beforehand: each repair names something that only a look shows."""
    for task in workload.heldout:
        look, *_ = commands = workload.reference_commands(task.task_id)
        assert look.startswith("grep")
        shown = [w for c in commands[1:] for w in re.findall(r"\w+", c)]
        assert set(shown) & set(WORDS) - set(re.findall(r"\w+", task.instruction)), "nothing had to be seen"


def test_observations_are_short(workload):
    plan = [(t.task_id, [*workload.reference_commands(t.task_id), "ls -R"]) for t in workload.heldout[:12]]
    for observations, _ in attempts(workload, plan):
        for observation in observations:
            lines = observation.text.splitlines()
            assert len(lines) <= 25 and all(len(line) <= 60 and line.isascii() for line in lines)


BLIND = {
    "micro_swe": ["ls -R", "cat */*.py", "sed -i 's/ < / > /; s/min(/max(/; s/ + / - /' */*.py"],
    "micro_terminal": ["ls -R", "cat */*.txt", "mkdir stone", "cp */*.txt .", "echo stone > stone.txt"],
}


def test_a_fixed_sequence_solves_under_five_percent(workload):
    results = attempts(workload, [(t.task_id, BLIND[workload.name]) for t in workload.heldout])
    assert sum(verdict.success for _, verdict in results) < 0.05 * len(workload.heldout)


def test_the_most_frequent_training_solution_solves_under_five_percent(workload):
    solutions = collections.Counter(tuple(workload.reference_commands(t.task_id)) for t in workload.training)
    (commands, _), *_ = solutions.most_common(1)
    results = attempts(workload, [(t.task_id, commands) for t in workload.heldout])
    assert sum(verdict.success for _, verdict in results) < 0.05 * len(workload.heldout)


def test_answers_are_not_in_the_agents_files(workload):
    """Tests, solution and bug patch can be neither listed, searched nor read through the paths the evaluator uses."""
    task = workload.training[0]
    fix = workload.reference_commands(task.task_id)[-1]
    if workload.name == "micro_swe":
        host = workload.source.root
        giveaway = workload.source.rows[task.task_id]["patch"].splitlines()[0]
    else:
        host = workload.source.directories[task.task_id].path
        giveaway = "def test_"
    names = " -o ".join(f"-name '{n}'" for n in ("test_*.py", "*.patch", "solve.sh", "*.jsonl", "task.toml"))
    # The command that searches for the solution holds it itself, but only in its own memory.
    commands = [
        f"find / {names} 2>/dev/null | grep -v ^/usr/",
        f"ls {host} tests solution /tests /solution 2>&1 | grep -c 'No such file'",
        f"grep -rlsF -e {shlex.quote(fix)} -e {shlex.quote(giveaway)} -e PASS_TO_PASS /work /tmp /etc /dev",
    ]
    ((observations, _),) = attempts(workload, [(task.task_id, commands)])
    assert [o.text for o in observations] == ["", "5\n", ""]


def test_verifier_files_appear_only_after_the_agent_has_stopped(root):
    """What the agent left running is dead before the tests enter any sandbox, and it cannot run commands again."""
    workload = load_workload("micro_swe", root=root)

    async def main():
        episode = await workload.open(workload.training[0].task_id)
        await episode.run("(while sleep 0.01; do ls / /tmp /work >> seen; done) & sleep 0.05")
        verdict = await episode.verify()
        with pytest.raises(RuntimeError, match="verified"):
            await episode.run("ls")
        await episode.close()
        await episode.close()
        return verdict

    assert asyncio.run(main()).reward == 0.0


def test_a_session_that_the_agent_ended_is_graded_as_failed(workload):
    ((observations, verdict),) = attempts(workload, [(workload.training[0].task_id, ["kill -9 -1", "ls"])])
    assert [o.text for o in observations] == ["[the session has ended]\n"] * 2
    assert verdict.reward == 0.0 and not verdict.success and not any(verdict.tests.values())


def test_a_verifier_that_does_not_start_is_no_failure_of_the_agent(root, monkeypatch):
    """CASES D11."""
    workload = load_workload("micro_swe", root=root)

    async def main():
        episode = await workload.open(workload.training[0].task_id)

        async def broken(*_):
            raise SandboxError("the sandbox did not start: fork: out of memory")

        monkeypatch.setattr("thundersync.environments.verifier.Sandbox.open", broken)
        try:
            await episode.verify()
        finally:
            await episode.close()

    with pytest.raises(SandboxError, match="out of memory"):
        asyncio.run(main())


def test_breaking_the_program_fails_regression_tests(root):
    workload = load_workload("micro_swe", root=root)
    ((_, verdict),) = attempts(workload, [(workload.training[0].task_id, ["rm -r */"])])
    assert verdict.tests and not any(verdict.tests.values())


def test_partial_progress_is_paid_as_in_the_paper(root):
    """Appendix E.1, by hand: with 3 tests, 2 passed give 2/3 and 3 passed give 1.5."""
    assert seta.seta_reward({"a": True, "b": True, "c": False}) == pytest.approx(2 / 3)
    assert seta.seta_reward({"a": True, "b": True, "c": True}) == 1.5
    assert seta.seta_reward({"a": False}) == 0.0
    assert (swe_smith.swe_reward({"a": True, "b": False}), swe_smith.swe_reward({"a": True})) == (0.0, 1.0)
    workload = load_workload("micro_terminal", root=root)
    task_id = next(t.task_id for t in workload.training if "Create the directory" in t.instruction)
    commands = [c for c in workload.reference_commands(task_id) if c.startswith("mkdir")]
    ((_, verdict),) = attempts(workload, [(task_id, commands)])
    assert sum(verdict.tests.values()) == 1 and verdict.reward == pytest.approx(1 / len(verdict.tests))


def test_observations_repeat_byte_for_byte_under_load(workload):
    """Exactness grade 3 stands on this: four busy processes on the same cores change nothing that an agent sees."""
    extra = [
        "ls -la; ls -la */; stat */* | tail -20",
        "date; time ls; echo $RANDOM $$ $SECONDS; mktemp -u",
        "python3 -c 'import random, os, time; print(random.random(), hash(\"a\"), os.listdir(), time.time())'",
        "touch new; ls -l --full-time new; ls -ltr; find . ; grep -rn e . | head",
        "cat missing; nonsense; echo $((1/0))",
        "sleep 0.05 & echo $!; seq 20000 | tail -3; seq 50000",
        "python3 -c 'raise SystemExit(len(open(\"new\").read()))'; kill $$; echo no",
    ]
    plan = [(t.task_id, [*extra, *workload.reference_commands(t.task_id)]) for t in workload.heldout[:3]]
    quiet = attempts(workload, plan)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        loaded = attempts(workload, plan * 3)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert loaded == quiet * 3


def test_clock_dependent_text_is_removed():
    text = (
        "-rw-r--r-- 1 1000 1000 3 Nov 30 03:19 a b\nreal\t0m1.250s\nRan 2 tests in 0.123s\ntotal 4\nMay  5 2020 stays\n"
    )
    cleaned = observation_text(CommandResult(output=text, exit_code=0, timed_out=False))
    assert cleaned == (
        "-rw-r--r-- 1 1000 1000 3 Jan  1  2026 a b\nreal\t0m0.000s\nRan 2 tests in 0.00s\ntotal 4\nMay  5 2020 stays\n"
    )


def test_a_task_whose_reference_fails_or_whose_noop_passes_is_named(root, tmp_path):
    source = swe_smith.SweSmithTasks.read(next(root.glob("micro_swe-*")))
    name, row = next(iter(source.rows.items()))

    class Broken:
        tasks = ()

        def __init__(self, commands):
            self.commands = commands

        def reference_commands(self, task_id):
            return self.commands

        async def open(self, task_id):
            return await source.open(task_id)

    workload = load_workload("micro_swe", root=root)
    object.__setattr__(workload, "source", Broken(["true"]))
    with pytest.raises(ValueError, match=f"{re.escape(name)}.*reference fails tests/"):
        asyncio.run(validate_task(workload, name))
    source.rows[name] = row | {"FAIL_TO_PASS": row["PASS_TO_PASS"]}
    with pytest.raises(ValueError, match=f"{re.escape(name)}.*solved by doing nothing"):
        asyncio.run(validate_task(workload, name))


GOOD = {name: "x" for name in swe_smith.FIELDS}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], ":1: not a JSON object"),
        ([json.dumps(GOOD), "[]"], ":2: the row lacks"),
        ([json.dumps(GOOD | {"patch": ""})], ":1: the row lacks patch"),
        ([json.dumps(GOOD)] * 2, ":2: instance x comes twice"),
    ],
)
def test_damaged_rows_are_named_by_file_and_line(tmp_path, lines, message):
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "tasks.jsonl")) + message):
        swe_smith.read_rows(tmp_path / "tasks.jsonl")


def _directory(path, **changes):
    files = {name: "" for name in seta.REQUIRED} | {
        "instruction.md": "Do it.",
        "tests/test_o.py": "def test_a(): pass\n",
    }
    for name, text in (files | changes).items():
        if text is not None:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"solution/solve.sh": None}, "task t: solution/solve.sh missing"),
        ({"task.toml": "= 1"}, "task t: .*task.toml"),
        ({"instruction.md": " \n"}, "task t: .*instruction.md is empty"),
        (
            {"environment/Dockerfile": "FROM x\nRUN apt-get update\n"},
            "task t: .*:2: 'RUN apt-get update' needs a container",
        ),
        ({"tests/test_o.py": "x = 1\n"}, "task t: no test function"),
    ],
)
def test_damaged_task_directories_are_named(tmp_path, changes, message):
    _directory(tmp_path / "t", **changes)
    with pytest.raises(ValueError, match=message):
        asyncio.run(seta.SetaTasks.read(tmp_path).open("t"))


def test_results_outside_the_designated_tests_are_ignored(root, monkeypatch):
    async def run_tests(files, tests, limits=None):
        return {"tests/other.py::test_x": False}

    workload = load_workload("micro_swe", root=root)
    monkeypatch.setattr(verifier, "run_tests", run_tests)
    monkeypatch.setattr("thundersync.environments.episode.run_tests", run_tests)
    ((_, verdict),) = attempts(workload, [(workload.training[0].task_id, [])])
    row = workload.source.rows[workload.training[0].task_id]
    assert set(verdict.tests) == {*row["FAIL_TO_PASS"], *row["PASS_TO_PASS"]} and not any(verdict.tests.values())


def test_the_validation_command_writes_a_ledger(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    command = [sys.executable, "-m", "data_manifests.validate", "--workload", "micro_terminal", "--tasks", "2"]
    done = subprocess.run(
        [*command, "--root", str(tmp_path), "--ledger", str(ledger)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [(e["side"], e["reference"]["reward"], e["reason"]) for e in entries] == [("training", 1.5, None)] * 2 + [
        ("heldout", 1.5, None)
    ] * 2
