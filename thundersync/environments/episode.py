"""An attempt at a task in a bubblewrap sandbox: what all task formats share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from thundersync.environments.sandbox import CommandResult, FilesRefused, Sandbox, SandboxLimits
from thundersync.environments.verifier import run_tests
from thundersync.environments.workload import Observation, Verdict

LIMIT_TEXT = "[the command met its time limit]\n"
ENDED_TEXT = "[the session has ended]\n"

_LONG_LISTING = re.compile(r"^([-dlbcps][-rwxsStT]{9}[+.@]?\s.*?)\s[A-Z][a-z]{2} [ \d]\d (?: \d{4}|\d\d:\d\d) ", re.M)
_NANOSECONDS = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9} [-+]\d{4}\b")
_DEVICE = re.compile(r"^Device: \S+", re.M)
_SHELL_TIMES = re.compile(r"^((?:real|user|sys)\s+)\d+m\d+[.,]\d+s$", re.M)
_IN_SECONDS = re.compile(r"\bin \d+\.\d+ ?s(econds)?\b")


def observation_text(result: CommandResult) -> str:
    """The output without what is chance: file times that the fixed clock does not reach, device numbers, durations."""
    if result.timed_out:
        return LIMIT_TEXT
    text = _LONG_LISTING.sub(r"\1 Jan  1  2026 ", result.output)
    text = _NANOSECONDS.sub("2026-01-01 00:00:00.000000000 +0000", text)
    text = _DEVICE.sub("Device: 0,0", text)
    text = _SHELL_TIMES.sub(r"\g<1>0m0.000s", text)
    return _IN_SECONDS.sub("in 0.00s", text)


@dataclass(slots=True)
class SandboxEpisode:
    """Implements `workload.Episode`. `grade` turns the results of the designated tests into reward and success."""

    sandbox: Sandbox
    tests: Mapping[str, str]
    """Path -> source of the verifier's files."""
    designated: tuple[str, ...]
    """Names `path::test` that must all pass; results of other tests are ignored."""
    grade: Callable[[dict[str, bool]], float]
    verified: bool = False

    @classmethod
    async def open(
        cls,
        start: bytes,
        *,
        tests: Mapping[str, str],
        designated: tuple[str, ...],
        grade: Callable[[dict[str, bool]], float],
        limits: SandboxLimits,
    ) -> SandboxEpisode:
        return cls(await Sandbox.open(start, limits), tests, designated, grade)

    async def run(self, command: str) -> Observation:
        if self.verified:
            raise RuntimeError("the episode has been verified: open a new one to run commands")
        result = await self.sandbox.run(command)
        text = ENDED_TEXT if self.sandbox.ended else observation_text(result)
        return Observation(text=text, exit_code=result.exit_code)

    async def verify(self) -> Verdict:
        """Raises SandboxError where the machine failed, which is no failure of the agent (CASES D11)."""
        self.verified = True
        try:
            files = await self.sandbox.export()
            # The kernel takes a while to dissolve namespaces; grading need not wait for it.
            results, _ = await asyncio.gather(run_tests(files, self.tests), self.sandbox.close())
        except FilesRefused:
            # The agent ended its own session, or left files that cannot be unpacked: nothing to grade.
            results = {}
        tests = {name: results.get(name, False) for name in self.designated}
        return Verdict(reward=self.grade(tests), success=all(tests.values()), tests=tests)

    async def close(self) -> None:
        self.verified = True
        await self.sandbox.close()
