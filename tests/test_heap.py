"""What is alive when a process settles leaves the garbage collector's sight; what comes later is still collected."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import gc, weakref
from thundersync.heap import settle_heap

class Node: pass

settle_heap()
frozen, seen = gc.get_freeze_count(), len(gc.get_objects())
node = Node()
node.itself, alive = node, weakref.ref(node)
del node
gc.collect()
print(frozen > 1000, seen < frozen / 10, alive() is None)
"""


def test_settled_objects_are_not_walked_and_later_cycles_are_collected():
    found = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "True", "True"]
