"""Traces as files: what is read, and that damage is named by file and line."""

import json

import pytest

from thundersync.scaling.trace import WHOLE
from thundersync.scaling.trace_files import GROUP_LOG, TRAINING_LOG, TraceError, read_public_logs, read_rows_trace

ROWS = """trajectory,group,turn,ready,service
a,x,0,1.5,0.5
a,x,1,2.5,0.5
b,x,,4,1
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_and_json_lines_tell_the_same(tmp_path):
    one = read_rows_trace(write(tmp_path / "t.csv", ROWS), suffix=0.25)
    rows = [
        {"trajectory": "a", "group": "x", "turn": 0, "ready": 1.5, "service": 0.5},
        {"trajectory": "a", "group": "x", "turn": 1, "ready": 2.5, "service": 0.5},
        {"trajectory": "b", "group": "x", "turn": None, "ready": 4, "service": 1},
    ]
    other = read_rows_trace(write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)) + "\n"), suffix=0.25)
    assert one.steps == other.steps
    (step,) = one.steps
    assert (step.rollout, step.suffix, one.unit) == (4, 0.25, "turn")
    assert [(job.trajectory, job.turn) for job in step.jobs] == [(0, 0), (0, 1), (1, WHOLE)]


def test_updates_ranks_and_groups_alone(tmp_path):
    text = "group,ready,service,update,rank\n0,3,1,0,0\n1,5,2,0,1\n0,4,1,2,0\n"
    trace = read_rows_trace(write(tmp_path / "t.csv", text))
    assert [(s.update, s.rollout, s.learner, s.sync_step) for s in trace.steps] == [(0, 5, 2, 7), (2, 4, 1, 5)]
    assert trace.unit == "group" and "--suffix" in trace.notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROWS.replace("ready", "arrived", 1), r"t\.csv, line 2: .*'arrived'.*valid are group, trajectory, turn, ready"),
        ("group,ready\n0,1\n", r"line 2: column 'service' is missing; valid are"),
        (ROWS.replace("2.5", "late"), r"line 3: damaged row, ready is 'late'"),
        (ROWS.replace("2.5", "nan"), r"line 3: damaged row, ready is 'nan'"),
        (ROWS.replace("2.5", "-1"), r"line 3: damaged row, ready is '-1'"),
        (ROWS.replace("b,x,,4,1", "b,x,,4"), r"line 4: damaged row, it has more or fewer fields"),
        (ROWS.replace("b,x,,4,1", "b,x,,4,1,9"), r"line 4: damaged row, it has more or fewer fields"),
        ("group,ready,service\n", "has no rows"),
    ],
)
def test_damage_is_named(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        read_rows_trace(write(tmp_path / "t.csv", text))


def test_other_damage_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"t\.jsonl, line 2: damaged row, not JSON"):
        read_rows_trace(write(tmp_path / "t.jsonl", '{"group": 0, "ready": 1, "service": 1}\n{"group": 0,\n'))
    with pytest.raises(TraceError, match="is missing"):
        read_rows_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match=r"ends in \.csv or \.jsonl"):
        read_rows_trace(tmp_path / "t.parquet")
    (tmp_path / "b.csv").write_bytes(b"group,ready,service\n\xff,1,1\n")
    with pytest.raises(TraceError, match="not UTF-8 at byte 20"):
        read_rows_trace(tmp_path / "b.csv")


GROUPS = """update,group,rollout_latency_s,samples,output_tokens,finished_elapsed_s,submitted_elapsed_s
0,0,4,4,10,5,1
1,0,2,4,10,22,20
1,1,8,4,10,28,20
"""
TRAINING = "update,train_latency_s,finished_elapsed_s,published_elapsed_s\n0,3,9,10\n1,6,35,36\n"


def test_public_logs_by_hand(tmp_path):
    """Update 1: groups at 2 and 8 with 3 of training each, 1 to publish: 8 + 6 + 1 as Sync, 8 + 3 + 1 streamed, and 26
    from publication to publication."""
    write(tmp_path / GROUP_LOG, GROUPS), write(tmp_path / TRAINING_LOG, TRAINING)
    (step,) = read_public_logs(tmp_path).steps
    assert (step.update, step.sync_step, step.streamed_step, step.observed) == (1, 15, 12, 26)


def test_public_logs_that_do_not_fit_are_refused(tmp_path):
    write(tmp_path / GROUP_LOG, GROUPS), write(tmp_path / TRAINING_LOG, TRAINING + "2,6,45,46\n")
    with pytest.raises(TraceError, match=f"{GROUP_LOG} has no group of update 2"):
        read_public_logs(tmp_path)
    write(tmp_path / TRAINING_LOG, TRAINING.replace("35", "x"))
    with pytest.raises(TraceError, match=f"{TRAINING_LOG}, line 3: damaged row, finished_elapsed_s is 'x'"):
        read_public_logs(tmp_path)
