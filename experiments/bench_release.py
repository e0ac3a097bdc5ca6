"""What each release policy costs the learner: `python -m experiments.bench_release`.

One trajectory of several turns, against the plain forward and backward of the same tokens (= 1), alternating within
each repetition, on one thread. Early work is done while the trajectory grows; the tail is what is left when its last
turn is ready, that turn's own work included. Under `content` the tail runs beside the verifier.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from experiments.compose import compose_run, in_words
from paper_figures import common
from paper_figures.release_report import draw, frame, text
from thundersync.learner.policy import load_policy
from thundersync.objectives import GRPO, OPD
from thundersync.streaming import Continuation, GradientStream
from thundersync.trainer import embedded_models

RELEASES = ("trajectory", "content", "turn_eager", "turn_forward")
PROMPT = 64
CASES = ((2, 64), (4, 64), (8, 32), (8, 64), (12, 128), (24, 32))
"""(turns, tokens of a turn)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as of experiments.train, for instance workload=micro_terminal")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("results/release"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with in_words():
        model = load_policy(embedded_models(compose_run(arguments.overrides)).student)
    rows = []
    for turns, tokens in tqdm(CASES, desc="release policies", disable=None):
        rows += measure(model, turns, tokens, arguments.repetitions)
    report = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "prompt_tokens": PROMPT,
        "repetitions": arguments.repetitions,
        "unit": "plain forward and backward of the same tokens, one thread, median of repetitions",
        "rows": rows,
    }
    common.write_results(arguments.results, draw(report), frame(report), report, text(report))
    print(text(report))


def measure(model, turns: int, tokens: int, repetitions: int) -> list[dict]:
    """One row per release policy: medians over the repetitions, each against the plain pass of its own repetition."""
    generator = torch.Generator().manual_seed(turns * 1000 + tokens)
    vocabulary = model.config.vocab_size
    prompt = torch.randint(vocabulary, (PROMPT,), generator=generator)
    pieces = [torch.randint(vocabulary, (tokens,), generator=generator) for _ in range(turns)]
    masks = [torch.rand(tokens, generator=generator) < 0.5 for _ in range(turns)]
    sources = [
        Continuation(ids=ids, scored=mask, teacher_logprobs=torch.full((int(mask.sum()),), -1.0))
        for ids, mask in zip(pieces, masks, strict=True)
    ]
    found: dict[str, list[tuple[float, ...]]] = {release: [] for release in RELEASES}
    peak, sums = {}, {}
    for repetition in range(repetitions + 1):
        plain = _seconds(lambda: _plain(model, prompt, torch.cat(pieces), torch.cat(masks)))
        for release in RELEASES:
            if repetition:
                early, tail, sums[release] = _run(model, release, prompt, sources)
                found[release].append((early / plain, tail / plain))
            else:  # warms up; counting costs time, so that this one is not timed
                saved = PeakOfSaved(model)
                with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
                    _run(model, release, prompt, sources)
                peak[release] = saved.peak
    return [
        {
            "turns": turns,
            "tokens_per_turn": tokens,
            "release": release,
            "early": statistics.median(early for early, _ in pairs),
            "tail": statistics.median(tail for _, tail in pairs),
            "total": statistics.median(early + tail for early, tail in pairs),
            "peak_graph_bytes": peak[release],
            "peak_sums_bytes": sums[release],
        }
        for release, pairs in found.items()
    ]


def _run(model, release: str, prompt, sources) -> tuple[float, float, int]:
    """Seconds before the last turn is ready, and from there to the closed group; most bytes of running sums."""
    if release == "content":
        return _content(model, prompt, _joined(sources))
    stream = GradientStream(model, OPD())
    stream.open()
    stream.open_group(0, size=1, prompt_ids=prompt)
    steps: list[Callable[[], object]]
    if release == "trajectory":
        early, steps = 0.0, [lambda: stream.add_trajectory(0, 0, _joined(sources))]
    else:
        add = stream.add_turn if release == "turn_eager" else stream.forward_turn
        early = _seconds(lambda: [add(0, 0, source) for source in sources[:-1]])
        steps = [lambda: add(0, 0, sources[-1]), lambda: stream.close_trajectory(0, 0)]
    tail = _seconds(lambda: [step() for step in [*steps, lambda: stream.close_group(0)]])
    stream.close()
    return early, tail, stream.memory.peak_sums


def _content(model, prompt, source: Continuation) -> tuple[float, float, int]:
    """Of a trajectory whose gradient waits for its reward; it closes a group of GRPO, its sibling being done."""
    stream = GradientStream(model, GRPO(prompts=1))
    stream.open()
    stream.open_group(0, size=2, prompt_ids=prompt)
    stream.add_trajectory(0, 0, replace(source, reward=0.0))
    steps = [lambda: stream.add_content(0, 1, source), lambda: stream.bind_reward(0, 1, 1.0)]
    tail = _seconds(lambda: [step() for step in [*steps, lambda: stream.close_group(0)]])
    stream.close()
    return 0.0, tail, stream.memory.peak_sums


def _plain(model, prompt, ids, mask) -> None:
    """The loss of the whole sequence in one forward and one backward pass."""
    full = torch.cat([prompt, ids])
    logits = model(input_ids=full[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits[mask].float(), -1).gather(-1, ids[mask][:, None])
    torch.autograd.grad(logprobs.sum(), [p for p in model.parameters() if p.requires_grad])


def _joined(sources) -> Continuation:
    return Continuation(
        ids=torch.cat([s.ids for s in sources]),
        scored=torch.cat([s.scored for s in sources]),
        teacher_logprobs=torch.cat([s.teacher_logprobs for s in sources]),
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class PeakOfSaved:
    """Bytes that autograd holds at once for backward passes: each storage once, the model's parameters not at all."""

    def __init__(self, model) -> None:
        self.live = self.peak = 0
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self._holders: Counter[int] = Counter()

    def pack(self, tensor):
        return _Held(self, tensor)

    def unpack(self, held):
        return held.tensor

    def count(self, storage, change: int) -> None:
        """One holder more (1) or fewer (-1) of a storage."""
        place = storage.data_ptr()
        if place in self._parameters:
            return
        self._holders[place] += change
        if self._holders[place] == (change > 0):  # the first holder came, or the last one went
            self.live += change * storage.nbytes()
            self.peak = max(self.peak, self.live)


class _Held:
    def __init__(self, saved: PeakOfSaved, tensor) -> None:
        self.saved, self.tensor = saved, tensor
        saved.count(tensor.untyped_storage(), 1)

    def __del__(self) -> None:
        self.saved.count(self.tensor.untyped_storage(), -1)


if __name__ == "__main__":
    main()
