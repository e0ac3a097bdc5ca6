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
import functools
import io
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FIXED_TIME = "2026-01-01 00:00:00"
FIXED_EPOCH = 1767225600
NOBODY = 65534
INSIDE_USER = 1000
OUTPUT_HARD_CAP = 64 << 20
"""Bytes of output after which the sandbox is ended instead of drained further."""


class SandboxMissing(RuntimeError):
    """The machine lacks what the sandbox needs; the sentence says what to install."""


class SandboxError(RuntimeError):
    """The sandbox did not start, or its files could not be read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Per command, except `work_bytes`, which is per sandbox."""

    cpu_seconds: int = 2
    """CPU time of each process of a command."""
    wall_seconds: float = 60.0
    """Backstop for commands that wait instead of computing; a command that meets it ends the sandbox."""
    memory_bytes: int = 256 << 20
    """Address space of each process."""
    processes: int = 48
    """Processes alive at once, the supervisor included."""
    work_bytes: int = 32 << 20
    """Size of /work and of /tmp, each, and of any single file."""
    output_bytes: int = 16 << 10
    """Output that is returned; of longer output the middle is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    output: str
    """stdout and stderr merged, UTF-8 with replacement."""
    exit_code: int
    timed_out: bool
    """The command met a limit of time or ended the session; `output` is then empty: its length would be chance."""


# `exec` inside the subshell keeps a command to one process; the supervisor's own notices of deaths go to /dev/null.
_SUPERVISOR = r"""
exec {{out}}>&2 2>/dev/null
ulimit -c 0 -u {processes} -v {memory_kib} -f {file_kib}
start() {{
  ulimit -S -t {cpu}
  ulimit -H -t {cpu_hard}
  exec bash -c "$1" >&$out 2>&$out {{out}}>&- {memory}>&-
}}
while IFS= read -r -d '' mode && IFS= read -r -d '' command; do
  case $mode in
    command) (export LD_PRELOAD={preload}; start "$command" </dev/null) ;;
    script) (start "$command" <&{memory}) ;;
    import) tar -xf - <&{memory} 2>&$out ;;
    export) tar -cf - . >&{memory} 2>&$out ;;
  esac
  code=$?
  kill -9 -1
  echo $code
done
"""


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


def _readable_by_all(path: Path) -> bool:
    """Whether the unprivileged user may read the path: every directory above it lets others pass."""
    return os.geteuid() != 0 or all(part.stat().st_mode & 0o005 == 0o005 for part in (path, *path.parents))


@functools.cache
def sandbox_python() -> Path:
    """The interpreter inside: the system's own when it is 3.11 or later (it starts fastest), else that of this process.

    Raises SandboxMissing when neither can be used.
    """
    system = Path("/usr/bin/python3")
    if system.exists():
        probe = [str(system), "-I", "-S", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        if subprocess.run(probe, stderr=subprocess.DEVNULL).returncode == 0:
            return system
    own = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    if own.exists() and _readable_by_all(Path(sys.base_prefix)):
        return own
    raise SandboxMissing(
        f"no Python for the sandbox: install Python 3.11 or later as /usr/bin/python3, or make {sys.base_prefix} "
        "readable by the unprivileged user nobody"
    )


@functools.cache
def _faketime_library() -> Path:
    for folder in ("/usr/lib", "/usr/lib64"):
        for path in sorted(Path(folder).glob("**/faketime/libfaketime.so.1"))[:1]:
            return path
    raise SandboxMissing("no libfaketime: install it with `apt-get install -y faketime` (Debian, Ubuntu)")


@functools.cache
def require_sandbox() -> None:
    """Raises SandboxMissing, with what to install, unless model-written commands can be confined on this machine."""
    for program, package in (("bwrap", "bubblewrap"), ("tar", "tar"), ("bash", "bash"), ("setarch", "util-linux")):
        if shutil.which(program) is None:
            raise SandboxMissing(f"no `{program}`: install it with `apt-get install -y {package}` (Debian, Ubuntu)")
    _faketime_library()
    sandbox_python()
    probe = subprocess.run([*_bubblewrap(SandboxLimits()), "true"], capture_output=True, text=True)
    if probe.returncode:
        raise SandboxMissing(
            "bubblewrap is installed but may not create namespaces here; allow unprivileged user namespaces "
            f"(sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces>0): {probe.stderr.strip()}"
        )


@functools.cache
def _bubblewrap(limits: SandboxLimits) -> tuple[str, ...]:
    """The command line up to the program to run inside."""
    drop = ()
    if os.geteuid() == 0:
        # RLIMIT_NPROC does not bind the machine's root, whatever it is called inside the namespace.
        drop = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    binds = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if Path("/", name).is_symlink():
            binds += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif Path("/", name).is_dir():
            binds += ["--ro-bind", f"/{name}", f"/{name}"]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        if Path(path).exists():
            binds += ["--ro-bind", path, path]
    for device in ("null", "zero", "urandom"):
        binds += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    python = sandbox_python()
    search = ["/usr/local/bin", "/usr/bin", "/bin"]
    if not python.is_relative_to("/usr"):
        binds += ["--ro-bind", sys.base_prefix, sys.base_prefix]
        search.insert(0, str(python.parent))
    # Installed packages stay outside: this one, with its task generators, may be among them.
    roots = {Path("/usr/lib"), Path("/usr/local/lib"), python.parent.parent / "lib"}
    for root in sorted(roots):
        packages = [*root.glob("python3*/dist-packages"), *root.glob("python3*/site-packages")]
        for path in sorted(p for p in packages if p.is_dir() and any(p.iterdir())):
            binds += ["--tmpfs", str(path), "--remount-ro", str(path)]
    size = str(limits.work_bytes)
    environment = {
        "PATH": ":".join(search),
        "HOME": "/work",
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "FAKETIME": FIXED_TIME,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKERANDOM_SEED": "0x12345678DEADBEEF",
    }
    settings = [word for name, value in environment.items() for word in ("--setenv", name, value)]
    return (
        *drop,
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session"),
        *("--uid", str(INSIDE_USER), "--gid", str(INSIDE_USER), "--hostname", "sandbox", "--cap-drop", "ALL"),
        *binds,
        *("--size", size, "--tmpfs", "/tmp", "--size", size, "--tmpfs", "/work", "--remount-ro", "/"),
        *("--chdir", "/work", "--clearenv"),
        *settings,
    )


@functools.cache
def _command_line(limits: SandboxLimits, memory_file: int) -> tuple[str, ...]:
    script = _SUPERVISOR.format(
        processes=limits.processes,
        memory_kib=limits.memory_bytes >> 10,
        file_kib=limits.work_bytes >> 10,
        cpu=limits.cpu_seconds,
        cpu_hard=limits.cpu_seconds + 1,
        preload=_faketime_library(),
        memory=memory_file,
    )
    # Without address randomisation even bash's own seeds repeat.
    return (*_bubblewrap(limits), "setarch", platform.machine(), "-R", "bash", "--norc", "-c", script)


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

    @classmethod
    async def open(cls, source: Path | bytes, limits: SandboxLimits) -> Sandbox:
        """Starts a session whose /work holds a copy of `source`: a directory, or what `pack` or `export` returned.

        Raises SandboxMissing, or SandboxError when it does not start.
        """
        require_sandbox()
        archive = source if isinstance(source, bytes) else pack(source)
        memory = os.memfd_create("sandbox", os.MFD_CLOEXEC)
        process = subprocess.Popen(
            _command_line(limits, memory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(memory,),
            bufsize=0,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            cwd="/",
        )
        sandbox = cls(limits, process, memory, _Collector(limits.output_bytes))
        sandbox._listen()
        code = await sandbox._request("import", "", archive)
        if code != 0:
            text = sandbox._output.take().decode(errors="replace").strip()
            await sandbox.close()
            raise SandboxError(f"the sandbox did not start or its files did not fit (code {code}): {text}")
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
        """A tar archive of /work. Raises SandboxError if the sandbox has ended."""
        if await self._request("export", "", b"") != 0:
            raise SandboxError("the sandbox has ended: its files cannot be read back")
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
        backstop = loop.call_later(self.limits.wall_seconds, self._end)
        try:
            self._process.stdin.write(f"{mode}\0{command}\0".encode())
            return await self._answer
        except BrokenPipeError:
            self._end()
            return None
        finally:
            backstop.cancel()
            self._answer = None

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
