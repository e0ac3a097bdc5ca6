"""The installed command: what it prints and writes, and what it says to bad input."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from synthetic import run_record

from thundersync.records import RunDirectory
from thundersync.scaling.command import main

ROOT = Path(__file__).resolve().parents[2]
ROWS = "trajectory,group,turn,ready,service\n0,0,0,1,1\n0,0,1,3,1\n1,0,0,2,1\n"


def test_plan_prints_a_table_and_writes_table_picture_and_report(tmp_path, capsys):
    trace, results = tmp_path / "trace.csv", tmp_path / "results"
    trace.write_text(ROWS)
    assert main(["plan", str(trace), "--suffix", "0.5", "--gpus", "2+2", "--results", str(results)]) == 0
    printed = capsys.readouterr().out
    assert "| Sync |  | 6.50 | 1.00 |" in printed  # 3 + 3 + 0.5
    assert "| 2 + 2 (now)" in printed
    assert (results / "plan.md").read_text() in printed
    assert json.loads((results / "plan.json").read_text())["trace"] == {"rollout_s": 3, "learner_s": 3, "suffix_s": 0.5}
    assert (results / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("group,ready,service\n0,1,x\n", "trace.csv, line 2: damaged row"),
        ("group,when\n0,1\n", "unknown column|missing"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(tmp_path, capsys, content, message):
    trace = tmp_path / "trace.csv"
    trace.write_text(content)
    assert main(["plan", str(trace), "--results", str(tmp_path / "results")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert any(part in error for part in message.split("|"))
    assert not (tmp_path / "results").exists()


def test_folders_are_told_apart(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("THUNDERSYNC_DATA", raising=False)
    assert main(["plan"]) == 2
    assert "THUNDERSYNC_DATA" in capsys.readouterr().err
    assert main(["plan", str(tmp_path)]) == 2
    assert "holds neither run.json" in capsys.readouterr().err
    RunDirectory.create(tmp_path, run_record("r", "fully_async", "grpo", "micro_swe", 42))
    assert main(["plan", str(tmp_path)]) == 2
    assert "a trace comes from sync or thundersync" in capsys.readouterr().err


def test_it_is_installed_with_what_it_needs_and_starts_light():
    """The base dependencies are enough; torch and Ray are never imported, matplotlib only for the picture."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["thundersync"] == "thundersync.scaling.command:main"
    assert {d.split(">")[0] for d in project["dependencies"]} == {"numpy", "pydantic", "matplotlib"}
    heavy = "('torch', 'ray', 'pandas', 'matplotlib')"
    code = f"import sys, thundersync.scaling.command; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
