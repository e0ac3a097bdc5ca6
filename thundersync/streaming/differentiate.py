"""Forward and backward of segments: scores in, parameter gradients and boundary adjoints out.

    S = sum_t w_t log pi(a_t | h_t)            H = grad S at the fixed parameters            (Equations 4 and 8)

Shapes: B segments run together, T tokens (padded), K positions that some segment scores, N scored tokens in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thundersync.objectives.objective import Objective
from thundersync.streaming.boundaries import Piece, run_segment
from thundersync.streaming.scores import Segment, SourceStatistics, sampled_logprobs, statistics_of


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one backward pass gives. None stands for a zero gradient."""

    parameters: list[Tensor | None]
    adjoints: list[list[Tensor | None]]
    """For each piece of the context, with respect to each of its leaves."""

    @property
    def tensors(self) -> list[Tensor | None]:
        return [*self.parameters, *(adjoint for piece in self.adjoints for adjoint in piece)]


def backward(
    outputs: Sequence[Tensor],
    seeds: Sequence[Tensor] | None,
    parameters: Sequence[Tensor],
    context: Sequence[Piece],
    keep_graph: bool = False,
) -> Gradients:
    """Gradients of sum(seeds * outputs) (of a scalar output when `seeds` is None). Sets no `.grad`.

    Frees the graph unless told to keep it.
    """
    leaves = [leaf for piece in context for leaf in piece.leaves]
    # Where only some parameters learn, the states of the layers below them depend on nothing.
    dependent = [i for i, output in enumerate(outputs) if output.requires_grad]
    gradients = [None] * (len(parameters) + len(leaves))
    if dependent:
        seeds = None if seeds is None else [seeds[i] for i in dependent]
        inputs = [*parameters, *leaves]
        dependent_outputs = [outputs[i] for i in dependent]
        gradients = list(
            torch.autograd.grad(dependent_outputs, inputs, seeds, retain_graph=keep_graph, allow_unused=True)
        )
    start = len(parameters)
    adjoints = []
    for piece in context:
        adjoints.append(gradients[start : start + len(piece.leaves)])
        start += len(piece.leaves)
    return Gradients(gradients[: len(parameters)], adjoints)


def differentiate(
    model: nn.Module,
    parameters: Sequence[Tensor],
    objective: Objective,
    segments: Sequence[Segment],
    weights: Sequence[float],
    context: Sequence[Piece],
    keep_states: bool = False,
) -> tuple[Gradients | None, tuple[Tensor, ...], SourceStatistics]:
    """sum_i weights_i H_i of segments that continue the same context, in one forward and one backward pass.

    Right padding is exact: a causal position never sees what follows it, and no padded position is scored.
    Returns the gradients (None when nothing is scored), the segments' detached states if asked for, and statistics.
    """
    nothing_scored = not any(segment.scored_tokens for segment in segments)
    if nothing_scored and not keep_states:
        return None, (), SourceStatistics()
    with torch.set_grad_enabled(not nothing_scored):
        logits_BKV, states, rows_N, columns_N = _forward(model, segments, context)
        ids_N = torch.cat([segment.targets_T[segment.positions_A] for segment in segments])
        logprobs_N, entropy_N = sampled_logprobs(logits_BKV[rows_N, columns_N], ids_N)
    statistics = statistics_of(segments, logprobs_N.detach(), entropy_N)
    detached = tuple(state.detach() for state in states) if keep_states else ()
    if nothing_scored:
        return None, detached, statistics
    score = logprobs_N.new_zeros(())
    for segment, weight, logprobs_A in zip(
        segments, weights, logprobs_N.split([segment.scored_tokens for segment in segments]), strict=True
    ):
        if segment.scored_tokens:
            w = objective.token_weights(logprobs_A.detach(), segment.teacher_A)
            score = score + weight * (w * logprobs_A).sum()
    return backward([score], None, parameters, context), detached, statistics


def forward_segment(
    model: nn.Module, segment: Segment, context: Sequence[Piece]
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Log-probabilities [A] of one segment (differentiable), entropies [A] (detached), and its states, attached."""
    logits_BKV, states, rows_N, columns_N = _forward(model, [segment], context)
    ids_N = segment.targets_T[segment.positions_A]
    logprobs_A, entropy_A = sampled_logprobs(logits_BKV[rows_N, columns_N], ids_N)
    return logprobs_A, entropy_A, states


def _forward(
    model: nn.Module, segments: Sequence[Segment], context: Sequence[Piece]
) -> tuple[Tensor, tuple[Tensor, ...], Tensor, Tensor]:
    """Logits [B, K, V], states, and for each of the N scored tokens its row and its column in the logits."""
    inputs_BT = torch.nn.utils.rnn.pad_sequence([segment.inputs_T for segment in segments], batch_first=True)
    keep_K = torch.cat([segment.positions_A for segment in segments]).unique()
    logits_BKV, states = run_segment(model, inputs_BT, context, keep_K)
    rows_N = torch.cat([torch.full_like(segment.positions_A, row) for row, segment in enumerate(segments)])
    columns_N = torch.searchsorted(keep_K, torch.cat([segment.positions_A for segment in segments]))
    return logits_BKV, states, rows_N, columns_N


def packs(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Indices of segments that share a forward pass: neighbours in length, at most `tokens` padded tokens together."""
    result: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if result and (len(result[-1]) + 1) * lengths[result[-1][0]] <= tokens:
            result[-1].append(i)
        else:
            result.append([i])
    return result
