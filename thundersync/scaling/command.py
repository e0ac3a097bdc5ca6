"""The installed command `thundersync`.

`thundersync plan TRACE` says what gradient streaming would bring. TRACE is a run directory of ours, a .csv or .jsonl
file with the columns trajectory, group, turn, ready, service, or a folder with the two public logs; without it the
folder that THUNDERSYNC_DATA names is read. `thundersync replay SYNC THUNDERSYNC` puts two runs of ours beside what
Equation 14 makes of their traces.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from thundersync.records import RunRecord
from thundersync.scaling.plan_report import table, write
from thundersync.scaling.planner import Question, make_plan
from thundersync.scaling.releases import TURN_EAGER, TURN_FORWARD, Shares
from thundersync.scaling.replay import replay, replay_table
from thundersync.scaling.run_records import read_run_trace
from thundersync.scaling.trace import Trace
from thundersync.scaling.trace_files import GROUP_LOG, TRAINING_LOG, TraceError, read_public_logs, read_rows_trace

REPLAY = "Recorded readiness and service times through Equation 14, beside the measured steps; d of Equation 29."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Bad input is one sentence and exit status 2."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _plan(arguments: argparse.Namespace) -> None:
    """Prints the table; writes table, picture and report."""
    question = Question(
        rollout_gpus=arguments.gpus[0],
        learner_gpus=arguments.gpus[1],
        capacity=arguments.capacity,
        shares={"turn_eager": arguments.turn_eager, "turn_forward": arguments.turn_forward},
    )
    plan = make_plan(_read(arguments), question)
    print(table(plan), end="")
    print(f"\nwrote {', '.join(map(str, write(plan, arguments.results)))}")


def _replay(arguments: argparse.Namespace) -> None:
    runs = [read_run_trace(path, arguments.warmup) for path in (arguments.sync, arguments.thundersync)]
    print(replay_table(replay(*runs)), end="")


def _read(arguments: argparse.Namespace) -> Trace:
    path = arguments.trace
    if path is None:
        if "THUNDERSYNC_DATA" not in os.environ:
            raise TraceError("no TRACE: name one, or set THUNDERSYNC_DATA to the folder of the public logs")
        path = Path(os.environ["THUNDERSYNC_DATA"])
    if not path.is_dir():
        return read_rows_trace(path, arguments.suffix)
    if (path / RunRecord.FILE).exists():
        return read_run_trace(path, arguments.warmup)
    if (path / GROUP_LOG).exists() or (path / TRAINING_LOG).exists():
        return read_public_logs(path)
    raise TraceError(f"{path} holds neither {RunRecord.FILE} of a run nor {GROUP_LOG} and {TRAINING_LOG}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="thundersync", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="predict what streaming would bring on a trace", description=__doc__,
                               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    plan.add_argument("trace", type=Path, nargs="?", metavar="TRACE")
    plan.add_argument("--gpus", type=_gpus, default=(4, 4), metavar="R+L", help="rollout and learner GPUs now (4+4)")
    plan.add_argument("--capacity", type=int, help="trajectories rolled out at once; all of an update by default")
    plan.add_argument("--suffix", type=float, default=0.0, help="P of a .csv or .jsonl trace, seconds")
    plan.add_argument("--warmup", type=int, default=0, help="updates of a run directory to leave out")
    for name, shares in (("--turn-eager", TURN_EAGER), ("--turn-forward", TURN_FORWARD)):
        text = f"EARLY,LATE learner work over a plain pass ({shares.early:g},{shares.late:g})"
        plan.add_argument(name, type=_shares, default=shares, metavar="EARLY,LATE", help=text)
    plan.add_argument("--results", type=Path, default=Path("results/plan"), help="folder to write (results/plan)")
    plan.set_defaults(run=_plan)
    pair = commands.add_parser("replay", help="two of our runs beside Equation 14", description=REPLAY)
    pair.add_argument("sync", type=Path, metavar="SYNC", help="directory of a Sync run")
    pair.add_argument("thundersync", type=Path, metavar="THUNDERSYNC", help="of a ThunderSync run, same workload")
    pair.add_argument("--warmup", type=int, default=1, help="updates of each run to leave out (1)")
    pair.set_defaults(run=_replay)
    return parser


def _gpus(text: str) -> tuple[int, int]:
    try:
        rollout, learner = map(int, text.split("+"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 4+4") from None
    return rollout, learner


def _shares(text: str) -> Shares:
    try:
        early, late = map(float, text.split(","))
        return Shares(early=early, late=late)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 1.09,0.81: {error}") from None


if __name__ == "__main__":
    raise SystemExit(main())
