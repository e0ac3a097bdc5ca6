"""Runs a task's tests on the files that the agent left: a new sandbox, one interpreter start, strict reading.

The runner below prints pytest's short lines (`PASSED tests/test_x.py::test_name`) because that is what SWE-bench's and
Harbor's tools read; `python -m pytest` itself costs hundreds of milliseconds per start.

Code under test shares the interpreter with its tests, so the runner trusts nothing that it prints: descriptors 1 and 2
lead nowhere by then, results go to a descriptor opened before, each with a secret of this verification, and leaving
early (`os._exit`, `sys.exit`) leaves the tests that follow without a result, which is a failure. Code that walks the
interpreter's own frames could still find the secret and forge a pass, as under any runner that shares its interpreter.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from thundersync.environments.sandbox import Sandbox, SandboxLimits

VERIFY_LIMITS = SandboxLimits(cpu_seconds=2, wall_seconds=120.0)

_RUNNER = r"""
def main(secret, files):
    import posix, sys
    out = posix.dup(1)
    sink = posix.open("/dev/null", posix.O_RDWR)
    for fd in (0, 1, 2):
        posix.dup2(sink, fd)
    write, exceptions = posix.write, (Exception, SystemExit, KeyboardInterrupt)
    sys.path.append("/work")
    for path, text in files:
        names = {"__name__": path, "__file__": path}
        try:
            exec(compile(text, path, "exec"), names)
            failed = False
        except exceptions:
            failed = True
        if failed:
            write(out, ("%s ERROR %s\n" % (secret, path)).encode())
            continue
        for name in [n for n in names if n.startswith("test_") and callable(names[n])]:
            try:
                names[name]()
                word = "PASSED"
            except exceptions:
                word = "FAILED"
            write(out, ("%s %s %s::%s\n" % (secret, word, path, name)).encode())
    write(out, ("%s END\n" % secret).encode())
"""


def runner_script(secret: str, tests: Mapping[str, str]) -> str:
    """The program that the verifying interpreter reads: the runner, then one call with the test files in order."""
    return f"{_RUNNER}\nmain({secret!r}, {sorted(tests.items())!r})\n"


def read_results(output: str, secret: str) -> dict[str, bool]:
    """Test -> passed, of the lines that carry the secret. A test reported twice has failed; without END all have."""
    results: dict[str, bool] = {}
    ended = False
    for line in output.splitlines():
        words = line.split(" ")
        if words[0] != secret:
            continue
        if words[1:] == ["END"]:
            ended = True
        elif len(words) == 3 and words[1] in ("PASSED", "FAILED", "ERROR"):
            results[words[2]] = words[1] == "PASSED" and words[2] not in results
    return results if ended else {}


async def run_tests(files: bytes, tests: Mapping[str, str], limits: SandboxLimits = VERIFY_LIMITS) -> dict[str, bool]:
    """Results by `path::name` of pytest-style functions in `tests` (path -> source), run beside the archive `files`.

    The tests reach the interpreter on its standard input and are never in the file system.
    """
    secret = secrets.token_hex(16)
    async with await Sandbox.open(files, limits) as sandbox:
        script = runner_script(secret, tests).encode()
        result = await sandbox.run("exec python3 -I -S -B -", stdin=script)
    return read_results(result.output, secret)
