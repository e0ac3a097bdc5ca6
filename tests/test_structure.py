"""The rooms of the architecture: imports point down only, and light things stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FLOORS = {
    # Top-level rooms stand on the package; within it, a module or room may import what lies strictly below.
    "experiments": 14,
    "paper_figures": 13,
    "analysis": 12,
    "eval": 12,
    "data_manifests": 12,
    "thundersync.trainer": 8,
    "thundersync.controller": 7,
    "thundersync.warm_start": 7,
    "thundersync.journal": 6,
    "thundersync.mirror": 6,
    "thundersync.config": 5,
    "thundersync.cluster": 4,
    "thundersync.simulation": 4,
    "thundersync.equivalence": 4,
    "thundersync.timeline": 3,
    "thundersync.schedules": 3,
    "thundersync.learner": 3,
    "thundersync.rollout": 3,
    "thundersync.scaling": 3,
    "thundersync.streaming": 2,
    "thundersync.environments": 2,
    "thundersync.slots": 2,
    "thundersync.trace_file": 1,
    "thundersync.objectives": 1,
    "thundersync.records": 1,
    "thundersync.batch": 0,
    "thundersync.ports": 0,
    "thundersync.splits": 0,
    "thundersync.sampler": 0,
    "thundersync.policy_hash": 0,
    "thundersync.heap": 0,
    "thundersync.publication": 1,
    "thundersync.watch": 1,
    "thundersync": -1,
}
SAME_FLOOR = {("thundersync.ports", "thundersync.batch"), ("thundersync.sampler", "thundersync.batch")}


def room(module: str) -> str | None:
    parts = module.split(".")
    for depth in (2, 1):
        if ".".join(parts[:depth]) in FLOORS:
            return ".".join(parts[:depth])
    return None


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append(node.module)
    return found


def sources() -> list[Path]:
    tops = ("thundersync", "experiments", "paper_figures", "analysis", "eval", "data_manifests")
    return sorted(path for top in tops for path in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    here = room(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    assert here is not None, f"{path} stands on no floor: give it one in FLOORS"
    for module in imports(path):
        there = room(module)
        if there in (None, here) or (here, there) in SAME_FLOOR:
            continue
        assert FLOORS[there] < FLOORS[here], f"{here} may not import {there}"


@pytest.mark.parametrize(
    "module",
    ["thundersync", "thundersync.batch", "thundersync.ports", "thundersync.records", "thundersync.objectives",
     "thundersync.environments", "thundersync.schedules", "thundersync.splits", "thundersync.simulation",
     "thundersync.scaling.queue"],
)  # fmt: skip
def test_light_modules_do_not_import_torch_or_ray(module):
    code = f"import {module}, sys; print([m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_files_stay_readable():
    """A file over 400 lines asks to be split."""
    long = {str(path.relative_to(ROOT)): n for path in sources() if (n := len(path.read_text().splitlines())) > 400}
    assert not long


def test_the_top_level_holds_what_it_should():
    rooms = {"thundersync", "experiments", "data_manifests", "eval", "analysis", "paper_figures", "tests"}
    files = {"pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE", "CITATION.cff", "CONTRIBUTING.md"}
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert {line.split("/")[0] for line in listed.splitlines() if not line.startswith(".")} <= rooms | files
