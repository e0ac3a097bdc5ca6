"""The peak rate of a CPU core, P_d of Equation 10, which no data sheet gives: measured, and always named as such."""

from __future__ import annotations

import subprocess
import sys

SECONDS = 0.4

_MULTIPLY = """
import os, sys, time
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
os.sched_setaffinity(0, {int(sys.argv[1])})
import numpy
best, end = 0.0, time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end:
    for size in (256, 512):
        a = numpy.ones((size, size), numpy.float32)
        began = time.perf_counter()
        a @ a
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
print(best)
"""


def core_peak(core: int, seconds: float = SECONDS) -> float:
    """FLOP/s of FP32 products of 256 x 256 and 512 x 512 matrices on one core, one thread: the fastest one.

    The fastest, because a peak is what the core can do; whatever else runs on the machine only slows products down.
    """
    command = [sys.executable, "-I", "-c", _MULTIPLY, str(core), str(seconds)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
