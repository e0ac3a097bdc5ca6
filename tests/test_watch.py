"""Silence ends in a named error; a sign of life moves the deadline; nothing missing means no error."""

from __future__ import annotations

import asyncio

import pytest

from thundersync.simulation.virtual_time import run
from thundersync.watch import Silence

pytestmark = pytest.mark.timeout(20)  # on virtual time; a watch that never fires would wait for ever


class Missing(RuntimeError):
    pass


def silence(limit_s=10.0, missing=lambda: True):
    return Silence(limit_s, lambda: Missing("all of it") if missing() else None)


async def wait(subject, seconds):
    with subject.waiting():
        await asyncio.sleep(seconds)


def test_a_wait_beyond_the_limit_is_ended_at_the_limit():
    async def main():
        subject = silence()
        with pytest.raises(Missing, match="all of it"):
            await wait(subject, 11)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(10)


def test_slow_work_is_no_silence_while_other_work_ends():
    async def main():
        subject = silence()
        slow = asyncio.ensure_future(wait(subject, 35))
        for _ in range(4):
            await wait(subject, 9)
        await slow

    run(main())


def test_every_waiting_task_is_told():
    async def main():
        subject = silence()
        return await asyncio.gather(*(wait(subject, 100) for _ in range(3)), return_exceptions=True)

    assert [type(found) for found in run(main())] == [Missing] * 3


def test_the_limit_counts_from_the_wait_not_from_an_idle_time_before_it():
    async def main():
        subject = silence()
        await wait(subject, 1)
        await asyncio.sleep(1000)
        await wait(subject, 9.5)

    run(main())


def test_nothing_missing_is_no_error_until_something_is():
    missing = []

    async def main():
        subject = silence(missing=lambda: missing)
        waiting = asyncio.ensure_future(wait(subject, 1000))
        await asyncio.sleep(55)
        assert not waiting.done()
        missing.append("something")
        with pytest.raises(Missing):
            await waiting
        return asyncio.get_running_loop().time()

    assert 55 < run(main()) <= 65 + 1e-6


def test_a_cancellation_from_outside_stays_one():
    async def main():
        task = asyncio.ensure_future(wait(silence(), 5))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
