"""`micro_terminal`: file chores of several steps, as Harbor/SETA task directories.

A source family has one small directory tree and one task, with evolved variants (`-evol-1`, `-evol-2`) that ask for
other or for more things in the same tree. Each asks for two to four things and has one verifier test per thing; the
first can only be done after looking for the file that contains a word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from thundersync.environments.seta import SetaTasks
from thundersync.environments.taskset import write_once
from thundersync.environments.words import WORDS
from thundersync.environments.workload import Workload
from thundersync.splits import split_groups

FAMILIES = 110
VARIANTS = 3
HELDOUT_FRACTION = 0.15
"""Of the families: 17 of them, 51 tasks. The paper's five percent would leave too few to measure on."""

TASK_TOML = """version = "1.0"

[metadata]
category = "file-operations"
source_family = "{family}"

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 60.0

[environment]
cpus = 1
memory_mb = 256
"""
DOCKERFILE = "FROM debian:12\nWORKDIR /work\nCOPY files/ /work\n"
TEST_SH = """#!/bin/bash
# Where pytest is installed this prints the same lines as thundersync's own runner.
cd /work && python3 -m pytest -rA /tests/test_outputs.py
"""
TEST_HEAD = """import os


def read(path):
    with open(os.path.join("/work", path)) as stream:
        return stream.read()


def there(path):
    return os.path.exists(os.path.join("/work", path))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The start state of a family. Every word occurs once in it."""

    folder: str
    notes: dict[str, tuple[str, ...]]
    """Path -> words, one a line."""
    config: str
    settings: dict[str, int]
    listing: str
    entries: tuple[str, ...]
    unused: tuple[str, ...]
    """Words that are free for new names."""

    @property
    def files(self) -> dict[str, str]:
        files = {path: "".join(f"{word}\n" for word in words) for path, words in self.notes.items()}
        files[self.config] = "".join(f"{key}={value}\n" for key, value in self.settings.items())
        files[self.listing] = "".join(f"{word}\n" for word in self.entries)
        return files


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgoal:
    instruction: str
    commands: tuple[str, ...]
    test: str
    """Name of its verifier function."""
    checks: tuple[str, ...]
    """Expressions that must hold; at least one is false in the start state."""


def _tree(rng: Random) -> Tree:
    words = iter(rng.sample(WORDS, 60))
    folder = next(words)
    notes = {f"{folder}/{next(words)}.txt": tuple(next(words) for _ in range(2)) for _ in range(rng.randint(3, 4))}
    config = f"{next(words)}.conf"
    settings = {next(words): rng.randint(2, 99) for _ in range(3)}
    listing = f"{next(words)}.txt"
    entries = tuple(next(words) for _ in range(rng.randint(3, 9)))
    return Tree(
        folder=folder,
        notes=notes,
        config=config,
        settings=settings,
        listing=listing,
        entries=entries,
        unused=tuple(words),
    )


def _found(rng: Random, tree: Tree, names: list[str]) -> Subgoal:
    """Something to do with the file that contains a word: the subgoal that needs a look."""
    path = rng.choice(list(tree.notes))
    word = rng.choice(tree.notes[path])
    text = tree.files[path]
    new = names.pop()
    kind = rng.choice(["copy", "move", "delete", "append"])
    others = tuple(f"there({other!r})" for other in tree.notes if other != path)
    instruction, command, checks = {
        "copy": (
            f"Copy the file with the word {word} to {new}.txt.",
            f"cp ./{path} {new}.txt",
            (f"read({new + '.txt'!r}) == {text!r}", f"read({path!r}) == {text!r}"),
        ),
        "move": (
            f"Move the file with the word {word} to {new}.txt.",
            f"mv ./{path} {new}.txt",
            (f"read({new + '.txt'!r}) == {text!r}", f"not there({path!r})", *others),
        ),
        "delete": (f"Delete the file with the word {word}.", f"rm ./{path}", (f"not there({path!r})", *others)),
        "append": (
            f"Append the word {new} to the file with the word {word}.",
            f"echo {new} >> ./{path}",
            (f"read({path!r}).split() == {[*tree.notes[path], new]!r}", *others),
        ),
    }[kind]
    return Subgoal(
        instruction=instruction, commands=(f"grep -rl {word} .", command), test=f"test_{kind}_found", checks=checks
    )


def _create(rng: Random, tree: Tree, names: list[str]) -> Subgoal:
    name, word = names.pop(), names.pop()
    return Subgoal(
        instruction=f"Create {name}.txt with the word {word}.",
        commands=(f"echo {word} > {name}.txt",),
        test="test_create",
        checks=(f"read({name + '.txt'!r}).split() == [{word!r}]",),
    )


def _directory(rng: Random, tree: Tree, names: list[str]) -> Subgoal:
    name = names.pop()
    return Subgoal(
        instruction=f"Create the directory {name}.",
        commands=(f"mkdir {name}",),
        test="test_directory",
        checks=(f"os.path.isdir({'/work/' + name!r})",),
    )


def _count(rng: Random, tree: Tree, names: list[str]) -> Subgoal:
    name = names.pop()
    return Subgoal(
        instruction=f"Write the number of lines of {tree.listing} to {name}.txt.",
        commands=(f"wc -l < {tree.listing} > {name}.txt",),
        test="test_count",
        checks=(f"read({name + '.txt'!r}).split() == [{str(len(tree.entries))!r}]",),
    )


def _set(rng: Random, tree: Tree, names: list[str]) -> Subgoal:
    key = rng.choice(list(tree.settings))
    value = rng.choice([n for n in range(2, 100) if n != tree.settings[key]])
    lines = [f"{k}={value if k == key else v}" for k, v in tree.settings.items()]
    return Subgoal(
        instruction=f"Set {key} to {value} in {tree.config}.",
        commands=(f"sed -i 's/{key}=.*/{key}={value}/' {tree.config}",),
        test="test_set",
        checks=(f"read({tree.config!r}).split() == {lines!r}",),
    )


def _value(rng: Random, tree: Tree, names: list[str]) -> Subgoal:
    key, name = rng.choice(list(tree.settings)), names.pop()
    return Subgoal(
        instruction=f"Write the value of {key} in {tree.config} to {name}.txt.",
        commands=(f"grep {key} {tree.config}", f"echo {tree.settings[key]} > {name}.txt"),
        test="test_value",
        checks=(f"read({name + '.txt'!r}).split() == [{str(tree.settings[key])!r}]",),
    )


FURTHER: tuple[Callable[[Random, Tree, list[str]], Subgoal], ...] = (_create, _directory, _count, _set, _value)


def _subgoals(rng: Random, tree: Tree, count: int) -> list[Subgoal]:
    names = list(tree.unused)
    rng.shuffle(names)
    makers = rng.sample(FURTHER, count - 1)
    while _set in makers and _value in makers:
        # Asking for a value of a file that is to be changed would have two right answers.
        makers = rng.sample(FURTHER, count - 1)
    return [_found(rng, tree, names), *(make(rng, tree, names) for make in makers)]


def _task_files(family: str, tree: Tree, subgoals: list[Subgoal]) -> dict[str, str]:
    tests = [f"def {s.test}():\n" + "".join(f"    assert {check}\n" for check in s.checks) for s in subgoals]
    commands = [command for s in subgoals for command in s.commands]
    return {
        "task.toml": TASK_TOML.format(family=family),
        "instruction.md": " ".join(s.instruction for s in subgoals) + "\n",
        "environment/Dockerfile": DOCKERFILE,
        **{f"environment/files/{path}": text for path, text in tree.files.items()},
        "tests/test.sh": TEST_SH,
        "tests/test_outputs.py": "\n\n".join([TEST_HEAD, *tests]),
        "solution/solve.sh": "\n".join(["#!/bin/bash", "set -e", *commands]) + "\n",
    }


def generate(seed: int) -> dict[str, str]:
    """The files of the whole set by path: one directory per task."""
    files: dict[str, str] = {}
    names = Random(f"micro_terminal/{seed}")
    families: set[str] = set()
    while len(families) < FAMILIES:
        families.add("-".join(names.sample(WORDS, 2)))
    for family in sorted(families):
        rng = Random(f"micro_terminal/{seed}/{family}")
        tree = _tree(rng)
        for variant in range(VARIANTS):
            name = f"{family}-evol-{variant}" if variant else family
            subgoals = _subgoals(rng, tree, rng.randint(2, 3) + (variant == VARIANTS - 1))
            files |= {f"{name}/{path}": text for path, text in _task_files(family, tree, subgoals).items()}
    return files


def build(root: Path, seed: int) -> Workload:
    """The workload, generated below `root` if it is not there."""
    source = SetaTasks.read(write_once(root, "micro_terminal", generate(seed)))
    split = split_groups((task.split_group for task in source.tasks), HELDOUT_FRACTION)
    return Workload.split("micro_terminal", source, split)
