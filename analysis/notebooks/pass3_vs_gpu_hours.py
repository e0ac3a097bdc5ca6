# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # pass@3 against device-hours
# One objective and workload of a campaign, all four schedules, on the checkpoint time axis of Appendix E.3.
# Open it with `jupytext --to ipynb analysis/notebooks/pass3_vs_gpu_hours.py`, change the next cell, run.

# %%
import os
import sys
from pathlib import Path

ROOT = next(folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "pyproject.toml").exists())
sys.path.insert(0, str(ROOT))

RUNS = Path(os.environ.get("THUNDERSYNC_RUNS", ROOT / "runs/fig5/embedded"))
OBJECTIVE = "grpo"  # or opd
WORKLOAD = "micro_swe"  # or micro_terminal
SEEDS = [42, 43, 44]

# %%
import matplotlib.pyplot as plt  # noqa: E402
import pandas as pd  # noqa: E402

from analysis.campaign import SCHEDULES, load_cell, scored_checkpoints  # noqa: E402
from analysis.load import updates_frame  # noqa: E402
from analysis.time_axis import device_hours, first_crossing, step_curve, value_at  # noqa: E402

cell = load_cell(RUNS, OBJECTIVE, WORKLOAD, seeds=SEEDS, partial=True)
record = cell.reference.record
print("seeds:", cell.seeds, "pending:", cell.pending or "none")

# %% [markdown]
# Equation 13: a task counts when any of its attempts succeeded. The array is (tasks x attempts).


# %%
def pass3(outcomes_TA):
    return outcomes_TA.any(axis=1)


curves = {s: step_curve([scored_checkpoints(run, cell.attempts, pass3) for run in cell.runs[s]]) for s in SCHEDULES}

# %%
figure, axes = plt.subplots(figsize=(7, 4))
for schedule, curve in curves.items():
    axes.step(device_hours(curve.seconds_T, record.devices), curve.percent_T, where="post", label=schedule)
axes.axhline(cell.target.target, color="black", lw=0.8, ls="--")
axes.set(xlabel="device-hours", ylabel=f"{WORKLOAD} pass@3 (%)", title=OBJECTIVE)
axes.legend()

# %% [markdown]
# Time to the target, score at the budget, and the work behind it: a comparison at fixed time is not one at fixed work.

# %%
budget = record.budget_seconds
summary = pd.DataFrame(
    {
        schedule: {
            "seconds to target": first_crossing(curve.seconds_T, curve.percent_T, cell.target.target, budget=budget)
            or "unreached",
            "pass@3 at the budget": value_at(curve.seconds_T, curve.percent_T, budget),
            "updates at the budget": value_at(curve.seconds_T, curve.updates_T, budget),
            "generated tokens": value_at(curve.seconds_T, curve.generated_tokens_T, budget),
        }
        for schedule, curve in curves.items()
    }
).T
print(summary.to_string())

# %%
updates = pd.concat({schedule: updates_frame(cell.runs[schedule][0]) for schedule in SCHEDULES}, names=["schedule"])
updates.groupby("schedule")[["step_seconds", "mean_reward", "entropy", "lag_max"]].mean()
