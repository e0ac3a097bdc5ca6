"""Whether two cores are two: on shared hardware (hyperthreads, busy hosts) one slows the other; overlap gains less."""

from __future__ import annotations

import subprocess
import sys

from thundersync.cluster.placement import Placement

SECONDS = 0.4

_SPIN = """
import os, sys, time
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
os.sched_setaffinity(0, {int(sys.argv[1])})
import numpy
a, count = numpy.ones((256, 256), numpy.float32), 0
a @ a
print("ready", flush=True)
sys.stdin.readline()  # both start together
end = time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end:
    a @ a
    count += 1
print(count)
"""


def core_independence(placement: Placement, seconds: float = SECONDS) -> float:
    """Speed of matrix products on the slower of the two cores while both are busy, over its speed alone; 1 is ideal.

    A short probe of this moment; a busy host answers differently a minute later.
    """
    cores = (placement.rollout_cores[0], placement.learner_cores[0])
    alone = [_counts([core], seconds)[0] for core in cores]
    return min(both / one for both, one in zip(_counts(cores, seconds), alone, strict=True))


def _counts(cores, seconds: float) -> list[int]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [
        subprocess.Popen([sys.executable, "-I", "-c", _SPIN, str(core), str(seconds)], **pipes) for core in cores
    ]
    for process in running:
        process.stdout.readline()  # it is ready: its imports are over
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()
    return [int(process.communicate()[0]) for process in running]
