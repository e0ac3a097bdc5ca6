"""The notebook runs as a reader would run it, from its own folder."""

from pathlib import Path

import synthetic

from analysis.notebooks.__main__ import FOLDER, execute


def test_the_notebook_runs_and_shows_the_score_of_its_records(tmp_path, monkeypatch):
    monkeypatch.setenv("THUNDERSYNC_RUNS", "")  # so that what `execute` sets is undone after the test
    synthetic.write_pilot(tmp_path, "grpo", "micro_swe")
    for schedule in synthetic.STEP:
        synthetic.write_run(tmp_path, "grpo", "micro_swe", schedule, 42)
    notebook = execute(Path(FOLDER) / "pass3_vs_gpu_hours.py", tmp_path)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    expected = synthetic.pass3(
        tmp_path / "grpo-micro_swe-sync-seed42", synthetic.hash_of("grpo-micro_swe-sync-seed42", 30)
    )
    assert "seeds: (42,)" in printed and "seed44 has not started" in printed
    row = next(line for line in printed.splitlines() if line.startswith("sync"))
    assert f"{expected:.4f}"[:6] in row
    assert any("image/png" in output.get("data", {}) for output in outputs)
