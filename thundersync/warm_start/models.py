"""The embedded models: a student policy that is warm-started imperfectly, and a larger, better-trained frozen teacher.

Both are Qwen3 models made here, from nothing: demonstrations are run in the sandbox (demonstrations.py), one tokenizer
is trained on their text, and the two models learn the action tokens at the same time in two processes of one thread.
The result is cached under the digest of everything that made it.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import queue
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from thundersync.environments.workload import Workload, load_workload
from thundersync.rollout import chat as chat_layout
from thundersync.rollout.chat import Chat, load_chat, train_tokenizer
from thundersync.rollout.settings import GenerationSettings
from thundersync.warm_start.demonstrations import Demonstration, Renaming, collect, encode
from thundersync.warm_start.widen import widened

VOCABULARY = 768
CORRUPTED_PER_TASK = 2
WARMUP_STEPS = 20
POOLED_BATCHES = 4
"""Batches that are drawn together and cut by length, so that little is spent on padding."""
OBSERVATION_HEAD = OBSERVATION_TAIL = 128
"""Demonstrations keep long observations as the embedded generation settings do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One model and its training. Matrices are trained with Muon, everything else with Adam."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    batch: int
    """Demonstrations of a step."""
    clean_share: float
    """Share of demonstrations that are the reference; the others carry a mistake."""
    context_weight: float = 0.1
    """Loss weight of the tokens that are not actions: predicting what repeats in observations also teaches to copy."""
    matrix_rate: float = 0.02
    rate: float = 1e-2


STUDENT = Recipe(layers=3, hidden=160, intermediate=480, heads=4, kv_heads=2, batch=16, clean_share=0.5)
TEACHER = Recipe(layers=4, hidden=192, intermediate=576, heads=6, kv_heads=2, batch=16, clean_share=0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPaths:
    """Two directories that `from_pretrained` reads, with the same tokenizer in both."""

    student: Path
    teacher: Path
    tokenizer_digest: str
    """SHA-256 of the tokenizer's serialised form."""


def build_models(
    root: Path,
    workload: str,
    *,
    seed: int,
    steps: int,
    demonstrated_tasks: int | None = None,
    intermediate: int | None = None,
) -> ModelPaths:
    """Student and teacher for a workload; built below `root` unless they are there. Prints progress with time left.

    With `intermediate` the student's MLPs are widened to so many units after its warm start. Raises ValueError for
    fewer than it has.
    """
    tasks = load_workload(workload, root=root, training_tasks=demonstrated_tasks)
    digest = _digest(tasks, seed, steps)
    directory = Path(root) / "models" / f"{workload}-{digest[:16]}"
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        # Complete or absent: an interrupted build leaves nothing that could be taken for a model.
        building = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        try:
            _build(building, tasks, seed, steps)
            building.rename(directory)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    tokenizer = load_chat(directory / "student").tokenizer.backend_tokenizer.to_str()
    return ModelPaths(
        student=_student(directory, intermediate, seed),
        teacher=directory / "teacher",
        tokenizer_digest=hashlib.sha256(tokenizer.encode()).hexdigest(),
    )


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


def _digest(workload: Workload, seed: int, steps: int) -> str:
    """Of the training tasks with their references, the recipes, and the code of the warm start and of the layout."""
    tasks = [(task.task_id, task.instruction, workload.reference_commands(task.task_id)) for task in workload.training]
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(chat_layout.__file__)]
    code = [source.read_text(encoding="utf-8") for source in sources]
    return hashlib.sha256(repr((tasks, STUDENT, TEACHER, code, seed, steps)).encode()).hexdigest()


def _build(directory: Path, workload: Workload, seed: int, steps: int) -> None:
    from tqdm import tqdm

    print(f"{workload.name}: running demonstrations of {len(workload.training)} training tasks in the sandbox")
    demonstrations = asyncio.run(collect(workload, seed=seed, corrupted_per_task=CORRUPTED_PER_TASK))
    texts = (text for demonstration in demonstrations for text in demonstration.texts)
    chat = Chat(train_tokenizer(texts, vocab_size=VOCABULARY))
    chat.tokenizer.save_pretrained(str(directory / "student"))
    chat.tokenizer.save_pretrained(str(directory / "teacher"))
    context = multiprocessing.get_context("spawn")
    progress = context.Queue()
    jobs = {"student": STUDENT, "teacher": TEACHER}
    workers = {
        name: context.Process(
            target=_train_process, args=(directory / name, recipe, steps, demonstrations, seed, progress)
        )
        for name, recipe in jobs.items()
    }
    for worker in workers.values():
        worker.start()
    try:
        with tqdm(total=2 * steps, desc=f"{workload.name}: student and teacher", unit="step", disable=None) as bar:
            while any(worker.is_alive() for worker in workers.values()):
                try:
                    bar.update(progress.get(timeout=0.5))
                except queue.Empty:
                    continue
            while not progress.empty():
                bar.update(progress.get())
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.join()
    failed = [name for name, worker in workers.items() if worker.exitcode != 0]
    if failed:
        raise RuntimeError(f"the warm start of the {' and '.join(failed)} failed; its error is printed above")


def _train_process(
    directory: Path, recipe: Recipe, steps: int, demonstrations: list[Demonstration], seed: int, progress
) -> None:
    """Entry point of a training process: one thread, so that two of them share two cores and bits repeat."""
    import torch

    torch.set_num_threads(1)
    model = train(recipe, load_chat(directory), demonstrations, steps=steps, seed=seed, advance=lambda: progress.put(1))
    model.save_pretrained(str(directory))


def train(
    recipe: Recipe, chat: Chat, demonstrations: list[Demonstration], *, steps: int, seed: int, advance=lambda: None
):
    """Supervised learning of the action tokens. Returns the model, in evaluation mode. Deterministic on one thread."""
    import torch

    torch.manual_seed(seed)
    model = _new_model(recipe, chat)
    batches = _Batches(recipe, chat, demonstrations, np.random.default_rng(seed), Random(seed))
    optimizers = _optimizers(model, recipe)
    for step in range(steps):
        ids_BT, weights_BT = batches.draw()
        logits_BTV = model(input_ids=ids_BT[:, :-1]).logits
        losses = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none")
        weights = weights_BT[:, 1:].flatten()
        ((losses * weights).sum() / weights.sum()).backward()
        scale = min(1.0, (step + 1) / WARMUP_STEPS) * (1 - 0.9 * step / steps)
        for optimizer, rate in optimizers:
            optimizer.param_groups[0]["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad()
        advance()
    return model.eval()


def _optimizers(model, recipe: Recipe):
    """(optimizer, learning rate): Muon for the matrices outside the embeddings, Adam for the rest.

    With Muon every direction of a matrix moves at one rate: small models learn to copy in a fraction of Adam's steps.
    """
    import torch

    from thundersync.warm_start.muon import Muon

    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return (
        (Muon(matrices, lr=recipe.matrix_rate), recipe.matrix_rate),
        (torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0), recipe.rate),
    )


def _new_model(recipe: Recipe, chat: Chat):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from thundersync.warm_start.copy_heads import plant_copy_heads

    model = Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=recipe.hidden,
            intermediate_size=recipe.intermediate,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.kv_heads,
            head_dim=32,
            attention_bias=True,
            vocab_size=-(-len(chat.tokenizer) // 16) * 16,
            max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            initializer_range=0.08,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=chat.end_id,
            pad_token_id=chat.pad_id,
        )
    )
    plant_copy_heads(model)
    return model


class _Batches:
    """Training batches: ids int64 [B, T] and loss weights float32 [B, T]."""

    def __init__(self, recipe: Recipe, chat: Chat, demonstrations: list[Demonstration], rng, order: Random) -> None:
        self.recipe, self.chat, self.rng, self.order = recipe, chat, rng, order
        self.renaming = Renaming(chat)
        settings = GenerationSettings(
            observation_head=OBSERVATION_HEAD,
            observation_tail=OBSERVATION_TAIL,
            max_observation_tokens=OBSERVATION_HEAD + OBSERVATION_TAIL,
        )
        self.clean = [encode(chat, d, settings) for d in demonstrations if d.clean]
        self.corrupted = [encode(chat, d, settings) for d in demonstrations if not d.clean]
        self.pending: list[list[tuple[np.ndarray, np.ndarray]]] = []

    def draw(self):
        """Demonstrations drawn with replacement, each with names of its own; those of a batch have similar lengths."""
        import torch

        if not self.pending:
            drawn = sorted(
                (self._one() for _ in range(POOLED_BATCHES * self.recipe.batch)), key=lambda one: len(one[0])
            )
            self.pending = [drawn[i : i + self.recipe.batch] for i in range(0, len(drawn), self.recipe.batch)]
            self.order.shuffle(self.pending)
        chosen = self.pending.pop()
        width = max(len(ids) for ids, _ in chosen)
        ids_BT = np.full((len(chosen), width), self.chat.pad_id, np.int64)
        weights_BT = np.zeros((len(chosen), width), np.float32)
        for row, (ids, scored) in enumerate(chosen):
            ids_BT[row, : len(ids)] = self.renaming.table(self.rng)[ids]
            weights_BT[row, : len(ids)] = np.where(scored, 1.0, self.recipe.context_weight)
        return torch.from_numpy(ids_BT), torch.from_numpy(weights_BT)

    def _one(self) -> tuple[np.ndarray, np.ndarray]:
        return self.order.choice(self.clean if self.order.random() < self.recipe.clean_share else self.corrupted)
