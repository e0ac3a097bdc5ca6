"""Table 7: LoRA efficiency. python -m paper_figures.table07_lora --help

The main job trains every weight, so LoRA is predicted: the FLOP ledger counts the same trajectories with frozen weights
and adapters, the learner's stage time L shrinks in proportion, and R and P stay.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

from analysis import mfu
from analysis.profile import CellProfile
from paper_figures import common, efficiency, efficiency_tables
from thundersync.learner.flop_ledger import Lora

TITLE = "Table 7: LoRA efficiency"
NOTE = (
    "Not measured: the runs of the main job train every weight. Predicted rows count the recorded trajectories of Sync "
    "with LoRA of rank 32 on all linear layers in the FLOP ledger and shrink the learner's time in proportion."
)
LORA = Lora(rank=32, targets=frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}))
"""Of Appendix D.1's targets those that the embedded policy has."""


def lora_share(profile: CellProfile) -> float:
    """Learner FLOPs of Sync's window with LoRA over those with every weight trained, over all seeds together."""
    whole = with_lora = 0
    for run in profile.runs["sync"]:
        work = mfu.learner_work(run.run, run.details, run.updates, mfu.policy_shape(run.run), LORA)
        with_lora += sum(one.useful.total for one in work.values())
        whole += run.work.useful.total
    return with_lora / whole


def predict(profile: CellProfile) -> list[dict]:
    share = lora_share(profile)
    phases = [replace(p, learner=p.learner * share) for p in profile.phases]
    how = "LoRA in the ledger, L in proportion; perfect overlap by Equation 17"
    row = efficiency.predicted_row(profile, phases, share)
    sync_steps = [p.rollout + p.learner + p.suffix for p in phases]
    rates = [run.mfu.value * run.step.value * share for run in profile.runs["sync"]]
    sync = row | {
        "schedule": "sync",
        "step_seconds": sum(sync_steps) / len(sync_steps),
        "speedup": 1.0,
        "mfu_percent": 100 * sum(r / s for r, s in zip(rates, sync_steps, strict=True)) / len(rates),
    }
    return [one | {"how": how, "learner_flops_over_full_fine_tuning": share} for one in (sync, row)]


draw = partial(efficiency_tables.draw, name="table7", title=TITLE, note=NOTE, predict=predict, measures=False)

if __name__ == "__main__":
    sys.exit(common.main(draw, efficiency.arguments(TITLE), files=efficiency_tables.FILES))
