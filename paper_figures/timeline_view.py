"""A trace file, drawn: what ui.perfetto.dev shows of it, as a picture for a page. Reads the file and nothing else.

python -m paper_figures.timeline_view runs/embedded/NAME/timeline.perfetto-trace picture.png
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from paper_figures.style import figure
from thundersync.trace_file import ROOMS, Sample, Slice, read_trace

COLOURS = {
    "trajectory": "#d5d9de",
    "generate": "#8fb7dd",
    "command": "#e7b46a",
    "verify": "#c98a2b",
    "score": "#b58fc9",
    "gradient": "#0a5fa3",
    "deferred": "#5b8db8",
    "group": "#123a5e",
    "step": "#c1473f",
    "publish": "#4a4a4a",
}


def draw_trace(trace: Path, picture: Path, *, seconds: float = 20.0, start: float = 0.0) -> Path:
    """Draws `seconds` of a trace from `start` on; returns the picture's path. Raises ValueError for another file."""
    slices, samples = read_trace(trace)
    end = min(start + seconds, max(s.end for s in slices))
    rows = _rows(slices)
    heights = [max(0.16 * len(rows), 2.5), 0.6, 0.6]
    fig, (tracks, version, queue) = figure(
        3, 1, figsize=(11, sum(heights) + 0.9), sharex=True, height_ratios=heights, layout="constrained"
    )
    shown = [s for s in slices if s.start < end and s.end > start]
    _draw_slices(tracks, shown, rows)
    _draw_arrows(tracks, slices, rows, start, end)
    for axes, counter in ((version, "policy version"), (queue, "learner queue")):
        _draw_counter(axes, [s for s in samples if s.counter == counter], counter, end)
    tracks.set_xlim(start, end)
    queue.set_xlabel("Seconds on the training clock")
    kinds = list(dict.fromkeys(_kind(s) for s in shown))
    handles = [Patch(color=COLOURS[kind], label=kind) for kind in COLOURS if kind in kinds]
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=8)
    tracks.set_title(f"The trace of {trace.parent.name}, drawn", loc="left")
    picture.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(picture, dpi=130)
    return picture


def _kind(one: Slice) -> str:
    word = one.name.split()[0]
    if one.room == "learner" and word in ("source", "direct", "bind"):
        return "gradient"
    return word if word in COLOURS else "trajectory"


def _rows(slices: list[Slice]) -> dict[tuple[str, str], int]:
    """Tracks from top to bottom, as the file groups them."""
    tracks = {(s.room, s.track) for s in slices}
    return {t: i for i, t in enumerate(sorted(tracks, key=lambda t: (ROOMS.index(t[0]), len(t[1]), t[1])))}


def _draw_slices(axes: Axes, slices: list[Slice], rows: dict[tuple[str, str], int]) -> None:
    bars = defaultdict(list)
    for one in slices:
        bars[(rows[(one.room, one.track)], _kind(one))].append((one.start, one.end - one.start))
    for (row, kind), spans in sorted(bars.items(), key=lambda item: list(COLOURS).index(item[0][1])):
        edge = "white" if kind == "trajectory" else "none"
        axes.broken_barh(spans, (row - 0.42, 0.84), facecolor=COLOURS[kind], edgecolor=edge, lw=0.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [f"{track}" for _, track in rows], fontsize=6.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    for room in ROOMS:
        own = [row for (name, _), row in rows.items() if name == room]
        if own:
            axes.axhline(min(own) - 0.5, color="#999999", lw=0.6)
            axes.text(
                1.004, (min(own) + max(own)) / 2, room, transform=axes.get_yaxis_transform(), va="center", fontsize=8
            )


def _draw_arrows(axes: Axes, slices: list[Slice], rows: dict, start: float, end: float) -> None:
    """The arrows into the learner, thin: from a reward to its gradient. Those on to the step stay in the file."""
    flows = defaultdict(list)
    for one in slices:
        for number in one.flows:
            flows[number].append(one)
    for chain in flows.values():
        for a, b in zip(chain, chain[1:], strict=False):
            if a.room != "learner" and start <= a.end and b.start <= end:
                axes.plot(
                    [a.end, b.start],
                    [rows[(a.room, a.track)], rows[(b.room, b.track)]],
                    color="#333333",
                    lw=0.35,
                    alpha=0.6,
                )


def _draw_counter(axes: Axes, samples: list[Sample], name: str, end: float) -> None:
    times, values = [s.at for s in samples if s.at <= end], [s.value for s in samples if s.at <= end]
    if times:
        axes.step([*times, end], [*values, values[-1]], where="post", color="#333333", lw=1)
    axes.set_ylabel(name.replace(" ", "\n"), rotation=0, ha="right", va="center", fontsize=8)
    axes.set_ylim(0, 1.15 * max([1, *values]))
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--start", type=float, default=0.0)
    arguments = parser.parse_args()
    print(draw_trace(arguments.trace, arguments.picture, seconds=arguments.seconds, start=arguments.start))
