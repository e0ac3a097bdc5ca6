"""Unified diffs against difflib's writer, and against the `patch` program where there is one."""

import difflib
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thundersync.environments.patches import apply_patch

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "--- x\n", "+++ y\n", "@@ -1 +1 @@\n"]), max_size=12)


def diff(before, after, name="f.py", context=3):
    return "".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", n=context))


@given(LINES, LINES, st.integers(0, 3))
def test_it_inverts_difflib(before, after, context):
    if before == after:
        return
    patch = diff(before, after, context=context)
    files = {"f.py": "".join(before).encode(), "other": b"kept"}
    assert apply_patch(files, patch) == {"f.py": "".join(after).encode(), "other": b"kept"}


def test_several_files_created_and_deleted():
    patch = (
        "diff --git a/one b/one\nindex 1..2 100644\n" + diff(["x\n"], ["y\n"], "one") + "diff --git a/new b/new\n"
        "new file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+p\n+q\n"
        "diff --git a/old b/old\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-z\n"
    )
    assert apply_patch({"one": b"x\n", "old": b"z\n"}, patch) == {"one": b"y\n", "new": b"p\nq\n"}


def test_missing_newline_at_the_end():
    patch = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n\\ No newline at end of file\n"
    assert apply_patch({"f": b"x"}, patch) == {"f": b"y"}


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program `patch`")
@given(LINES, LINES)
def test_it_agrees_with_patch(tmp_path_factory, before, after):
    if before == after or not before or not after:
        return
    folder = tmp_path_factory.mktemp("patch")
    (folder / "f.py").write_text("".join(before))
    subprocess.run(["patch", "-p1", "-s"], input=diff(before, after), text=True, cwd=folder, check=True)
    assert (
        apply_patch({"f.py": "".join(before).encode()}, diff(before, after))["f.py"] == (folder / "f.py").read_bytes()
    )


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("", "changes no file"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-other\n+y\n", "line 4.*does not match"),
        ("--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n-x\n", "cut short"),
        ("--- a/g\n+++ b/g\n@@ -1 +1 @@\n-x\n+y\n", "g is not in the repository"),
        ("--- a/f\n@@ -1 +1 @@\n-x\n+y\n", "no `\\+\\+\\+` line"),
        ("rename from f\n", "not supported"),
    ],
)
def test_what_does_not_apply_is_refused(patch, message):
    with pytest.raises(ValueError, match=message):
        apply_patch({"f": b"x\n"}, patch)
