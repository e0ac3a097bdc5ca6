"""The scripts of the README do what they print: each compares its streamed gradient with the plain one, or fails."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "experiments" / "examples"


@pytest.mark.parametrize("name", ["grpo_stream", "opd_stream"])
def test_an_example_runs(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert "relative error of the streamed gradient" in capsys.readouterr().out
