"""Archives: how files enter and leave a sandbox."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

from thundersync.environments.bubblewrap import INSIDE_USER

FIXED_EPOCH = 1767225600
"""2026-01-01 00:00:00 UTC, the time at which a sandbox's clock stands."""


def pack(source: Path | Mapping[str, bytes]) -> bytes:
    """A tar archive of a directory, or of contents by relative path, that depends on nothing else.

    Entries are sorted, times and owners fixed; of the permissions only the owner's execute bit is kept.
    """
    if isinstance(source, Path):
        contents = {str(p.relative_to(source)): p.read_bytes() for p in source.rglob("*") if p.is_file()}
        executable = {name for name in contents if os.access(source / name, os.X_OK)}
    else:
        contents, executable = dict(source), set()
    folders = {str(parent) for name in contents for parent in Path(name).parents}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(folders | contents.keys()):
            info = tarfile.TarInfo(name)
            info.uid = info.gid = INSIDE_USER
            info.mtime = FIXED_EPOCH
            if name in contents:
                info.size = len(contents[name])
                info.mode = 0o755 if name in executable else 0o644
                archive.addfile(info, io.BytesIO(contents[name]))
            else:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
    return buffer.getvalue()
