"""The grid of Figure 8: the plan's size, durations by hand, laws that are found again, Equation 29 from records."""

import numpy as np
import pandas as pd
import pytest
import synthetic
import timeline_records

from analysis import scaling_cells
from analysis.scaling_cells import Law
from analysis.scaling_plan import GRIDS, Cell
from thundersync.records import RunDirectory, TrajectoryRecord


def test_the_grid_is_as_large_as_it_must_be():
    cells = GRIDS["embedded"].cells()
    assert len({cell.name for cell in cells}) == len(cells)
    for objective in ("grpo", "opd"):
        own = [c for c in cells if c.objective == objective]
        evaluated = [c for c in own if c.sweep in ("batch", "horizon")]
        assert len({(c.batch, c.turns, c.load) for c in evaluated}) >= 24
        assert {c.repetition for c in evaluated} == {0, 1}
        places = {(c.batch, c.turns, c.load) for c in evaluated}
        assert not places & {(c.batch, c.turns, c.load) for c in own if c.sweep == "calibration"}
        assert len({c.spread for c in own if c.sweep == "dispersion"}) >= 4


def test_durations_start_when_a_slot_is_free(tmp_path):
    """Two slots, rewards of four trajectories at 2, 6, 5 and 9: the third starts at 2, the fourth at 5. Seconds: 2, 6,
    3, 4, so mean 3.75 and variance 2.1875."""
    directory = RunDirectory.create(tmp_path / "run", timeline_records.run("thundersync", slots=2))
    update = synthetic.update_record(0, 0.0, "thundersync", "0" * 64, 0.5, 10.0)
    directory.append(update.model_copy(update={"groups": ("update=0/group=0", "update=0/group=1")}))
    for (group, index), at in {(0, 1): 6, (0, 0): 2, (1, 0): 5, (1, 1): 9}.items():
        directory.append(
            TrajectoryRecord(
                key=f"update=0/group={group}/trajectory={index}", task_id="t", reward=0.0, success=False, outcome="x",
                turns=1, tokens=synthetic.tokens(1), oldest_version=0, newest_version=0, content_at=at, reward_at=at,
            )
        )  # fmt: skip
    assert scaling_cells.dispersion(directory.path) == pytest.approx(np.sqrt(2.1875) / 3.75)


def rows_of(law: Law, sweep: str) -> pd.DataFrame:
    """Cells whose traces follow a law exactly."""
    rows = []
    for batch in (4, 8, 24):
        for ratio in (0.5, 1.0, 2.0):
            o = float(law.speedup(batch=[batch], turns=6, ratio=[ratio], kappa_w=0.05)[0])
            rows.append(dict(sweep=sweep, objective=law.objective, batch=batch, turns=6, ratio=ratio, kappa_w=0.05,
                             o=o, late_share=law.late))  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize("objective", ["grpo", "opd"])
def test_calibration_finds_the_law_again_and_is_not_evaluated(objective):
    law = Law(objective=objective, gamma=0.8, late=0.3)
    rows = pd.concat([rows_of(law, "calibration"), rows_of(law, "batch")], ignore_index=True)
    found = scaling_cells.calibrate(rows)
    assert found[objective].gamma == pytest.approx(0.8, abs=0.026) and found[objective].late == pytest.approx(0.3)
    evaluated = scaling_cells.predicted(rows, found)
    assert set(evaluated["sweep"]) == {"batch"} and len(evaluated) == 9
    assert evaluated["e"].max() < 0.2
    with pytest.raises(ValueError, match="has no calibration cell"):
        scaling_cells.calibrate(rows_of(law, "batch"))


def test_the_law_keeps_its_limits():
    """Without learner work nothing is gained; at balance many waves approach two, as (2w + k) / (w + k + lambda)."""
    law = Law(objective="grpo", gamma=1.0, late=0.0)
    assert law.speedup(batch=[8], turns=1, ratio=[1e6], kappa_w=0.0)[0] == pytest.approx(1, abs=1e-5)
    # H(u) = u^2, so lambda = max(u - u^2) = 1/4 at rho = 1.
    for waves in (1, 2, 6):
        expected = (2 * waves + 0.1) / (waves + 0.1 + 0.25)
        assert law.speedup(batch=[4 * waves], turns=1, ratio=[1.0], kappa_w=0.1)[0] == pytest.approx(expected, abs=1e-4)


def test_missing_cells_are_named(tmp_path):
    cell = Cell(sweep="batch", objective="grpo", batch=8, turns=4, load=(480, 40))
    assert scaling_cells.missing(tmp_path, [cell]) == ["grpo-batch-batch8-turns4-load480x40-spread0.5-rep0"]
