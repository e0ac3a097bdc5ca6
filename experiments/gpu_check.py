"""One GPU, a few minutes, torch and transformers only: `python -m experiments.gpu_check`.

On a Qwen3-shaped model of about 0.6B with random weights: streamed against direct gradients in FP32 and BF16, peak
memory and learner throughput of each way to learn the same batch, and what moving gradients into the running sums in
host memory costs. `--size tiny` runs the same on a CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from thundersync.objectives import GRPO
from thundersync.streaming import Continuation, GradientStream
from thundersync.streaming.running_sums import RunningSums


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    config: Qwen3Config
    groups: int
    members: int
    prompt: int
    turns: int
    turn: int


SIZES = {
    "0.6b": Size(
        config=Qwen3Config(
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            vocab_size=151936,
            tie_word_embeddings=True,
        ),
        groups=2,
        members=4,
        prompt=512,
        turns=4,
        turn=384,
    ),
    "tiny": Size(
        config=Qwen3Config(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            vocab_size=512,
            tie_word_embeddings=True,
        ),
        groups=2,
        members=4,
        prompt=32,
        turns=3,
        turn=16,
    ),
}
WAYS = ("direct", "trajectory", "content", "turn_forward")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path("results/gpu_check"))
    arguments = parser.parse_args()
    if arguments.size == "0.6b" and arguments.device == "cpu":
        parser.error("0.6b needs a GPU: use --size tiny on a CPU")
    report = check(SIZES[arguments.size], torch.device(arguments.device), arguments.repetitions)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def check(size: Size, device: torch.device, repetitions: int) -> dict:
    """Everything, with FP32 products in full FP32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    batch = make_batch(size)
    report = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "tokens": sum(len(c.ids) for _, members in batch for c in members) + sum(len(p) for p, _ in batch),
    }
    directions = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        torch.manual_seed(0)
        # Rounded to BF16 in both: the same parameters, so that only arithmetic differs.
        model = AutoModelForCausalLM.from_config(size.config, dtype=torch.bfloat16).to(device, dtype).eval()
        report["parameters"] = sum(p.numel() for p in model.parameters())
        report[name] = {}
        for way in WAYS:
            directions[name, way], report[name][way] = measure(model, size, batch, way, repetitions, device)
        report[name]["sums_to_host"] = sums_to_host(model, repetitions, device)
        del model
    reference = directions["fp32", "direct"]
    for (name, way), direction in directions.items():
        against = {"fp32": "relative_error", "bf16": "relative_error_to_fp32"}[name]
        report[name][way][against] = float((direction - reference).norm() / reference.norm())
    return report


def make_batch(size: Size) -> list[tuple[torch.Tensor, list[Continuation]]]:
    """(prompt ids, trajectories) of each group; half of all tokens are scored, rewards differ within a group."""
    generator = torch.Generator().manual_seed(0)
    vocabulary, length = size.config.vocab_size, size.turns * size.turn
    batch = []
    for _ in range(size.groups):
        members = [
            Continuation(
                ids=torch.randint(vocabulary, (length,), generator=generator),
                scored=torch.rand(length, generator=generator) < 0.5,
                reward=float(i % 3) / 2,
            )
            for i in range(size.members)
        ]
        batch.append((torch.randint(vocabulary, (size.prompt,), generator=generator), members))
    return batch


def measure(model, size: Size, batch, way: str, repetitions: int, device) -> tuple[torch.Tensor, dict]:
    """The direction, flat and on the host, and best time, throughput and peak memory of learning the batch."""
    seconds = []
    for _ in range(repetitions):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        started = _now(device)
        direction = learn(model, size, batch, way)
        seconds.append(_now(device) - started)
    tokens = sum(len(c.ids) for _, members in batch for c in members)
    found = {"seconds": min(seconds), "trajectory_tokens_per_s": tokens / min(seconds)}
    if device.type == "cuda":
        found["peak_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
    return torch.cat([t.double().reshape(-1) for t in direction.values()]), found


def learn(model, size: Size, batch, way: str) -> dict[str, torch.Tensor]:
    """The batch's direction. Streamed ways take the trajectories of all groups in turn, as they could become ready."""
    stream = GradientStream(model, GRPO(prompts=size.groups), run_tokens=4 * size.turns * size.turn)
    stream.open()
    if way == "direct":
        for g, (prompt, members) in enumerate(batch):
            stream.add_group(g, prompt, members)
        return stream.close()
    for g, (prompt, members) in enumerate(batch):
        stream.open_group(g, size=len(members), prompt_ids=prompt)
    for i in range(size.members):
        for g, (_, members) in enumerate(batch):
            if way == "trajectory":
                stream.add_trajectory(g, i, members[i])
            elif way == "content":
                stream.add_content(g, i, members[i])
                stream.bind_reward(g, i, members[i].reward)
            else:
                for start in range(0, size.turns * size.turn, size.turn):
                    turn = slice(start, start + size.turn)
                    stream.forward_turn(g, i, Continuation(ids=members[i].ids[turn], scored=members[i].scored[turn]))
                stream.close_trajectory(g, i, members[i].reward)
    for g in range(size.groups):
        stream.close_group(g)
    return stream.close()


def sums_to_host(model, repetitions: int, device) -> dict:
    """What one source pays to be folded: its gradients to host memory, and both sums of GRPO."""
    parameters = list(model.parameters())
    sums = RunningSums(parameters, 2)
    gradients = [torch.randn_like(p) for p in parameters]
    fold = _best(lambda: sums.fold((0.5, 1.0), gradients), repetitions, device)
    move = _best(lambda: [g.to("cpu", torch.float32) for g in gradients], repetitions, device)
    return {"fold_s": fold, "of_it_transfer_s": move, "bytes_of_both_sums": 2 * 4 * sum(p.numel() for p in parameters)}


def _best(work: Callable[[], object], repetitions: int, device) -> float:
    found = []
    for _ in range(repetitions):
        started = _now(device)
        work()
        found.append(_now(device) - started)
    return min(found)


def _now(device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
