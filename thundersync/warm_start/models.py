"""The embedded models: a student policy that is warm-started imperfectly, and a larger, better-trained frozen teacher.

Both are Qwen3 models made here, from nothing: demonstrations are run in the sandbox (demonstrations.py), one tokenizer
is trained on their text, and the models learn the action tokens (training.py), each in a process of one thread.
The result is cached under the digest of everything that made it.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from thundersync.environments.workload import Workload, load_workload
from thundersync.rollout import chat as chat_layout
from thundersync.rollout.chat import Chat, load_chat, train_tokenizer
from thundersync.warm_start.demonstrations import Demonstration, collect
from thundersync.warm_start.training import Recipe, train
from thundersync.warm_start.widen import widened

VOCABULARY = 768
CORRUPTED_PER_TASK = 2

STUDENT = Recipe(layers=3, hidden=160, intermediate=480, heads=4, kv_heads=2, batch=16, clean_share=0.5)
TEACHER = Recipe(layers=4, hidden=192, intermediate=576, heads=6, kv_heads=2, batch=16, clean_share=0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPaths:
    """Two directories that `from_pretrained` reads, with the same tokenizer in both."""

    student: Path
    teacher: Path
    tokenizer_digest: str
    """SHA-256 of the tokenizer's serialised form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The student and the teacher that a run asks for."""

    workload: str
    seed: int
    steps: int
    demonstrated_tasks: int | None = None
    """Training tasks that are demonstrated; None for all."""
    intermediate: int | None = None
    """Units to which the student's MLPs are widened after its warm start; None leaves them as they are."""


def build_models(root: Path, requests: Sequence[ModelRequest]) -> list[ModelPaths]:
    """Student and teacher of every request, built below `root` unless they are there. Prints progress with time left.

    What is lacking is trained side by side. Raises ValueError where `intermediate` is less than a student has.
    """
    directories, lacking = {}, {}
    for request in dict.fromkeys(requests):
        tasks = load_workload(request.workload, root=root, training_tasks=request.demonstrated_tasks)
        digest = _digest(tasks, request.seed, request.steps)
        directory = directories[request] = Path(root) / "models" / f"{request.workload}-{digest[:16]}"
        if not directory.exists():
            lacking[directory] = (tasks, request)
    if lacking:
        _build(lacking)
    paths = {request: _paths(directory, request) for request, directory in directories.items()}
    return [paths[request] for request in requests]


def _paths(directory: Path, request: ModelRequest) -> ModelPaths:
    tokenizer = load_chat(directory / "student").tokenizer.backend_tokenizer.to_str()
    return ModelPaths(
        student=_student(directory, request.intermediate, request.seed),
        teacher=directory / "teacher",
        tokenizer_digest=hashlib.sha256(tokenizer.encode()).hexdigest(),
    )


def _digest(workload: Workload, seed: int, steps: int) -> str:
    """Of the training tasks with their references, the recipes, and the code of the warm start and of the layout."""
    tasks = [(task.task_id, task.instruction, workload.reference_commands(task.task_id)) for task in workload.training]
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(chat_layout.__file__)]
    code = [source.read_text(encoding="utf-8") for source in sources]
    return hashlib.sha256(repr((tasks, STUDENT, TEACHER, code, seed, steps)).encode()).hexdigest()


def _student(directory: Path, intermediate: int | None, seed: int) -> Path:
    """The warm-started student, or a copy of it that is widened; made once."""
    path = directory / ("student" if intermediate is None else f"student-{intermediate}")
    if not path.exists():
        from transformers import AutoModelForCausalLM

        model = widened(AutoModelForCausalLM.from_pretrained(str(directory / "student")), intermediate, seed=seed)
        building = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=directory))
        model.save_pretrained(str(building))
        load_chat(directory / "student").tokenizer.save_pretrained(str(building))
        building.rename(path)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One model to train."""

    directory: Path
    """It holds the tokenizer already."""
    recipe: Recipe
    steps: int
    seed: int
    demonstrations: list[Demonstration]


def _build(lacking: Mapping[Path, tuple[Workload, ModelRequest]]) -> None:
    """A directory is complete or absent: an interrupted build leaves nothing that could be taken for a model."""
    with ExitStack() as cleanup:
        jobs, places = [], {}
        for directory, (workload, request) in lacking.items():
            directory.parent.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
            cleanup.callback(shutil.rmtree, building, ignore_errors=True)
            places[building] = directory
            jobs += _jobs(building, workload, request)
        # The longest first, so that no core idles while another still trains a teacher.
        jobs.sort(key=lambda job: job.steps * job.recipe.layers * job.recipe.hidden**2, reverse=True)
        unfinished = [job.directory.parent for job in jobs]
        for finished in _trained(jobs):
            building = finished.directory.parent
            unfinished.remove(building)
            if building not in unfinished:
                building.rename(places[building])


def _jobs(building: Path, workload: Workload, request: ModelRequest) -> list[_Job]:
    """Runs the demonstrations and makes the tokenizer."""
    print(f"{workload.name}: running demonstrations of {len(workload.training)} training tasks in the sandbox")
    demonstrations = asyncio.run(collect(workload, seed=request.seed, corrupted_per_task=CORRUPTED_PER_TASK))
    texts = (text for demonstration in demonstrations for text in demonstration.texts)
    chat = Chat(train_tokenizer(texts, vocab_size=VOCABULARY))
    jobs = []
    for name, recipe in (("student", STUDENT), ("teacher", TEACHER)):
        chat.tokenizer.save_pretrained(str(building / name))
        shared = {"steps": request.steps, "seed": request.seed, "demonstrations": demonstrations}
        jobs.append(_Job(directory=building / name, recipe=recipe, **shared))
    return jobs


def _trained(jobs: Sequence[_Job]) -> Iterator[_Job]:
    """Trains and saves the models, as many at a time as there are cores; yields each job when it is done."""
    from tqdm import tqdm

    context = multiprocessing.get_context("spawn")
    steps_done = context.Value("q", 0)
    waiting, running = deque(jobs), {}
    cores = len(os.sched_getaffinity(0))
    try:
        with tqdm(total=sum(j.steps for j in jobs), desc="students and teachers", unit="step", disable=None) as bar:
            while waiting or running:
                while waiting and len(running) < cores:
                    process = context.Process(target=_train_process, args=(waiting[0], steps_done))
                    process.start()
                    running[process.sentinel] = process, waiting.popleft()
                ended = connection.wait(running, timeout=0.5)
                bar.update(steps_done.value - bar.n)
                for process, job in map(running.pop, ended):
                    process.join()
                    if process.exitcode != 0:
                        raise RuntimeError(f"the warm start of {job.directory} failed; its error is printed above")
                    yield job
    finally:
        for process, _ in running.values():
            process.terminate()
            process.join()


def _train_process(job: _Job, steps_done) -> None:
    """Entry point of a training process: one thread, so that bits repeat whoever else is at work."""
    import torch

    def advance() -> None:
        with steps_done.get_lock():
            steps_done.value += 1

    torch.set_num_threads(1)
    chat = load_chat(job.directory)
    model = train(job.recipe, chat, job.demonstrations, steps=job.steps, seed=job.seed, advance=advance)
    model.save_pretrained(str(job.directory))
