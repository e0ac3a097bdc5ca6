"""Hydra's configuration as a RunConfig, and clear words for keys that do not exist."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from thundersync.config import ConfigError, RunConfig, parse_config, settings_of
from thundersync.environments import SandboxMissing, TaskError
from thundersync.records import Incomplete, RecordError
from thundersync.trainer import Interrupted

CONF = Path(__file__).resolve().parent / "conf"
GROUPS = ("schedule", "objective", "workload", "model", "scale")


def run_config(values: DictConfig) -> RunConfig:
    """Raises ConfigError. `batch` only feeds the objective's sizes and is no setting of a run."""
    resolved = OmegaConf.to_container(values, resolve=True)
    resolved.pop("batch", None)
    return parse_config(resolved)


def compose_run(overrides: Sequence[str]) -> RunConfig:
    """The configuration that `python -m experiments.train OVERRIDES` would run. Raises ConfigError."""
    accepted = checked_overrides(overrides)
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        return run_config(compose("config", overrides=accepted))


def checked_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides as Hydra takes them: a setting that no file of conf/ writes down is one to add for Hydra.

    Raises ConfigError for an unknown key or group choice, with the valid ones.
    """
    plain = {o: o.split("=", 1) for o in overrides if not o.startswith(("-", "hydra", "+", "~")) and "=" in o}
    chosen = []
    for group, value in plain.values():
        if group not in GROUPS:
            continue
        choices = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        named = value.split(",")
        if unknown := [choice for choice in named if choice not in choices]:
            raise ConfigError(f"unknown {group} {unknown[0]!r}; valid: {', '.join(choices)}")
        chosen.append(f"{group}={named[0]}")
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        written = _flat(OmegaConf.to_container(compose("config", overrides=chosen), resolve=False))
    # What a schedule, an objective or a model can be told is written in its own file.
    known = {*written, *(name for name in settings_of(RunConfig) if name.split(".")[0] not in GROUPS[:-1])}
    for key, _ in plain.values():
        if key not in GROUPS and key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"unknown setting {key}{hint}; valid: {', '.join((*GROUPS, *sorted(known)))}")
    return [o if o not in plain or plain[o][0] in (*GROUPS, *written) else f"++{o}" for o in overrides]


@contextmanager
def in_words() -> Iterator[None]:
    """What a user can mend ends the program with one sentence, not with a traceback."""
    try:
        yield
    except (ConfigError, RecordError, Incomplete, SandboxMissing, TaskError, Interrupted) as error:
        fail(error)


def fail(error: BaseException) -> None:
    """One clear sentence on standard error, exit status 2."""
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(2)


def _flat(values: dict, prefix: str = "") -> list[str]:
    keys = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        keys.append(name)
        if isinstance(value, dict):
            keys += _flat(value, f"{name}.")
    return keys
