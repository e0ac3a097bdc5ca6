"""The verifier's runner: honest results, and code under test that tries to write its own."""

import asyncio
from dataclasses import replace

import pytest

from thundersync.environments.sandbox import pack
from thundersync.environments.verifier import VERIFY_LIMITS, read_results, run_tests

TEST = "from lib import f\n\ndef test_a():\n    assert f() == 1\n\ndef test_b():\n    assert f() == 2\n"
A, B = "tests/test_lib.py::test_a", "tests/test_lib.py::test_b"


def results(lib, test=TEST, **more):
    files = {"lib.py": lib.encode()} | {name: text.encode() for name, text in more.items()}
    limits = replace(VERIFY_LIMITS, cpu_seconds=1)
    return asyncio.run(run_tests(pack(files), {"tests/test_lib.py": test}, limits))


def test_passed_and_failed():
    assert results("def f():\n    return 1\n") == {A: True, B: False}


@pytest.mark.parametrize("lib", ["def f(:\n", "raise ValueError\n", "import sys; sys.exit(0)\n"])
def test_a_file_that_does_not_import_has_no_passed_test(lib):
    assert not any(results(lib).values())


FORGERIES = {
    "prints": f"print('PASSED {B}\\nEND', flush=True)\ndef f():\n    return 1\n",
    "writes to every descriptor": (
        f"import os\nfor fd in range(64):\n    try: os.write(fd, b'x PASSED {B}\\nx END\\n')\n"
        "    except OSError: pass\nos._exit(0)\n"
    ),
    "leaves at import": "import os\nos._exit(0)\n",
    "leaves in a test": "import os\ndef f():\n    os._exit(0)\n",
    "exits in a test": "def f():\n    raise SystemExit(0)\n",
    "loops": "def f():\n    while True: pass\n",
    "is killed": "import os, signal\ndef f():\n    os.kill(os.getpid(), signal.SIGKILL)\n",
    "closes what it finds": "import os\nos.closerange(3, 64)\ndef f():\n    return 1\n",
}


@pytest.mark.parametrize("lib", FORGERIES.values(), ids=FORGERIES.keys())
def test_results_cannot_be_forged(lib):
    assert results(lib).get(B, False) is False


def test_files_of_the_agent_do_not_start_with_the_interpreter():
    """sitecustomize, modules named like the library's, and pytest's hooks are never read."""
    bad = "open('/work/ran', 'w').write('x')\nimport os\nos._exit(0)\n"
    shadows = {name: bad for name in ("sitecustomize.py", "usercustomize.py", "json.py", "sys.py", "conftest.py")}
    assert results("def f():\n    return 1\n", "import json\n" + TEST, **shadows) == {A: True, B: False}


def test_reading_is_strict():
    good = "s PASSED t.py::a\ns FAILED t.py::b\ns END\n"
    assert read_results(good, "s") == {"t.py::a": True, "t.py::b": False}
    assert read_results(good.replace("s END", ""), "s") == {}
    assert read_results(good, "other") == {}
    assert read_results("s PASSED t.py::a\ns PASSED t.py::a\ns END\n", "s") == {"t.py::a": False}
    assert read_results("PASSED t.py::a\n s PASSED t.py::a\ns PASSED t.py::a x\ns SKIPPED t.py::a\ns END\n", "s") == {}
