"""Hydra's configuration as a RunConfig, and clear words for keys that do not exist."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from thundersync.config import ConfigError, RunConfig, parse_config

CONF = Path(__file__).resolve().parent / "conf"
GROUPS = ("schedule", "objective", "workload", "model", "scale")


def run_config(values: DictConfig) -> RunConfig:
    """Raises ConfigError. `batch` only feeds the objective's sizes and is no setting of a run."""
    resolved = OmegaConf.to_container(values, resolve=True)
    resolved.pop("batch", None)
    return parse_config(resolved)


def compose_run(overrides: Sequence[str]) -> RunConfig:
    """The configuration that `python -m experiments.train OVERRIDES` would run. Raises ConfigError."""
    check_overrides(overrides)
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        return run_config(compose("config", overrides=list(overrides)))


def check_overrides(overrides: Sequence[str]) -> None:
    """Raises ConfigError for an unknown key or group choice, with the valid ones, before Hydra gets to see it."""
    plain = [o for o in overrides if not o.startswith(("-", "hydra", "+", "~")) and "=" in o]
    settings = dict(override.split("=", 1) for override in plain)
    chosen = []
    for group in [key for key in settings if key in GROUPS]:
        choices = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        named = settings[group].split(",")
        if unknown := [choice for choice in named if choice not in choices]:
            raise ConfigError(f"unknown {group} {unknown[0]!r}; valid: {', '.join(choices)}")
        chosen.append(f"{group}={named[0]}")
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        known = _flat(OmegaConf.to_container(compose("config", overrides=chosen), resolve=False))
    for key in settings:
        if key not in GROUPS and key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"unknown setting {key}{hint}; valid: {', '.join((*GROUPS, *sorted(known)))}")


def fail(error: Exception) -> None:
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
