"""Learner work of the release policies as a figure, a table and a CSV, from the report of the benchmark."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from paper_figures import style

COLOURS = {"trajectory": "#8a8a8a", "content": "#5aa469", "turn_eager": "#e69f00", "turn_forward": "#0a5fa3"}


def frame(report: dict) -> pd.DataFrame:
    return pd.DataFrame(report["rows"])


def draw(report: dict) -> Figure:
    """Stacked bars: early work below, tail above, one group of bars per trajectory shape."""
    data = frame(report)
    cases = list(dict.fromkeys(zip(data["turns"], data["tokens_per_turn"], strict=True)))
    figure, axis = style.figure(figsize=(8.5, 3.6))
    width = 0.8 / len(COLOURS)
    for i, (release, colour) in enumerate(COLOURS.items()):
        rows = data[data["release"] == release]
        x = [case + (i - (len(COLOURS) - 1) / 2) * width for case in range(len(cases))]
        axis.bar(x, rows["early"], width * 0.9, color=colour, alpha=0.45)
        axis.bar(x, rows["tail"], width * 0.9, bottom=rows["early"], color=colour, label=release)
    axis.axhline(1.0, color="black", lw=0.8, ls="--")
    axis.set_xticks(range(len(cases)), [f"{turns} x {tokens}" for turns, tokens in cases])
    axis.set(xlabel="turns x tokens of a turn", ylabel="learner time\n(plain forward + backward = 1)")
    axis.set_title("Release policies: early work (pale) and tail after the last turn (full)")
    axis.legend(ncols=4, fontsize=8)
    figure.tight_layout()
    return figure


def text(report: dict) -> str:
    lines = [
        "# Release policies",
        "",
        f"{report['parameters']:,} parameters, prompt of {report['prompt_tokens']} tokens. Unit: {report['unit']}.",
        "The tail of `content` runs beside the verifier; that of `trajectory` starts only when the reward has come.",
        "Sums: a group of one under the objective OPD; of `content` a group of two under GRPO, one of which waits.",
        "",
        "| turns x tokens | release | early | tail | total | peak graph, MB | peak sums, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        lines.append(
            f"| {row['turns']} x {row['tokens_per_turn']} | `{row['release']}` | {row['early']:.2f} "
            f"| {row['tail']:.2f} | {row['total']:.2f} | {row['peak_graph_bytes'] / 1e6:.1f} "
            f"| {row['peak_sums_bytes'] / 1e6:.1f} |"
        )
    return "\n".join(lines) + "\n"
