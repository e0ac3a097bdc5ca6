"""Tasks, sandboxes and rewards. Start with `load_workload`."""

from thundersync.environments.sandbox import SandboxError, SandboxMissing, require_sandbox
from thundersync.environments.workload import Episode, Observation, TaskError, Verdict, Workload, load_workload

__all__ = [
    "Episode",
    "Observation",
    "SandboxError",
    "SandboxMissing",
    "TaskError",
    "Verdict",
    "Workload",
    "load_workload",
    "require_sandbox",
]
