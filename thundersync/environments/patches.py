"""Applies unified diffs: SWE-smith's `patch` field makes the start state out of the base repository."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def apply_patch(files: Mapping[str, bytes], patch: str) -> dict[str, bytes]:
    """A copy of `files` (contents by path) with the unified diff applied; a file may be changed, created or deleted.

    Positions and context must match exactly. Raises ValueError with the line of the patch that does not.
    """
    result = dict(files)
    lines = patch.splitlines(keepends=True)
    at = 0
    touched = 0
    while at < len(lines):
        if not lines[at].startswith("--- "):
            if lines[at].startswith(("rename ", "copy ", "GIT binary", "Binary files")):
                raise ValueError(f"patch line {at + 1}: {lines[at].strip()!r} is not supported")
            at += 1
            continue
        if at + 1 >= len(lines) or not lines[at + 1].startswith("+++ "):
            raise ValueError(f"patch line {at + 1}: no `+++` line follows")
        old, new = _path(lines[at]), _path(lines[at + 1])
        if old is not None and old not in result:
            raise ValueError(f"patch line {at + 1}: {old} is not in the repository")
        before = result[old].decode().splitlines(keepends=True) if old is not None else []
        after, at = _apply_hunks(before, lines, at + 2)
        touched += 1
        if old is not None:
            del result[old]
        if new is not None:
            result[new] = "".join(after).encode()
    if not touched:
        raise ValueError("the patch changes no file")
    return result


def _path(line: str) -> str | None:
    name = line[4:].split("\t")[0].strip()
    return None if name == "/dev/null" else re.sub(r"^[ab]/", "", name)


def _apply_hunks(before: list[str], lines: list[str], at: int) -> tuple[list[str], int]:
    """The patched lines, and the index of the first patch line after the file's hunks."""
    after: list[str] = []
    taken = 0
    while at < len(lines) and (header := _HUNK.match(lines[at])):
        start, old_left = int(header[1]), int(header[2] or 1)
        new_left = int(header[4] or 1)
        after += before[taken : start - 1 if old_left else start]
        taken = start - 1 if old_left else start
        at += 1
        while old_left or new_left:
            if at >= len(lines):
                raise ValueError(f"patch line {at}: the hunk is cut short")
            sign, text = lines[at][:1], lines[at][1:]
            if at + 1 < len(lines) and lines[at + 1].startswith("\\"):
                text = text.removesuffix("\n")
            if sign in " -":
                if taken >= len(before) or before[taken] != text:
                    raise ValueError(f"patch line {at + 1}: {lines[at].rstrip()!r} does not match the file")
                taken += 1
                old_left -= 1
            if sign in " +":
                after.append(text)
                new_left -= 1
            if sign not in (" ", "-", "+"):
                raise ValueError(f"patch line {at + 1}: {lines[at].rstrip()!r} is not part of a hunk")
            at += 2 if at + 1 < len(lines) and lines[at + 1].startswith("\\") else 1
    return after + before[taken:], at
