"""What a model-written command can and cannot do. Every test runs real commands in the real sandbox."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from thundersync.environments import bubblewrap
from thundersync.environments import sandbox as room
from thundersync.environments.sandbox import Sandbox, SandboxLimits, pack

LIMITS = SandboxLimits(cpu_seconds=1)
FILES = pack({"note.txt": b"hello\n", "folder/deep.txt": b"x\n"})


def session(*commands, limits=LIMITS, files=FILES):
    """Results of the commands in one new sandbox."""

    async def main():
        async with await Sandbox.open(files, limits) as sandbox:
            return [await sandbox.run(command) for command in commands]

    return asyncio.run(main())


def test_files_persist_between_commands_and_streams_are_merged():
    first, second, third = session(
        "echo more >> note.txt; cd folder", "pwd; cat note.txt", "echo out; echo err >&2; exit 3"
    )
    assert (first.output, first.exit_code) == ("", 0)
    assert second.output == "/work\nhello\nmore\n"
    assert (third.output, third.exit_code, third.timed_out) == ("out\nerr\n", 3, False)


def test_a_directory_is_copied_and_the_original_stays_as_it_was(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.sh").write_text("echo ran\n")
    (tmp_path / "a" / "run.sh").chmod(0o750)
    (result,) = session("./a/run.sh && rm -r a && ls", files=tmp_path)
    assert result.output == "ran\n"
    assert (tmp_path / "a" / "run.sh").exists()


def test_pack_depends_on_contents_only(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    once = pack(tmp_path)
    os.utime(tmp_path / "a", (1, 1))
    assert once == pack(tmp_path) == pack({"a": b"a", "b": b"b"})


def test_export_returns_the_files():
    async def main():
        async with await Sandbox.open(FILES, LIMITS) as sandbox:
            await sandbox.run("echo new > folder/new.txt; rm note.txt")
            files = await sandbox.export()
        async with await Sandbox.open(files, LIMITS) as copy:
            return (await copy.run("find . -type f | sort; cat folder/new.txt")).output

    assert asyncio.run(main()) == "./folder/deep.txt\n./folder/new.txt\nnew\n"


def test_no_network():
    """Not even a server that listens on the machine's own loopback can be reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 5).close()
        (result,) = session(f"(echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached; ls /sys")
    assert result.output == "ls: cannot access '/sys': No such file or directory\n"


def test_nothing_of_the_machine_shows(monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "hunter2")
    environment, root, processes = session("env", "ls -a / /tmp", "ls /proc")
    assert "hunter2" not in environment.output
    assert not {"home", "root", "mnt", "opt", "proc", "var"} & set(root.output.split())
    assert "No such file" in processes.output


def test_the_system_is_read_only_and_the_user_unprivileged():
    writes, user = session("touch /usr/x /etc/x /x /dev/x", "id -u; cat /etc/shadow; mount -t tmpfs none /tmp")
    assert writes.output.count("Read-only file system") == 4
    assert user.output.startswith("1000\n") and user.exit_code != 0


def test_project_and_packages_are_not_there():
    """Task generators hold every answer: neither this checkout nor an installed copy can be reached."""
    here = os.path.dirname(os.path.abspath(room.__file__))
    checkout, package, others = session(
        f"ls {here}",
        "python3 -c 'import thundersync'",
        "python3 -c 'import os, sys; print([p for p in sys.path if p.endswith(\"-packages\") and os.listdir(p)])'",
    )
    assert "No such file" in checkout.output
    assert "ModuleNotFoundError" in package.output
    assert others.output == "[]\n"


def test_only_the_three_standard_descriptors_are_open():
    """In particular neither the memory file nor the pipe on which exit codes travel."""
    (result,) = session(
        'python3 -c "import os\nfor fd in range(3, 300):\n  try: os.fstat(fd); print(fd)\n  except OSError: pass"'
    )
    assert (result.output, result.exit_code) == ("", 0)


def test_standard_input_is_empty_unless_given():
    async def main():
        async with await Sandbox.open(FILES, LIMITS) as sandbox:
            return await sandbox.run("cat"), await sandbox.run("cat", stdin=b"given\n"), await sandbox.run("cat")

    assert [r.output for r in asyncio.run(main())] == ["", "given\n", ""]


def test_background_processes_end_with_their_command():
    started, later = session(
        "(sleep 0.3; echo late > late.txt) & sleep 30 & echo $!", "sleep 0.4; kill -0 $(cat pid); ls"
    )
    assert started.output.strip().isdecimal()
    assert "late.txt" not in later.output


def test_cpu_time_is_limited_and_partial_output_is_withheld():
    loop, after = session("while :; do echo x; done", "echo alive")
    assert (loop.output, loop.timed_out) == ("", True)
    assert after.output == "alive\n"


def test_waiting_is_not_computing_but_meets_the_backstop_and_ends_the_session():
    limits = replace(LIMITS, wall_seconds=0.5)
    begin = time.monotonic()
    waiting, after = session("sleep 100", "echo alive", limits=limits)
    assert waiting.timed_out and (after.exit_code, after.output, after.timed_out) == (137, "", True)
    assert time.monotonic() - begin < 10


def test_memory_is_limited():
    hog, after = session("python3 -c 'x = bytearray(1 << 30)' 2>&1 | tail -1", "echo alive")
    assert hog.output == "MemoryError\n" and after.output == "alive\n"


FORK_UNTIL_REFUSED = """python3 -c '
import os, signal
count = 0
try:
    while True:
        if os.fork() == 0:
            signal.pause()
        count += 1
except OSError:
    print(count)
'"""


def test_processes_are_limited_per_sandbox():
    """A greedy session meets its limit and lives on; a neighbour, under the same user, does not notice."""

    async def main():
        async with await Sandbox.open(FILES, LIMITS) as one, await Sandbox.open(FILES, LIMITS) as other:
            greedy = await one.run(FORK_UNTIL_REFUSED)
            bomb, neighbour = await asyncio.gather(
                one.run(":(){ :|:& };:"), other.run("for i in 1 2 3; do (echo $i); done")
            )
            return greedy, bomb, neighbour, await one.run("echo alive")

    greedy, _, neighbour, after = asyncio.run(main())
    assert 30 < int(greedy.output) < LIMITS.processes
    assert neighbour.output == "1\n2\n3\n" and after.output == "alive\n"


def test_disk_is_limited():
    limits = replace(LIMITS, work_bytes=1 << 20)
    one, many = session(
        "head -c 3000000 /dev/zero > big; ls -s --block-size=1 big | cut -d' ' -f1",
        "for i in 1 2 3 4; do head -c 500000 /dev/zero > f$i; done; rm big; du -sb . | cut -f1",
        limits=limits,
    )
    assert int(one.output.split()[-1]) <= 1 << 20
    assert "No space left" in many.output


def test_long_output_keeps_head_and_tail_equally():
    (result,) = session("seq 100000", limits=replace(LIMITS, output_bytes=2000))
    whole = "".join(f"{i}\n" for i in range(1, 100001))
    assert result.output == whole[:1000] + f"\n[{len(whole) - 2000} bytes left out]\n" + whole[-1000:]


@pytest.mark.parametrize("pieces", [1, 7, 4096])
def test_what_is_kept_does_not_depend_on_how_it_arrives(pieces):
    data = bytes(range(256)) * 40
    collector = room._Collector(1000)
    for at in range(0, len(data), pieces):
        collector.add(data[at : at + pieces])
    assert collector.take() == data[:500] + b"\n[%d bytes left out]\n" % (len(data) - 1000) + data[-500:]
    assert collector.take() == b""


def test_endless_output_ends_the_session():
    flood, after = session("cat /dev/zero", "echo alive")
    assert flood.timed_out and after.exit_code == 137


def test_a_command_that_kills_its_supervisor_ends_only_its_session():
    killed, after = session("kill -9 -1", "echo alive")
    assert (killed.output, killed.exit_code) == ("", 137)
    assert after.exit_code == 137


def test_clock_seeds_and_process_ids_repeat():
    commands = (
        "date; echo $EPOCHSECONDS $RANDOM $$; mktemp -u",
        'python3 -c \'import random, time; print(hash("x"), random.random(), time.time(), set("abcdef"))\'',
        "touch a; date -r note.txt; ls -f; sleep 1 & echo $!",
    )
    first = session(*commands)
    assert first == session(*commands)
    assert first[0].output.startswith("Thu Jan  1 00:00:00 UTC 2026\n1767225600 ")


def test_many_sandboxes_at_once_do_not_mix():
    async def one(i):
        async with await Sandbox.open(pack({"id": str(i).encode()}), LIMITS) as sandbox:
            return [(await sandbox.run(f"cat id; echo {j}")).output for j in range(3)]

    async def main():
        return await asyncio.gather(*(one(i) for i in range(12)))

    assert asyncio.run(main()) == [[f"{i}{j}\n" for j in range(3)] for i in range(12)]


def test_a_cancelled_command_ends_the_session():
    """Otherwise its late answer would be taken for that of the next command."""

    async def main():
        async with await Sandbox.open(FILES, LIMITS) as sandbox:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sandbox.run("sleep 0.3; echo late; exit 9"), 0.05)
            return await sandbox.run("echo next"), sandbox.ended

    result, ended = asyncio.run(main())
    assert ended and (result.output, result.exit_code) == ("", 137)


def test_files_that_do_not_fit_are_an_error():
    with pytest.raises(room.FilesRefused, match="did not fit"):
        session("true", files=pack({"big": bytes(3 << 20)}), limits=replace(LIMITS, work_bytes=1 << 20))


def test_files_of_an_ended_session_are_refused_but_a_silent_sandbox_is_an_error():
    async def exported(command: str, wall_seconds: float) -> None:
        async with await Sandbox.open(FILES, LIMITS) as sandbox:
            await sandbox.run(command)
            sandbox.limits = replace(LIMITS, wall_seconds=wall_seconds)
            await sandbox.export()

    with pytest.raises(room.FilesRefused, match="the session has ended"):
        asyncio.run(exported("kill -9 -1", 60.0))
    with pytest.raises(room.SandboxError, match="did not give its files back within 0 s") as silent:
        asyncio.run(exported("true", 0.0))
    assert not isinstance(silent.value, room.FilesRefused)


def test_it_dies_with_its_parent(tmp_path):
    """SIGKILL of the process that opened the sandbox leaves nothing behind."""
    mark = f"86{os.getpid()}"
    program = (
        "import asyncio, sys\n"
        "from thundersync.environments.sandbox import Sandbox, SandboxLimits, pack\n"
        "async def main():\n"
        "    s = await Sandbox.open(pack({'a': b''}), SandboxLimits())\n"
        "    print('open', flush=True)\n"
        f"    await s.run('exec sleep {mark}')\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "open\n"

    def sleepers():
        return subprocess.run(["pgrep", "-f", f"^sleep {mark}$"], capture_output=True).stdout.split()

    assert _until(lambda: len(sleepers()) == 1)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert _until(lambda: not sleepers())


def _until(condition, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(("program", "package"), [("bwrap", "bubblewrap"), ("setarch", "util-linux")])
def test_a_missing_program_is_named_with_its_package(monkeypatch, program, package):
    which = bubblewrap.shutil.which
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None if name == program else which(name))
    with pytest.raises(bubblewrap.SandboxMissing, match=f"no `{program}`.*{package}"):
        bubblewrap.require_sandbox.__wrapped__()


def test_a_missing_faketime_is_named(monkeypatch):
    monkeypatch.setattr(bubblewrap.Path, "glob", lambda *_: iter(()))
    with pytest.raises(bubblewrap.SandboxMissing, match="faketime"):
        bubblewrap.faketime_library.__wrapped__()
