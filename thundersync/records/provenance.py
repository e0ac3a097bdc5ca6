"""Where a result comes from: commit, versions, digests. Nothing here falls back to "unknown"."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve()


def utc_now() -> datetime:
    return datetime.now(UTC)


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form: sorted keys, no spaces, no NaN."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def source_commit(explicit: str | None = None) -> str:
    """The commit of this source tree, with `+modified` when tracked files differ from it.

    A tree without git needs `explicit`; an `explicit` that contradicts git is refused. Raises ValueError.
    """
    if explicit is not None and not re.fullmatch(r"[0-9a-f]{40}", explicit):
        raise ValueError(f"--commit takes 40 hexadecimal digits, not {explicit!r}")
    # An installed package inside somebody's repository is not tracked there: that repository is not our provenance.
    if _git("ls-files", "--error-unmatch", SOURCE.name) is None or (head := _git("rev-parse", "HEAD")) is None:
        if explicit is None:
            raise ValueError("the commit of the source tree cannot be known: run from a git clone, or give --commit")
        return explicit
    if explicit is not None and explicit != head:
        raise ValueError(f"--commit {explicit} contradicts git, which says {head}: leave it out")
    status = _git("status", "--porcelain", "--untracked-files=no")
    if status is None:
        raise ValueError("git status failed in the source tree: repair the clone before recording a run")
    return head + ("+modified" if status else "")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=SOURCE.parent, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions; PackageNotFoundError names one that is absent."""
    return {name: version(name) for name in sorted(names)}


def platform_text() -> str:
    return f"{platform.platform()} {platform.machine()}"
