"""Publication over replicas that misbehave (CASES D7 and D8)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from thundersync.ports import PublicationError
from thundersync.publication import AcknowledgedPublisher


@dataclass
class Served:
    version: int
    policy_hash: str
    cleared: bool = True


def publisher(*loads, timeout_s=0.05):
    replicas = {f"replica-{i}": load for i, load in enumerate(loads)}
    return AcknowledgedPublisher(replicas=replicas, timeout_s=timeout_s)


async def good(version):
    return Served(version, f"hash-of-{version}")


async def silent(version):
    await asyncio.Event().wait()


async def broken(version):
    raise RuntimeError("HTTP 500")


async def other_bytes(version):
    return Served(version, "hash-of-something-else")


async def old_version(version):
    return Served(version - 1, f"hash-of-{version}")


async def stale_cache(version):
    return Served(version, f"hash-of-{version}", cleared=False)


def test_every_replica_acknowledges():
    subject = publisher(good, good, good)
    asyncio.run(subject.publish(1, "hash-of-1"))
    assert subject.served_version == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (silent, "replica-1 did not acknowledge version 1 within 0.05 s"),
        (broken, "replica-1 could not load version 1: HTTP 500"),
        (other_bytes, "replica-1 serves version 1 with hash hash-of-some"),
        (old_version, "replica-1 serves version 0"),
        (stale_cache, "replica-1 .* an old prefix cache"),
    ],
)
def test_a_faulty_replica_is_named_and_the_version_does_not_advance(fault, message):
    subject = publisher(good, fault, good)
    with pytest.raises(PublicationError, match=message):
        asyncio.run(subject.publish(1, "hash-of-1"))
    assert subject.served_version == 0


def test_after_recovery_a_retry_publishes_the_same_version_once():
    answers = iter([silent, broken, good])

    async def recovering(version):
        return await next(answers)(version)

    subject = publisher(good, recovering, good)
    for _ in range(2):
        with pytest.raises(PublicationError, match="replica-1"):
            asyncio.run(subject.publish(1, "hash-of-1"))
        assert subject.served_version == 0
    asyncio.run(subject.publish(1, "hash-of-1"))
    assert subject.served_version == 1
