"""The FLOP ledger: what the learner's kernels multiply, operator by operator (Appendix B.1, numerator of Equation 10).

    product of (m x k) and (k x n)     2 m k n
    linear layer, T tokens             2 T d_in d_out forward; backward the same for the input gradient and again for
                                       the weight gradient. A frozen weight drops the latter and keeps the former where
                                       a gradient has to pass through it; a LoRA adapter adds its own two products.
    attention                          causal pairs once; backward is twice the forward (Attention.core)

Tokens count whether they are scored or not, and so does padding that a kernel sees. Elementwise work counts nothing.
A `Pass` is one forward and backward of the model as our learner runs it; `flop_passes` says which passes it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from thundersync.learner.flop_shapes import Attention, DeltaNet, Layer, Linear, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Adapters of rank r on the linear layers whose names are targets; everything else is frozen."""

    rank: int
    targets: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One run of the model over `rows` sequences of `tokens` tokens each, padding included."""

    tokens: int
    rows: int = 1
    context: int = 0
    """Earlier tokens of the sequence whose cached state is read. Their state owes a gradient, so one is computed."""
    logits: int = 0
    """Positions of each row at which the vocabulary projection runs."""
    backward: Literal["loss", "states", "none"] = "loss"
    """From a loss at the logits, or from gradients of the cached states (closure of a prompt, replay of turns)."""
    forward: bool = True
    """False where an earlier pass's graph is used once more."""


@dataclass(slots=True)
class Flops:
    """Whole numbers of floating point operations, by operator."""

    forward: Counter[str] = field(default_factory=Counter)
    backward: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.forward.total() + self.backward.total()

    def of(self, operator: str) -> int:
        return self.forward[operator] + self.backward[operator]

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.forward + other.forward, self.backward + other.backward)


OPERATORS = ("projections", "adapters", "attention", "convolution", "delta_rule", "delta_solves", "mlp", "experts",
             "router", "vocabulary")  # fmt: skip


def count(shape: Shape, run: Pass, lora: Lora | None = None) -> Flops:
    """FLOPs of one pass. Without `lora` every weight trains, the embeddings too, so gradients pass through it all."""
    tally = _Tally(run, lora)
    flows = lora is None  # whether the residual stream carries a gradient: trained embeddings ask for one
    for i, layer in enumerate(shape.layers):
        states_only = run.backward == "states" and i == len(shape.layers) - 1
        flows = tally.layer(layer, flows, states_only)
    tally.linear("vocabulary", shape.vocabulary, run.rows * run.logits, flows, run.backward == "loss")
    tally.flops.forward, tally.flops.backward = +tally.flops.forward, +tally.flops.backward
    return tally.flops


def total(shape: Shape, runs: Iterable[Pass], lora: Lora | None = None) -> Flops:
    return sum((count(shape, run, lora) for run in runs), Flops())


class _Tally:
    """Adds up one pass. `flows` says of a tensor whether a gradient is asked of it."""

    def __init__(self, run: Pass, lora: Lora | None) -> None:
        self.run, self.lora, self.flops = run, lora, Flops()
        self.tokens = run.rows * run.tokens

    def trains(self, linear: Linear) -> bool:
        return self.lora is None or linear.name in self.lora.targets

    def linear(self, operator: str, linear: Linear, rows: int, flows: bool, backward: bool) -> bool:
        """Counts one linear layer; returns whether its output carries a gradient."""
        rows *= linear.per_token
        product = 2 * rows * linear.d_in * linear.d_out
        self.add(operator, product, product * (flows + (self.lora is None)) if backward else 0)
        if self.lora is not None and self.trains(linear):
            down, up = 2 * rows * linear.d_in * self.lora.rank, 2 * rows * self.lora.rank * linear.d_out
            self.add("adapters", down + up, down * (1 + flows) + 2 * up if backward else 0)
        return flows or self.trains(linear)

    def add(self, operator: str, forward: int, backward: int) -> None:
        self.flops.forward[operator] += forward if self.run.forward else 0
        self.flops.backward[operator] += backward

    def layer(self, layer: Layer, flows: bool, states_only: bool) -> bool:
        """One decoder layer; with `states_only` its backward pass starts at its own cached state."""
        backward = self.run.backward != "none"
        mixer, made = layer.mixer, {"": flows}
        for linear in mixer.inputs:
            rows, source = self.tokens, made[linear.follows]
            if linear.reads_context:
                rows += self.run.rows * self.run.context
                source = source or self.run.context > 0
            wanted = backward and (not states_only or linear.name in mixer.state)
            made[linear.name] = self.linear("projections", linear, rows, source, wanted)
        core = any(made.values()) or self.run.context > 0
        whole = backward and not states_only
        (self.attention if isinstance(mixer, Attention) else self.delta_net)(mixer, core and whole, core and backward)
        flows = self.linear("projections", mixer.output, self.tokens, core, whole) or flows
        made = {"": flows}
        for linear in layer.mlp:
            made[linear.name] = self.linear(_operator(linear), linear, self.tokens, made[linear.follows], whole)
        return any(made.values())

    def attention(self, mixer: Attention, whole: bool, _: bool) -> None:
        core = mixer.core(self.run.rows, self.run.tokens, self.run.context)
        self.add("attention", core, 2 * core if whole else 0)

    def delta_net(self, mixer: DeltaNet, whole: bool, backward: bool) -> None:
        """A backward pass that starts at this layer's own state counts the whole rule: an upper bound."""
        rows, tokens, context = self.run.rows, self.run.tokens, self.run.context
        convolution, solves = mixer.convolution(rows, tokens), mixer.solves(rows, tokens)
        owes = self.run.backward == "states"
        self.add(
            "convolution", convolution, 2 * convolution if backward and self.lora is None else convolution * backward
        )
        self.add("delta_rule", mixer.rule(rows, tokens), mixer.rule_backward(rows, tokens, context, owes) * backward)
        self.add("delta_solves", solves, solves * backward)


def _operator(linear: Linear) -> str:
    if linear.name == "gate":
        return "router"
    return "experts" if linear.name.startswith("experts.") else "mlp"
