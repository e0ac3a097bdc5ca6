"""One GPU, a few minutes, torch and transformers only: `python -m experiments.gpu_check`.

On a Qwen3-shaped model of about 0.6B with random weights: streamed against direct gradients in FP32 and BF16, peak
memory and learner throughput of each way to learn the same batch, and what moving gradients into the running sums in
host memory costs. Exits with status 1 when a streamed FP32 direction is too far from the direct one. `--size tiny` runs
the same on a CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from thundersync.objectives import GRPO, OPD
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
WAYS = {
    "grpo": ("direct", "trajectory", "content", "turn_forward"),
    "opd": ("direct", "turn_eager", "content", "turn_forward"),
}
DIRECTION_FP32 = 2e-6
"""Largest relative error of a streamed FP32 direction, as in the equivalence check."""


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
    sys.exit(1 if report["broken"] else 0)


def check(size: Size, device: torch.device, repetitions: int) -> dict:
    """Everything, with FP32 products in full FP32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    batch = make_batch(size)
    report = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "tokens": sum(len(c.ids) for _, members in batch for c in members) + sum(len(p) for p, _ in batch),
    }
    references: dict[str, dict[str, torch.Tensor]] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        torch.manual_seed(0)
        # Rounded to BF16 in both: the same parameters, so that only arithmetic differs.
        model = AutoModelForCausalLM.from_config(size.config, dtype=torch.bfloat16).to(device, dtype).eval()
        report["parameters"] = sum(p.numel() for p in model.parameters())
        report[name] = {objective: {} for objective in WAYS}
        for objective, ways in WAYS.items():
            for way in ways:
                direction, found = measure(model, size, batch, objective, way, repetitions, device)
                reference = references.setdefault(objective, direction)  # FP32, direct
                report[name][objective][way] = found | {"error_to_fp32_direct": relative_error(direction, reference)}
        report[name]["sums_to_host"] = sums_to_host(model, repetitions, device)
        del model
    report["broken"] = [
        f"{objective}, {way}: {found['error_to_fp32_direct']:.2e}, threshold {DIRECTION_FP32:.0e}"
        for objective in WAYS
        for way, found in report["fp32"][objective].items()
        if not found["error_to_fp32_direct"] < DIRECTION_FP32
    ]
    return report


def relative_error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """||found - expected|| / ||expected||, in FP64, tensor by tensor: wide copies of everything would not fit."""
    gap = sum(float((found[name].double() - tensor.double()).square().sum()) for name, tensor in expected.items())
    return math.sqrt(gap / sum(float(tensor.double().square().sum()) for tensor in expected.values()))


def make_batch(size: Size) -> list[tuple[torch.Tensor, list[Continuation]]]:
    """(prompt ids, trajectories) of each group; half of all tokens are scored, rewards differ within a group.

    The teacher's log-probabilities are random.
    """
    generator = torch.Generator().manual_seed(0)
    vocabulary, length = size.config.vocab_size, size.turns * size.turn
    batch = []
    for _ in range(size.groups):
        members = []
        for i in range(size.members):
            scored = torch.rand(length, generator=generator) < 0.5
            members.append(
                Continuation(
                    ids=torch.randint(vocabulary, (length,), generator=generator),
                    scored=scored,
                    reward=float(i % 3) / 2,
                    teacher_logprobs=-10 * torch.rand(int(scored.sum()), generator=generator),
                )
            )
        batch.append((torch.randint(vocabulary, (size.prompt,), generator=generator), members))
    return batch


def measure(model, size: Size, batch, objective: str, way: str, repetitions: int, device) -> tuple[dict, dict]:
    """The direction, on the host, and best time, throughput and peak memory of learning the batch."""
    seconds = []
    for _ in range(repetitions):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        started = _now(device)
        direction = learn(model, size, batch, objective, way)
        seconds.append(_now(device) - started)
    tokens = sum(len(c.ids) for _, members in batch for c in members)
    found = {"seconds": min(seconds), "trajectory_tokens_per_s": tokens / min(seconds)}
    if device.type == "cuda":
        found["peak_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
    return direction, found


def learn(model, size: Size, batch, objective: str, way: str) -> dict[str, torch.Tensor]:
    """The batch's direction. Streamed ways take the trajectories of all groups in turn, as they could become ready."""
    weighted = GRPO(prompts=size.groups) if objective == "grpo" else OPD()
    stream = GradientStream(model, weighted, run_tokens=4 * size.turns * size.turn)
    stream.open()
    if way == "direct":
        for g, (prompt, members) in enumerate(batch):
            stream.add_group(g, prompt, members)
        return stream.close()
    for g, (prompt, members) in enumerate(batch):
        stream.open_group(g, size=len(members), prompt_ids=prompt)
    for i in range(size.members):
        for g, (_, members) in enumerate(batch):
            if way == "trajectory" or (way == "content" and not weighted.needs_reward):
                stream.add_trajectory(g, i, members[i])
            elif way == "content":
                stream.add_content(g, i, members[i])
                stream.bind_reward(g, i, members[i].reward)
            else:
                for turn in turns(members[i], size):
                    (stream.add_turn if way == "turn_eager" else stream.forward_turn)(g, i, turn)
                stream.close_trajectory(g, i, members[i].reward)
    for g in range(size.groups):
        stream.close_group(g)
    return stream.close()


def turns(member: Continuation, size: Size) -> Iterator[Continuation]:
    """The trajectory, cut into its turns."""
    scored_before = 0
    for start in range(0, size.turns * size.turn, size.turn):
        turn = slice(start, start + size.turn)
        scored = int(member.scored[turn].sum())
        teacher = member.teacher_logprobs[scored_before : scored_before + scored]
        yield Continuation(ids=member.ids[turn], scored=member.scored[turn], teacher_logprobs=teacher)
        scored_before += scored


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
