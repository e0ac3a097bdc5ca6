"""The four schedules of Figure 2: `sync`, `async`, `fully_async`, `thundersync`; each one page."""

from thundersync.schedules.async_ import run_async
from thundersync.schedules.feed import Release
from thundersync.schedules.fully_async import run_fully_async
from thundersync.schedules.parts import Parts
from thundersync.schedules.sync import run_sync
from thundersync.schedules.thundersync import run_thundersync

SCHEDULES = {
    "sync": run_sync,
    "async": run_async,
    "fully_async": run_fully_async,
    "thundersync": run_thundersync,
}

__all__ = ["SCHEDULES", "Parts", "Release", "run_async", "run_fully_async", "run_sync", "run_thundersync"]
