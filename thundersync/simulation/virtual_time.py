"""An asyncio event loop whose clock jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any


class Deadlock(RuntimeError):
    """Nothing is ready and no timer will ever fire: virtual time cannot go on."""


class _JumpingSelector(selectors.SelectSelector):
    """Waits for nothing and moves the loop's clock on by the time that it was asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list:
        if timeout is not None and timeout > 0:
            self.now += timeout
        return []  # no sockets on virtual time


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`asyncio.sleep` and timers work as always, on virtual seconds starting at zero."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def _run_once(self) -> None:
        # A real loop would block in select here until the outside world wakes it; on virtual time no one ever will.
        if not self._ready and (not self._scheduled or self._scheduled[0].when() == math.inf):
            raise Deadlock("every coroutine waits for something that no one will do")
        super()._run_once()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine on virtual time; raises Deadlock instead of hanging."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
