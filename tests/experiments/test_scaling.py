"""Every run that the scaling grid would do has a valid configuration, and the two schedules of a cell the same work."""

from pathlib import Path

from analysis.scaling_plan import GRIDS
from experiments.scaling import base, pair
from thundersync.config import parse_config


def test_all_cells_compose_and_a_pair_does_the_same_work():
    grid = GRIDS["embedded"]
    bases = {objective: base(objective, grid, Path("cache")) for objective in ("grpo", "opd")}
    orders = set()
    for cell in grid.cells():
        configs = pair(cell, bases[cell.objective], Path("runs"))
        orders.add(tuple(config.name for config in configs))
        for config in configs:
            assert parse_config(config.model_dump(mode="json")) == config
            assert config.objective.prompts_per_update * config.objective.trajectories_per_prompt == cell.batch
            assert (config.script.turns, config.script.spread) == (cell.turns, cell.spread)
        kept = [config.model_dump(exclude={"name", "schedule"}) for config in configs]
        assert all(one == kept[0] for one in kept)
        reductions = {config.name: (config.schedule.name, config.schedule.reduction) for config in configs}
        assert reductions["sync"] == ("sync", "sums") and reductions["thundersync"][0] == "thundersync"
        assert reductions.get("sync_direct", ("sync", "direct")) == ("sync", "direct")
    assert orders == {("sync", "thundersync", "sync_direct"), ("sync", "thundersync"), ("thundersync", "sync")}
