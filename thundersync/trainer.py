"""One training run from its configuration: builds the parts, starts or resumes the run, and waits for its end.

    with open_session(replicas=1) as session:
        train(config, session)

A run that ended is left alone; one that was interrupted goes on at its last checkpoint.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from tqdm import tqdm

from thundersync.cluster.session import Session
from thundersync.cluster.specs import LearnerSpec, ReplicaSpec, Seat, WorkloadSpec
from thundersync.config import ConfigError, RunConfig
from thundersync.controller import ControllerActor, Progress
from thundersync.environments import SandboxMissing, Workload, load_workload, require_sandbox
from thundersync.records import CheckpointRecord, RunDirectory, digest_of, run_record
from thundersync.sampler import TaskSampler
from thundersync.splits import list_digest
from thundersync.timeline import export_timeline
from thundersync.warm_start import ModelPaths, ModelRequest, build_models

PACKAGES = ("torch", "transformers", "tokenizers", "ray", "numpy", "pydantic")


class Interrupted(KeyboardInterrupt):
    """The run was saved at an optimizer boundary; the same command goes on from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a run begins."""

    update: int = 0
    elapsed: float = 0.0
    policy: Path
    learner_state: Path | None = None


def train(config: RunConfig, session: Session, *, commit: str | None = None, models: ModelPaths | None = None) -> Path:
    """Runs or resumes a run to its end and returns its directory. Nothing is repeated of a run that has ended.

    `models` takes the place of the warm-started policy and teacher. Raises ConfigError for what cannot run here and
    Interrupted after Ctrl-C, with everything saved.
    """
    require_available(config)
    directory = RunDirectory(Path(config.runs) / config.name)
    begun = (directory.path / "run.json").exists()
    if begun:
        _require_same_settings(directory, config)
    if directory.ended:
        return directory.path
    began = time.monotonic()
    workload = _workload(config)
    models = models or embedded_models(config)
    start = _resume(directory, models) if begun else Start(policy=models.student)
    policy_hash = _configure(config, session, models, start)
    if not begun:
        record = _run_record(config, session, workload, models, policy_hash, time.monotonic() - began, commit)
        RunDirectory.create(directory.path, record)
    sampler = TaskSampler(
        tasks=workload.training,
        seed=config.seed,
        prompts=config.objective.prompts_per_update,
        group_size=config.objective.trajectories_per_prompt,
    )
    # One controller serves all runs of a session: to start a process costs as much as a short run. `detached` keeps it
    # until the session ends, not only while somebody holds it.
    options = {"name": "controller", "get_if_exists": True, "lifetime": "detached"}
    controller = ControllerActor.options(**options).remote(session.placement.rollout_cores)
    try:
        _wait(controller, config, controller.run.remote(config, session, sampler, start.update, start.elapsed))
    except BaseException:
        ray.kill(controller)  # whatever the run was doing ends with it
        raise
    if not directory.ended:
        raise Interrupted(f"{directory.path} is saved; run the same command again to go on")
    shutil.rmtree(directory.path / "state")  # only a resumed run would need it
    export_timeline(directory.path)
    return directory.path


def embedded_models(config: RunConfig) -> ModelPaths:
    """The policy and teacher that a configuration of the embedded model starts from; built unless they are cached."""
    (paths,) = embedded_models_of([config])
    return paths


def embedded_models_of(configs: Sequence[RunConfig]) -> list[ModelPaths]:
    """The same for many configurations; what several of them lack is built side by side. They share a cache."""
    requests = [
        ModelRequest(
            workload=config.workload.name,
            seed=config.model.seed,
            steps=config.model.steps,
            demonstrated_tasks=config.model.demonstrated_tasks,
            intermediate=config.model.intermediate,
        )
        for config in configs
    ]
    return build_models(Path(configs[0].cache), requests)


def require_available(config: RunConfig) -> None:
    """Raises ConfigError naming everything that this configuration needs and this machine lacks."""
    import importlib.util

    if config.mirror == "wandb" and importlib.util.find_spec("wandb") is None:
        raise ConfigError("mirror=wandb needs the package wandb (pip install wandb); mirror=tensorboard is installed")
    if config.scale.name != "paper":
        if config.model.name != "embedded":
            raise ConfigError(f"model {config.model.name} needs scale=paper; scale={config.scale.name} takes embedded")
        try:
            require_sandbox()
        except SandboxMissing as error:
            raise ConfigError(str(error)) from None
        return
    import torch

    lacking = []
    if (gpus := torch.cuda.device_count()) < config.scale.devices:
        lacking.append(f"{config.scale.devices} CUDA GPUs ({gpus} found)")
    if importlib.util.find_spec("vllm") is None:
        lacking.append("the package vllm (pip install '.[vllm]')")
    if shutil.which("docker") is None:
        lacking.append("a container engine for SWE-smith images (docker)")
    lacking.append(f"the vLLM engine and the loader of {config.model.name}, which this version does not have yet")
    raise ConfigError(f"scale=paper needs {', '.join(lacking)}; scale=embedded runs here")


def _workload(config: RunConfig) -> Workload:
    return load_workload(config.workload.name, root=Path(config.cache), seed=config.workload.seed)


def _configure(config: RunConfig, session: Session, models: ModelPaths, start: Start) -> str:
    """Takes the actors into use for this run; returns the hash of the policy that all of them hold."""
    if (count := len(session.replicas)) != config.scale.replicas:
        raise ConfigError(
            f"scale.replicas is {config.scale.replicas}, but the session was opened for {count}: "
            "the first run of a multirun sets how many there are"
        )
    objective = config.objective.build()
    zero_lag = config.schedule.name in ("sync", "thundersync")
    learner = LearnerSpec(
        policy=models.student,
        lora=config.model.lora,
        objective=objective,
        optimizer=config.optimizer.build(),
        graph_bytes=config.schedule.graph_bytes,
        exact_exponent=config.objective.exact_exponent if config.objective.sums == "exact" else None,
        logprob_tolerance=config.logprob_tolerance if zero_lag else None,
        resume_from=start.learner_state,
    )
    if objective.needs_teacher:
        ray.get(session.teacher.configure.remote(models.teacher))
    replica = ReplicaSpec(
        policy=start.policy,
        version=start.update,
        workload=WorkloadSpec(name=config.workload.name, root=Path(config.cache), seed=config.workload.seed),
        generation=config.generation,
        run_seed=config.seed,
        script=config.script,
    )
    teacher = session.teacher if objective.needs_teacher else None
    served = [r.configure.remote(replica, teacher) for r in session.replicas.values()]
    held = ray.get(_seat(config, session, learner))
    if len({*held, *((start.update, answer.policy_hash) for answer in ray.get(served))}) > 1:
        raise RuntimeError(f"learner and replicas do not start from the same policy as update {start.update}")
    return held[0][1]


def _seat(config: RunConfig, session: Session, learner: LearnerSpec) -> list[Any]:
    """Configures the learner ranks of a run, all at once: they meet at the address of rank 0."""
    size = config.scale.learner_ranks
    if size > len(session.learners):
        raise ConfigError(
            f"scale.learner_ranks is {size}, but the session was opened for {len(session.learners)}: "
            "the first run of a multirun sets how many there are"
        )
    if (devices := session.placement.devices(size)) > config.scale.devices:
        raise ConfigError(
            f"scale.devices is {config.scale.devices}, but rollout and {size} learner ranks take {devices} cores: "
            f"set scale.devices={devices}, which device-hours are counted by"
        )
    address = ray.get(session.learners[0].address.remote()) if size > 1 else ""
    timeout_s = config.scale.learner_timeout_s
    seats = [Seat(rank=rank, size=size, address=address, timeout_s=timeout_s) for rank in range(size)]
    return [actor.configure.remote(learner, seat) for actor, seat in zip(session.learners, seats, strict=False)]


def _run_record(config, session, workload, models, policy_hash, seconds, commit) -> Any:
    evaluation = [task.task_id for task in workload.heldout[: config.scale.evaluation_tasks]]
    training = [task.task_id for task in workload.training]
    return run_record(
        config=config.model_dump(mode="json"),
        packages=PACKAGES,
        commit=commit,
        name=config.name,
        objective=config.objective.name,
        workload=config.workload.name,
        schedule=config.schedule.name,
        seed=config.seed,
        tokenizer_digest=models.tokenizer_digest,
        workload_digest=digest_of([list_digest(training), list_digest(evaluation)]),
        initial_policy_hash=policy_hash,
        evaluation_tasks=tuple(evaluation),
        evaluation_attempts=config.scale.evaluation_attempts,
        budget_seconds=config.scale.budget_s,
        devices=config.scale.devices,
        device_name=config.scale.device_name,
        core_independence=session.core_independence,
        learner_peak_flops=session.learner_peak_flops,
        cores={"rollout": session.placement.rollout_cores, "learner": session.placement.learner_cores},
        price_usd_per_device_hour=config.scale.price_usd_per_device_hour,
        initialisation_seconds=seconds,
    )


def _require_same_settings(directory: RunDirectory, config: RunConfig) -> None:
    """Raises ConfigError, naming the settings, for a run of another configuration; where files lie does not count."""
    found, wanted = (_flat(one) for one in (directory.run().config, config.model_dump(mode="json")))
    differ = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
    differ = [key for key in differ if key not in ("runs", "cache", "mirror")]
    if differ:
        raise ConfigError(
            f"{directory.path} holds a run of another configuration, which differs in {', '.join(differ)}: "
            "give this run another name, or move that directory away"
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _resume(directory: RunDirectory, models: ModelPaths) -> Start:
    """The last checkpoint whose learner state is there; later records are set aside."""
    directory.repair()
    for checkpoint in reversed(directory.read_if_any(CheckpointRecord)):
        state = directory.path / "state" / f"update-{checkpoint.update:05d}"
        if checkpoint.update > 0 and state.exists():
            directory.rewind(checkpoint.update)
            return Start(
                update=checkpoint.update,
                elapsed=checkpoint.published_at,
                policy=directory.path / checkpoint.path,
                learner_state=state,
            )
    directory.rewind(0)
    return Start(policy=models.student)


@dataclass(slots=True)
class _StopOnInterrupt:
    """The first Ctrl-C asks for an orderly stop, the second one does not ask."""

    controller: Any
    asked: bool = False

    def __call__(self, signum: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        tqdm.write("Stopping at the next optimizer boundary and saving; press Ctrl-C again to stop at once.")
        self.controller.stop.remote()


@contextmanager
def _interruptible(controller: Any) -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, _StopOnInterrupt(controller))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _wait(controller: Any, config: RunConfig, running: Any) -> None:
    """Waits for the run with a bar over its training clock; raises what the run raised."""
    with (
        _interruptible(controller),
        tqdm(total=round(config.scale.budget_s), desc=config.name, unit="s", leave=False, disable=None) as bar,
    ):
        while not ray.wait([running], timeout=0.5)[0]:
            progress: Progress = ray.get(controller.progress.remote())
            bar.n = round(min(progress.training_s, config.scale.budget_s))
            bar.set_postfix(updates=progress.updates, reward=progress.reward)
        ray.get(running)
