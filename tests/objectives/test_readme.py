"""The worked example of the room's README runs, and gives the numbers that the README states."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import thundersync.objectives
from thundersync.objectives import Objective

README = Path(thundersync.objectives.__file__).parent / "README.md"


def test_the_worked_example():
    code = README.read_text().split("```python\n")[1].split("```")[0]
    names: dict = {"__name__": "readme"}
    exec(compile(code, str(README), "exec", dont_inherit=True), names)
    objective = names["SoftmaxWeighted"](prompts=2)
    assert isinstance(objective, Objective)
    for c in (1.0, 0.0, -3.0):
        weights = [objective.phi(r, c)[0] * objective.beta([1.0, 0.0], c)[0] for r in (1.0, 0.0)]
        assert weights == pytest.approx([0.731, 0.269], abs=5e-4)
        assert weights[0] / weights[1] == pytest.approx(math.e)
