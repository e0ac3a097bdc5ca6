"""Writes a generated task set into the cache once, under the digest of its files."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_once(root: Path, name: str, files: Mapping[str, str]) -> Path:
    """The directory `root/NAME-DIGEST12` holding `files` (text by relative path); complete, or not there at all.

    The digest covers every path and byte, so a changed generator or seed never meets an old cache.
    """
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path}\0{len(files[path])}\0{files[path]}\0".encode())
    target = root / f"{name}-{digest.hexdigest()[:12]}"
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
    try:
        for path, text in files.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text)
        draft.chmod(0o755)
        os.rename(draft, target)
    except OSError:
        # Somebody else finished the same set first.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
