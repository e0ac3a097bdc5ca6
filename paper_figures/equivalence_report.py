"""The equivalence check as a table for people and as one CSV, from its report."""

from __future__ import annotations

import pandas as pd

from paper_figures import style


def data_frame(report: dict) -> pd.DataFrame:
    """Everything that the six panels show: scatter coordinates and parameter gaps, one value per row."""
    rows = []
    for objective, found in report["objectives"].items():
        for series, values in found["sample"].items():
            rows += [(objective, "direction", series, i, value) for i, value in enumerate(values)]
        gaps = {f"fp32 {release}": c["gaps"] for release, c in found["fp32"].items()}
        gaps |= {"bf16 sync against fp32": found["bf16_sync"]["gaps"], "bf16 schedules": found["bf16_gaps"]}
        for series, values in gaps.items():
            rows += [(objective, "gap", series, k, value) for k, value in enumerate(values, start=1)]
    return pd.DataFrame(rows, columns=["objective", "panel", "series", "index", "value"])


def text(report: dict) -> str:
    """report.md: our numbers beside those of Appendix G, and what held."""
    lines = [
        "# Update equivalence",
        "",
        f"Measured here with the model {report['model']} over {report['batches']} logical batches; FP64 over"
        f" the first of them, BF16 over {report['bf16_batches']} (other releases than the default: one). The paper's"
        " columns are a 27B policy on B200 and H200: orders of magnitude compare, digits do not.",
        "",
        "| | ours | paper, B200 | paper, H200 |",
        "|---|---|---|---|",
    ]
    for objective in report["objectives"]:
        name = style.OBJECTIVES.get(objective, objective)
        b200, h200 = report["paper"]["b200"][objective], report["paper"]["h200"][objective]
        for release, c in report["fp32"][objective].items():
            theirs = f"{b200['fp32_relative_error']:.2e} | {h200['fp32_relative_error']:.2e}"
            lines.append(f"| {name}, FP32 first direction, `{release}` | {c['relative_error']:.2e} | {theirs} |")
            cosines = f"{b200['one_minus_cosine']:.1e} | {h200['one_minus_cosine']:.1e}"
            lines.append(f"| {name}, 1 - cosine, `{release}` | {c['one_minus_cosine']:.1e} | {cosines} |")
            below = f"< {report['paper']['fp32_parameter_gap_below']:.0e}"
            lines.append(
                f"| {name}, largest FP32 parameter gap, `{release}` | {max(c['gaps']):.1e} | {below} | {below} |"
            )
        own, unreported = report["objectives"][objective]["fp32_rounding"], "not reported | not reported"
        lines.append(f"| {name}, first direction of Sync, FP32 against FP64 | {own:.2e} | {unreported} |")
        for schedule in ("sync", "thundersync"):
            theirs = f"{b200['bf16_' + schedule]:.3g} | {h200['bf16_' + schedule]:.3g}"
            ours = report["bf16"][objective][schedule]
            lines.append(f"| {name}, BF16 {style.LOOKS[schedule].label} against FP32 | {ours:.3g} | {theirs} |")
        for release, error in report["bf16"][objective]["other_releases"].items():
            lines.append(f"| {name}, BF16 against FP32, `{release}` | {error:.3g} | {unreported} |")
        for release, error in report["fp64"][objective].items():
            lines.append(f"| {name}, FP64 first direction, `{release}` | {error:.1e} | {unreported} |")
    lines += ["", "Exact sums: the policy hash of Sync `sums` after every update, whatever the order of arrival.", ""]
    for objective, orders in report["exact_permutations"].items():
        held = ", ".join(
            f"{name}: {'same bits' if same else 'OTHER BITS'}"
            for name, same in orders.items()
            if isinstance(same, bool)
        )
        lines.append(
            f"- {objective}: {held}; {orders['underflow']:.2%} of gradient entries underflow the grid; beside"
            f" FP32 sums {orders['learner_time_ratio']:.2f} times the learner time, {orders['memory_ratio']:.2f} times"
            " the memory of the sums"
        )
    lines += ["", "Two learner ranks against one.", ""]
    for objective, found in report["ranks"].items():
        bits = "the same bits" if found["same_bits_with_exact_sums"] else "OTHER BITS"
        lines.append(
            f"- {objective}: FP32 first direction {found['relative_error']:.1e}, largest parameter gap"
            f" {max(found['gaps']):.1e}; with exact sums {bits} after every update"
        )
    if whole := report["end_to_end"]:
        equal = f"{whole['hashes_equal']} of {whole['updates']} published policy hashes are equal."
        lines += ["", f"End to end: {equal}", ""]
        lines += [f"- {'holds' if holds else 'DOES NOT HOLD'}: {words}" for words, holds in whole["conditions"].items()]
    bounds = {o: f"{found['fp32_bound']:.2g}" for o, found in report["objectives"].items()}
    held = ", ".join(f"{style.OBJECTIVES.get(o, o)} {bound}" for o, bound in bounds.items())
    lines += ["", f"FP32 first directions are held to: {held}."]
    lines += ["", "Thresholds: " + ("all kept." if not report["broken"] else "exceeded:"), ""]
    lines += [f"- {words}" for words in report["broken"]]
    return "\n".join(lines).rstrip() + "\n"
