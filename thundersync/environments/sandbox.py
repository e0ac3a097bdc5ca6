"""A throw-away room for model-written commands: bubblewrap, one supervisor shell per trajectory.

    this process                       | inside: own user, pid, network, ipc namespaces, unprivileged
    -----------------------------------+------------------------------------------------------------------
    request pipe  (mode NUL command NUL) --> stdin    supervisor bash: runs `bash -c command`, then kills every
    control pipe  <-- exit code            stdout   other process, then answers
    output pipe   <-- stdout and stderr    stderr   of the command
    memory file   <-> archive or script    fd N     only open to the modes that use it

The system is read-only, /work and /tmp are tmpfs of a fixed size, there is no network and no /proc (it would show the
machine's load, and other processes' memory). What a command may observe is a function of the files and the commands:
clock and hash seed are fixed, and its limit counts CPU seconds. Wall time is a distant backstop only.

An agent that fights its supervisor can spoil its own session and nothing else: `export` returns file contents, and
verification runs in a new sandbox made from them.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from thundersync.environments.archive import pack
from thundersync.environments.bubblewrap import SandboxLimits, SandboxMissing, command_line, require_sandbox

__all__ = [
    "CommandResult",
    "FilesRefused",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "SandboxMissing",
    "pack",
    "require_sandbox",
]

OUTPUT_HARD_CAP = 64 << 20
"""Bytes of output after which the sandbox is ended instead of drained further."""


class SandboxError(RuntimeError):
    """The sandbox did not start or did not answer: the machine's fault, never an agent's."""


class FilesRefused(SandboxError):
    """Files that cannot be read back or unpacked: the session that holds them is over, or they do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    output: str
    """stdout and stderr merged, UTF-8 with replacement."""
    exit_code: int
    timed_out: bool
    """The command met a limit of time or ended the session; `output` is then empty: its length would be chance."""


@dataclass(slots=True)
class Sandbox:
    """One session. Use `open` and `close`, or `async with await Sandbox.open(...)`."""

    limits: SandboxLimits
    _process: subprocess.Popen
    _memory: int
    _output: _Collector
    _control: bytearray = field(default_factory=bytearray)
    _answer: asyncio.Future | None = None
    _ended: bool = False
    _stalled: bool = False
    """It met the wall backstop."""

    @classmethod
    async def open(cls, source: Path | bytes, limits: SandboxLimits) -> Sandbox:
        """Starts a session whose /work holds a copy of `source`: a directory, or what `pack` or `export` returned.

        Raises SandboxMissing, SandboxError when it does not start, FilesRefused when it does not take the files.
        """
        require_sandbox()
        archive = source if isinstance(source, bytes) else pack(source)
        memory = os.memfd_create("sandbox", os.MFD_CLOEXEC)
        process = subprocess.Popen(
            command_line(limits, memory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(memory,),
            bufsize=0,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            cwd="/",
            process_group=0,  # Ctrl-C in a terminal is for this process, which ends its sandboxes in its own time
        )
        sandbox = cls(limits, process, memory, _Collector(limits.output_bytes))
        sandbox._listen()
        try:
            code = await sandbox._request("import", "", archive)
            if code != 0:
                text = sandbox._output.take().decode(errors="replace").strip()
                if code is None:
                    raise SandboxError(f"the sandbox did not start: {text}")
                raise FilesRefused(f"the files did not fit into the sandbox (code {code}): {text}")
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def ended(self) -> bool:
        """The session is over: closed, met the wall backstop or the output cap, or killed by its own command."""
        return self._ended

    async def run(self, command: str, *, stdin: bytes | None = None) -> CommandResult:
        """Runs `bash -c command` in /work and waits until none of its processes is left.

        With `stdin` the command reads it, and runs on the true clock: that form is for verifiers.
        A sandbox that has ended answers exit code 137 and no output.
        """
        if "\0" in command:
            return CommandResult(output="bash: command contains a NUL byte\n", exit_code=2, timed_out=False)
        code = await self._request("command" if stdin is None else "script", command, stdin)
        raw = self._output.take()
        if code is None:
            await self.close()
            return CommandResult(output="", exit_code=128 + signal.SIGKILL, timed_out=True)
        if code == 128 + signal.SIGXCPU:
            return CommandResult(output="", exit_code=code, timed_out=True)
        return CommandResult(output=raw.decode(errors="replace"), exit_code=code, timed_out=False)

    async def export(self) -> bytes:
        """A tar archive of /work. Raises FilesRefused if the session has ended, SandboxError if it does not answer."""
        ended = self._ended
        if await self._request("export", "", b"") != 0:
            if self._stalled and not ended:
                raise SandboxError(f"the sandbox did not give its files back within {self.limits.wall_seconds:g} s")
            raise FilesRefused("the session has ended: its files cannot be read back")
        size = os.fstat(self._memory).st_size
        return os.pread(self._memory, min(size, 2 * self.limits.work_bytes), 0)

    async def close(self) -> None:
        """Kills every process of the session; its files are gone. May be called twice."""
        self._ended = True
        if self._process.stdin.closed:
            return
        loop = asyncio.get_running_loop()
        for pipe in (self._process.stdout, self._process.stderr):
            loop.remove_reader(pipe.fileno())
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            pipe.close()
        os.close(self._memory)
        self._process.kill()
        await _reap(self._process)

    async def _request(self, mode: str, command: str, data: bytes | None) -> int | None:
        """The exit code, or None when the session ended instead of answering."""
        if self._ended:
            return None
        loop = asyncio.get_running_loop()
        if data is not None:
            os.ftruncate(self._memory, 0)
            os.pwrite(self._memory, data, 0)
            os.lseek(self._memory, 0, os.SEEK_SET)
        self._answer = loop.create_future()
        backstop = loop.call_later(self.limits.wall_seconds, self._stall)
        try:
            self._process.stdin.write(f"{mode}\0{command}\0".encode(errors="replace"))
            return await self._answer
        except BrokenPipeError:
            self._end()
            return None
        except asyncio.CancelledError:
            # The answer of an abandoned command must not be taken for that of the next.
            self._end()
            raise
        finally:
            backstop.cancel()
            self._answer = None

    def _stall(self) -> None:
        self._stalled = True
        self._end()

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for pipe, callback in ((self._process.stdout, self._on_control), (self._process.stderr, self._on_output)):
            os.set_blocking(pipe.fileno(), False)
            loop.add_reader(pipe.fileno(), callback)
        # A roomy pipe lets most commands finish without waiting for this process to read.
        fcntl.fcntl(self._process.stderr.fileno(), fcntl.F_SETPIPE_SZ, 256 << 10)

    def _on_control(self) -> None:
        data = self._process.stdout.read(4096)
        if not data:
            self._drain()
            self._end()
            return
        self._control += data
        if self._control.endswith(b"\n"):
            text = self._control.decode(errors="replace").strip()
            self._control.clear()
            # Every writer but the idle supervisor is dead, so what is in the pipe now is all there will be.
            self._drain()
            if not text.isdecimal():
                self._end()
            elif self._answer is not None and not self._answer.done():
                self._answer.set_result(int(text) & 0xFF)

    def _on_output(self) -> None:
        data = self._process.stderr.read(256 << 10)
        if data == b"":
            asyncio.get_running_loop().remove_reader(self._process.stderr.fileno())
        elif data:
            self._output.add(data)
            if self._output.total > OUTPUT_HARD_CAP:
                self._end()

    def _drain(self) -> None:
        while data := self._process.stderr.read(256 << 10):
            self._output.add(data)

    def _end(self) -> None:
        self._ended = True
        self._process.kill()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)


class _Collector:
    """Keeps the head and the tail of a byte stream, equally, whatever the pieces it arrives in."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        self._head += data[: max(room, 0)]
        self._tail += data[max(room, 0) :][-self._half :]
        del self._tail[: -self._half]

    def take(self) -> bytes:
        left_out = self.total - len(self._head) - len(self._tail)
        mark = b"\n[%d bytes left out]\n" % left_out if left_out else b""
        whole = bytes(self._head) + mark + bytes(self._tail)
        self._head, self._tail, self.total = bytearray(), bytearray(), 0
        return whole


async def _reap(process: subprocess.Popen) -> None:
    """Waits for a killed process without blocking the event loop."""
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(process.pid)
    gone = loop.create_future()
    loop.add_reader(handle, lambda: gone.done() or gone.set_result(None))
    try:
        await gone
    finally:
        loop.remove_reader(handle)
        os.close(handle)
        process.wait()
