"""Figure 8 from made-up cells: what is drawn is what the rows hold, and missing cells are named."""

import json
from itertools import product

import pandas as pd
import pytest

from analysis import scaling_cells
from analysis.scaling_cells import Law
from analysis.scaling_plan import GRIDS
from paper_figures import common, fig08_scaling_grid

GAP = {"side_by_side": 0.95, "unexplained": 0.98, "stretch_rollout": 1.1, "stretch_learner": 1.2, "stretch_suffix": 1.0}


def made_up_rows() -> pd.DataFrame:
    """Traces that follow a law and are measured 5 % below it."""
    rows = []
    for objective, (sweep, batch, turns), ratio in product(
        ("grpo", "opd"), (("batch", 4, 4), ("batch", 16, 4), ("horizon", 8, 2), ("horizon", 8, 10),
                          ("calibration", 8, 5)), (0.5, 1.0, 2.0)
    ):  # fmt: skip
        law = Law(objective=objective, gamma=0.5, late=0.1)
        o = float(law.speedup(batch=[batch], turns=turns, ratio=[ratio], kappa_w=0.05)[0])
        fields = dict(sweep=sweep, objective=objective, batch=batch, turns=turns, ratio=ratio, kappa_w=0.05, o=o)
        rows.append(fields | GAP | dict(f=0.95 * o, d=5.0, f_direct=float("nan"), late_share=0.1, dispersion=0.5))
    return pd.DataFrame(rows)


def run(tmp_path, monkeypatch) -> int:
    monkeypatch.setattr(scaling_cells, "measured_rows", lambda root, cells: made_up_rows())
    arguments = ["--runs", str(tmp_path), "--scale", "smoke", "--results", str(tmp_path / "results")]
    return common.main(fig08_scaling_grid.draw, fig08_scaling_grid.parser(), arguments)


def test_results_hold_equation_29_and_name_what_is_missing(tmp_path, monkeypatch, capsys):
    assert run(tmp_path, monkeypatch) == 0
    results = tmp_path / "results"
    found = json.loads((results / "report.json").read_text())
    assert found["summary"]["both"]["mean_d_percent"] == pytest.approx(5)
    assert found["summary"]["both"]["mean_e_percent"] < 0.2 and found["summary"]["grpo"]["cells"] == 12
    assert found["paper"]["d"]["mean"] == 6.5148 and found["summary"]["grpo"]["mean_speedup_over_direct_sync"] is None
    name = GRIDS["smoke"].cells()[-1].name  # nothing was run in this folder
    assert name in found["missing"] and f"missing: {name}" in capsys.readouterr().out
    assert name in (results / "report.md").read_text()
    data = pd.read_csv(results / "data.csv")
    assert set(data["sweep"]) == {"batch", "horizon"}  # calibration cells are not evaluated
    assert (results / "figure.png").exists() and (results / "figure.pdf").exists()


def test_open_markers_are_traces_and_filled_ones_are_measured():
    rows = made_up_rows()
    laws = scaling_cells.calibrate(rows)
    evaluated = scaling_cells.predicted(rows, laws)
    figure = fig08_scaling_grid.picture(evaluated, laws)
    axes = next(a for a in figure.axes if a.get_legend() is not None)
    opened, filled = axes.collections
    own = evaluated[evaluated["objective"] == "grpo"]
    assert opened.get_offsets().tolist() == own[["s", "o"]].to_numpy().tolist()
    assert filled.get_offsets().tolist() == own[["s", "f"]].to_numpy().tolist()
    assert opened.get_facecolor().size == 0 and filled.get_facecolor().size == 4


def test_nothing_measured_is_said(tmp_path, capsys):
    arguments = ["--runs", str(tmp_path), "--scale", "smoke", "--results", str(tmp_path / "results")]
    assert common.main(fig08_scaling_grid.draw, fig08_scaling_grid.parser(), arguments) == 1
    assert "python -m experiments.scaling" in capsys.readouterr().err
