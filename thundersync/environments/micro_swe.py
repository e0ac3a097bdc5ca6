"""`micro_swe`: small repositories with one injected bug each, as SWE-smith rows.

A repository is one package of three modules with three one-line functions each. A task puts a bug into one function;
its statement says what that function should do, neither where it is nor what stands there, so the agent has to look
(`grep`, `cat`) before it can repair (`sed`). Tests of all nine functions decide.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

from thundersync.environments.swe_smith import SweSmithTasks
from thundersync.environments.taskset import write_once
from thundersync.environments.words import WORDS
from thundersync.environments.workload import Workload
from thundersync.splits import split_groups

REPOSITORIES = 100
MODULES = 3
FUNCTIONS = 3
BUGS = 3
"""Tasks of one repository, each with a bug in another function."""
HELDOUT_FRACTION = 0.16
"""Of the repositories: 16 of them, 48 tasks. The paper's five percent would leave too few to measure on."""
PARAMETERS = "bcdghkmnpquvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    name: str
    kind: str
    parameters: tuple[str, ...]
    statement: str
    """What it should do, as a clause after its name."""
    right: str
    """The expression that it returns."""
    wrong: tuple[str, ...]
    """Expressions that a bug may put there; none holds a character that `sed` reads as more than itself."""
    arguments: tuple[tuple[int, ...], ...]
    """Calls that tell every wrong expression from the right one."""

    def source(self, expression: str | None = None) -> str:
        return f"def {self.name}({', '.join(self.parameters)}):\n    return {expression or self.right}\n"

    def test(self) -> str:
        lines = [f"def test_{self.name}():"]
        for call in self.arguments:
            expected = eval(self.right, {"max": max, "min": min}, dict(zip(self.parameters, call, strict=True)))
            lines.append(f"    assert {self.name}({', '.join(map(str, call))}) == {expected!r}")
        return "\n".join(lines) + "\n"


def _constant(rng: Random, name: str) -> Function:
    """A function of one argument and a number that the statement gives."""
    kind = rng.choice(["add", "subtract", "multiply", "above", "below", "at_least", "at_most"])
    p, c = rng.choice(PARAMETERS), rng.randint(3, 98)
    d = rng.choice([n for n in range(2, 100) if n != c])
    sign, clause = {
        "add": ("+", f"add {c} to its argument"),
        "subtract": ("-", f"subtract {c} from its argument"),
        "multiply": ("*", f"multiply its argument by {c}"),
        "above": (">", f"tell if its argument is greater than {c}"),
        "below": ("<", f"tell if its argument is less than {c}"),
        "at_least": (">=", f"tell if its argument is at least {c}"),
        "at_most": ("<=", f"tell if its argument is at most {c}"),
    }[kind]
    wrong = {
        "add": (f"{p} + {d}", f"{p} - {c}"),
        "subtract": (f"{p} - {d}", f"{p} + {c}"),
        "multiply": (f"{p} + {c}", f"{p} - {c}"),
        "above": (f"{p} >= {c}", f"{p} < {c}", f"{p} > {d}"),
        "below": (f"{p} <= {c}", f"{p} > {c}", f"{p} < {d}"),
        "at_least": (f"{p} > {c}", f"{p} < {c}", f"{p} >= {d}"),
        "at_most": (f"{p} < {c}", f"{p} > {c}", f"{p} <= {d}"),
    }[kind]
    calls = ((c - 1,), (c,), (c + 1,), (d,), (d - 1,), (d + 1,))
    return Function(
        name=name, kind=kind, parameters=(p,), statement=clause, right=f"{p} {sign} {c}", wrong=wrong, arguments=calls
    )


def _pair(rng: Random, name: str) -> Function:
    """A function of two arguments."""
    kind = rng.choice(["sum", "difference", "larger", "smaller"])
    p, q = rng.sample(PARAMETERS, 2)
    right, clause, wrong = {
        "sum": (f"{p} + {q}", "add its two arguments", (f"{p} - {q}", f"{q} - {p}")),
        "difference": (f"{p} - {q}", "subtract its second argument from its first", (f"{q} - {p}", f"{p} + {q}")),
        "larger": (f"max({p}, {q})", "return the larger of its two arguments", (f"min({p}, {q})",)),
        "smaller": (f"min({p}, {q})", "return the smaller of its two arguments", (f"max({p}, {q})",)),
    }[kind]
    calls = ((rng.randint(2, 40), rng.randint(50, 90)), (rng.randint(50, 90), rng.randint(2, 40)))
    return Function(
        name=name, kind=kind, parameters=(p, q), statement=clause, right=right, wrong=wrong, arguments=calls
    )


def _word(rng: Random, name: str) -> Function:
    """A function that returns a word."""
    right, wrong = rng.sample(WORDS, 2)
    return Function(
        name=name,
        kind="word",
        parameters=(),
        statement=f"return the word {right}",
        right=f'"{right}"',
        wrong=(f'"{wrong}"',),
        arguments=((),),
    )


@dataclass(frozen=True, kw_only=True)
class Repository:
    owner: str
    package: str
    modules: dict[str, tuple[Function, ...]]

    @functools.cached_property
    def files(self) -> dict[str, str]:
        """Sources and tests of the right state."""
        sources = {self.path(m): "\n".join(f.source() for f in functions) for m, functions in self.modules.items()}
        for module, functions in self.modules.items():
            imports = f"from {self.package}.{module} import {', '.join(f.name for f in functions)}\n"
            sources[f"tests/test_{module}.py"] = "\n\n".join([imports, *(f.test() for f in functions)])
        return sources

    def path(self, module: str) -> str:
        return f"{self.package}/{module}.py"

    @functools.cached_property
    def commit(self) -> str:
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def tests(self) -> list[str]:
        return [f"tests/test_{m}.py::test_{f.name}" for m, functions in self.modules.items() for f in functions]


def _repository(rng: Random) -> Repository:
    owner, package, *names = rng.sample(WORDS, 2 + MODULES * (1 + FUNCTIONS))
    modules = {}
    for _ in range(MODULES):
        module, names = names[0], names[1:]
        makers = rng.choices((_constant, _pair, _word), weights=(5, 3, 2), k=FUNCTIONS)
        modules[module] = tuple(make(rng, name) for make, name in zip(makers, names, strict=False))
        names = names[FUNCTIONS:]
    return Repository(owner=owner, package=package, modules=modules)


def _row(repository: Repository, module: str, function: Function, wrong: str) -> tuple[dict, list[str]] | None:
    """The task and its reference, or None when the wrong text would not be unique in its file."""
    path = repository.path(module)
    right_text = repository.files[path]
    wrong_text = right_text.replace(function.source(), function.source(wrong))
    if wrong_text.count(wrong) != 1:
        return None
    diff = difflib.unified_diff(
        right_text.splitlines(keepends=True), wrong_text.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    test = f"tests/test_{module}.py::test_{function.name}"
    full = f"{repository.owner}__{repository.package}.{repository.commit}"
    row = {
        "instance_id": f"{full}.{function.kind}__{function.name}",
        "repo": f"swesmith/{full}",
        "image_name": f"swebench/swesmith.x86_64.{full.replace('__', '_1776_')}",
        "problem_statement": f"{function.name} should {function.statement}, but it does not. Repair it.",
        "patch": "".join(diff),
        "FAIL_TO_PASS": [test],
        "PASS_TO_PASS": [other for other in repository.tests if other != test],
    }
    commands = [
        f'grep -rn "def {function.name}" .',
        f"cat ./{path}",
        f"sed -i 's/{wrong}/{function.right}/' ./{path}",
    ]
    return row, commands


def shape(expression: str) -> str:
    """An expression with every name as `p`, every number as `9` and every word as `"w"`."""
    return re.sub(r"\b[a-z]\b", "p", re.sub(r"\d+", "9", re.sub(r'".*"', '"w"', expression)))


def _bugs(rng: Random, repository: Repository) -> list[tuple[dict, list[str]]]:
    """Up to BUGS tasks of a repository, in different functions.

    A wrong form must be the right form of another function, so that rewriting it everywhere, unseen, breaks that one.
    A wrong number or word needs no such guard: it cannot be named without having been seen.
    """
    places = [(module, function) for module, functions in repository.modules.items() for function in functions]
    made = []
    for module, function in rng.sample(places, len(places)):
        forms = {shape(other.right) for _, other in places if other is not function}
        if "9" in shape(function.right) or '"' in function.right:
            forms.add(shape(function.right))
        wrong = [w for w in function.wrong if shape(w) in forms]
        row = _row(repository, module, function, rng.choice(wrong)) if wrong else None
        if row and len(made) < BUGS:
            made.append(row)
    return made


def generate(seed: int) -> dict[str, str]:
    """The files of the whole set by path: rows, references and base repositories."""
    files: dict[str, str] = {}
    rows, references, groups = [], [], set()
    for attempt in itertools.count():
        if len(groups) == REPOSITORIES:
            break
        rng = Random(f"micro_swe/{seed}/{attempt}")
        repository = _repository(rng)
        bugs = _bugs(rng, repository)
        if len(bugs) < BUGS or (repository.owner, repository.package) in groups:
            continue
        groups.add((repository.owner, repository.package))
        folder = bugs[0][0]["repo"].replace("/", "__")
        files |= {f"repositories/{folder}/{path}": text for path, text in repository.files.items()}
        for row, commands in bugs:
            rows.append(row)
            references.append({"instance_id": row["instance_id"], "commands": commands})
    files["tasks.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    files["references.jsonl"] = "".join(json.dumps(reference) + "\n" for reference in references)
    return files


def build(root: Path, seed: int) -> Workload:
    """The workload, generated below `root` if it is not there."""
    source = SweSmithTasks.read(write_once(root, "micro_swe", generate(seed)))
    split = split_groups((task.split_group for task in source.tasks), HELDOUT_FRACTION)
    return Workload.split("micro_swe", source, split)
