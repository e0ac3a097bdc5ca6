"""The bubblewrap command line, and what a machine must have for it."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FIXED_TIME = "2026-01-01 00:00:00"
NOBODY = 65534
INSIDE_USER = 1000


class SandboxMissing(RuntimeError):
    """The machine lacks what the sandbox needs; the sentence says what to install."""


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
def faketime_library() -> Path:
    for folder in ("/usr/lib", "/usr/lib64"):
        for pattern in ("faketime", "*/faketime"):  # the second with Debian's folder of the architecture
            for path in sorted(Path(folder).glob(f"{pattern}/libfaketime.so.1"))[:1]:
                return path
    raise SandboxMissing("no libfaketime: install it with `apt-get install -y faketime` (Debian, Ubuntu)")


@functools.cache
def require_sandbox() -> None:
    """Raises SandboxMissing, with what to install, unless model-written commands can be confined on this machine."""
    for program, package in (("bwrap", "bubblewrap"), ("tar", "tar"), ("bash", "bash"), ("setarch", "util-linux")):
        if shutil.which(program) is None:
            raise SandboxMissing(f"no `{program}`: install it with `apt-get install -y {package}` (Debian, Ubuntu)")
    faketime_library()
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
        # No --new-session: the kernel schedules each session as a group of its own, and on a busy core such a group of
        # one short process was seen to starve for a minute. There is no terminal inside to be protected from.
        *("bwrap", "--unshare-all", "--die-with-parent"),
        *("--uid", str(INSIDE_USER), "--gid", str(INSIDE_USER), "--hostname", "sandbox", "--cap-drop", "ALL"),
        *binds,
        *("--size", size, "--tmpfs", "/tmp", "--size", size, "--tmpfs", "/work", "--remount-ro", "/"),
        *("--chdir", "/work", "--clearenv"),
        *settings,
    )


@functools.cache
def command_line(limits: SandboxLimits, memory_file: int) -> tuple[str, ...]:
    script = _SUPERVISOR.format(
        processes=limits.processes,
        memory_kib=limits.memory_bytes >> 10,
        file_kib=limits.work_bytes >> 10,
        cpu=limits.cpu_seconds,
        cpu_hard=limits.cpu_seconds + 1,
        preload=faketime_library(),
        memory=memory_file,
    )
    # Without address randomisation even bash's own seeds repeat.
    return (*_bubblewrap(limits), "setarch", platform.machine(), "-R", "bash", "--norc", "-c", script)
