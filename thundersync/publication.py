"""Publication: over only when every replica serves the new tensors (Algorithm 1, line 27).

A replica loads the weights, empties its prefix cache and answers with the version and the hash of the tensors that it
computes with. Anything else, or no answer in time, is an error that names the replica, and the version stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from thundersync.ports import PublicationError


class Acknowledgement(Protocol):
    """What a replica answers: `thundersync.rollout.engine.ServedPolicy`."""

    version: int
    policy_hash: str
    cleared: bool


@dataclass(slots=True)
class AcknowledgedPublisher:
    """The Publisher port over any way of reaching a replica.

    `replicas` maps a replica's name to a call that makes it load a version.
    """

    replicas: Mapping[str, Callable[[int], Awaitable[Acknowledgement]]]
    timeout_s: float
    served_version: int = 0

    async def publish(self, version: int, policy_hash: str) -> None:
        answers = await asyncio.gather(
            *(self._load(name, load, version, policy_hash) for name, load in self.replicas.items()),
            return_exceptions=True,
        )
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures:
            raise PublicationError("; ".join(str(failure) for failure in failures)) from failures[0]
        self.served_version = version

    async def _load(
        self, name: str, load: Callable[[int], Awaitable[Acknowledgement]], version: int, policy_hash: str
    ) -> None:
        try:
            answer = await asyncio.wait_for(load(version), self.timeout_s)
        except TimeoutError:
            raise PublicationError(
                f"replica {name} did not acknowledge version {version} within {self.timeout_s:g} s "
                "(scale.acknowledge_timeout_s)"
            ) from None
        except Exception as error:
            raise PublicationError(f"replica {name} could not load version {version}: {error}") from error
        if answer.version != version or answer.policy_hash != policy_hash or not answer.cleared:
            raise PublicationError(
                f"replica {name} serves version {answer.version} with hash {answer.policy_hash[:12]}"
                f"{'' if answer.cleared else ' and an old prefix cache'}; "
                f"version {version} with hash {policy_hash[:12]} was published"
            )
