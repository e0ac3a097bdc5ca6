"""A small continuous-batching engine over a transformers causal language model with full attention.

One step is one model call [rows, 1]: a decode row for every slot (always all of them), and behind them the prompt and
observation tokens of newly admitted sequences, bounded by `max_prefill_tokens_per_step`. A sequence with `computed`
valid keys and values and `length` known tokens needs rows for positions computed .. length - 1, and the last of these
samples token `length`. Decoding is the case of one missing position; a new request, a prefix cache hit and a sequence
whose weights were swapped in flight (computed = 0) differ in where they start, nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from thundersync.policy_hash import policy_hash
from thundersync.rollout.chat import Chat
from thundersync.rollout.engine import EngineCounters, GenerationRequest, GenerationResult, ServedPolicy
from thundersync.rollout.prefix_cache import PrefixCache
from thundersync.rollout.row_attention import ROW_ATTENTION, ROWS_STEP, Segment, SlotStates, segment
from thundersync.rollout.seeds import sampling_uniforms
from thundersync.rollout.settings import GenerationSettings


@dataclass(slots=True, kw_only=True)
class _Sequence:
    """A request in a slot."""

    request: GenerationRequest
    ids: np.ndarray
    """int32; history, then sampled tokens, preallocated for the longest action."""
    length: int
    computed: int
    uniforms: np.ndarray
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def prompt_length(self) -> int:
        return len(self.request.token_ids)

    @property
    def scripted_token(self) -> int:
        """The token that a script wants next, -1 where one is sampled."""
        scripted = self.request.scripted_ids
        return -1 if scripted is None or len(self.logprobs) >= len(scripted) else int(scripted[len(self.logprobs)])

    @property
    def missing(self) -> int:
        """Positions whose keys and values must be computed before the next token can be sampled."""
        return self.length - self.computed


class TransformersEngine:
    """Implements `engine.Engine`. It owns `model` from now on and computes without gradients, in the model's dtype."""

    def __init__(self, model, *, stop_id: int, settings: GenerationSettings, version: int = 0) -> None:
        self.model = model.eval().requires_grad_(False)
        self.model.set_attn_implementation(ROW_ATTENTION)
        self.settings = settings
        self.stop_id = stop_id
        self.version = version
        self.counters = EngineCounters()
        self.states = SlotStates(
            model.config,
            slots=settings.active_sequences_per_replica,
            positions=settings.max_context_tokens,
            dtype=model.dtype,
        )
        self.prefixes = PrefixCache(max_tokens=settings.prefix_cache_tokens)
        self._waiting: deque[GenerationRequest] = deque()
        self._slots: list[_Sequence | None] = [None] * settings.active_sequences_per_replica

    # ---- the Engine protocol

    def submit(self, request: GenerationRequest) -> None:
        total = len(request.token_ids) + request.max_tokens
        if len(request.token_ids) < 1 or request.max_tokens < 1:
            raise ValueError(f"{request.request_id}: a request needs at least one token and room for one more")
        if total > self.settings.max_context_tokens:
            raise ValueError(
                f"{request.request_id}: {len(request.token_ids)} tokens and {request.max_tokens} to sample exceed "
                f"generation.max_context_tokens, {self.settings.max_context_tokens}"
            )
        self._waiting.append(request)

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or any(self._slots)

    @torch.inference_mode()
    def step(self) -> list[GenerationResult]:
        self._admit()
        segments, rows = self._plan()
        if not rows:
            return []
        self.counters.steps += 1
        rows += [(0, self.states.scratch, self.stop_id)] * (-len(rows) % ROWS_STEP)
        slots_N = torch.tensor([slot for slot, _, _ in rows])
        positions_N = torch.tensor([position for _, position, _ in rows])
        self.states.address(slots_N, positions_N)
        hidden_N1D = self.model.base_model(
            input_ids=torch.tensor([token for _, _, token in rows])[:, None],
            position_ids=positions_N[:, None],
            past_key_values=self.states.cache,
            use_cache=True,
            segments=segments,
        ).last_hidden_state
        return self._sample(segments, hidden_N1D[:, 0])

    def load_weights(self, state_dict: Mapping[str, torch.Tensor], version: int) -> None:
        current = dict(self.model.named_parameters())
        known = dict(self.model.named_parameters(remove_duplicate=False))
        for name, parameter in current.items():
            if name not in state_dict:
                raise ValueError(f"weights of version {version} lack the tensor {name}")
            if state_dict[name].shape != parameter.shape:
                raise ValueError(
                    f"weights of version {version}: {name} has shape {tuple(state_dict[name].shape)}, "
                    f"the served model has {tuple(parameter.shape)}"
                )
        unknown = sorted(set(state_dict) - set(known))
        if unknown:
            raise ValueError(f"weights of version {version} hold unknown tensors: {', '.join(unknown[:5])}")
        with torch.no_grad():
            for name, parameter in current.items():
                parameter.copy_(state_dict[name])
        self.version = version
        for sequence in self._active():
            sequence.computed = 0

    def clear_caches(self) -> None:
        self.prefixes.clear()

    def served(self) -> ServedPolicy:
        return ServedPolicy(
            version=self.version,
            policy_hash=policy_hash(dict(self.model.named_parameters())),
            cached_tokens=self.prefixes.tokens,
            cleared=self.prefixes.versions() <= {self.version},
        )

    # ---- one step

    def _active(self) -> list[_Sequence]:
        return [sequence for sequence in self._slots if sequence is not None]

    def _admit(self) -> None:
        """Fills free slots in order of submission. A twin of a prompt that starts in this step waits and reuses it."""
        starting: set[bytes] = set()
        for slot, sequence in enumerate(self._slots):
            if not self._waiting:
                return
            if sequence is not None:
                continue
            request = self._waiting[0]
            key = request.token_ids.tobytes()
            if self.settings.prefix_caching and key in starting:
                return
            starting.add(key)
            self._slots[slot] = self._start(slot, self._waiting.popleft())

    def _start(self, slot: int, request: GenerationRequest) -> _Sequence:
        length = len(request.token_ids)
        ids = np.empty(length + request.max_tokens, np.int32)
        ids[:length] = request.token_ids
        hit, states = (
            self.prefixes.longest(request.token_ids, self.version) if self.settings.prefix_caching else (0, None)
        )
        # The last token's own row must run: the first action token is sampled from it.
        hit = min(hit, length - 1)
        if hit:
            self.states.copy_in(slot, states, hit)
        self.counters.prefix_hit_tokens += hit
        self.counters.prefill_tokens += length - hit
        uniforms = sampling_uniforms(request.seed, request.max_tokens)
        return _Sequence(request=request, ids=ids, length=length, computed=hit, uniforms=uniforms)

    def _plan(self) -> tuple[list[Segment], list[tuple[int, int, int]]]:
        """The rows (slot, position, token) of this step, decode rows first, and their segments."""
        segments: list[Segment] = []
        rows: list[tuple[int, int, int]] = []
        groups, dtype = self.states.groups, self.states.tensor.dtype
        if any(sequence.missing == 1 for sequence in self._active()):
            for slot, sequence in enumerate(self._slots):
                if sequence is not None and sequence.missing == 1:
                    rows.append((slot, sequence.computed, int(sequence.ids[sequence.computed])))
                else:
                    rows.append((slot, self.states.scratch, self.stop_id))
            # Idle rows attend to position 0 only, whatever stands there: their result is thrown away.
            positions = [position if position != self.states.scratch else 0 for _, position, _ in rows]
            segments.append(segment(first_row=0, positions_N=positions, slot=None, groups=groups, dtype=dtype))
        budget = self.settings.max_prefill_tokens_per_step
        for slot, sequence in enumerate(self._slots):
            if sequence is None or sequence.missing == 1 or budget == 0:
                continue
            positions = list(range(sequence.computed, min(sequence.length, sequence.computed + budget)))
            budget -= len(positions)
            segments.append(segment(first_row=len(rows), positions_N=positions, slot=slot, groups=groups, dtype=dtype))
            rows += [(slot, position, int(sequence.ids[position])) for position in positions]
        return segments, rows

    def _sample(self, segments: list[Segment], hidden_ND: torch.Tensor) -> list[GenerationResult]:
        """Advances every sequence by its rows; samples where the last known position was computed."""
        ready: list[tuple[int, int]] = []
        for part in segments:
            if part.slot is None:
                ready += [(slot, slot) for slot, s in enumerate(self._slots) if s is not None and s.missing == 1]
            else:
                sequence = self._slots[part.slot]
                if sequence.missing == part.rows:
                    ready.append((part.slot, part.first_row + part.rows - 1))
                else:
                    sequence.computed += part.rows
        if not ready:
            return []
        chosen = [row for _, row in ready] + [ready[0][1]] * (-len(ready) % ROWS_STEP)
        logits = self.model.get_output_embeddings()(hidden_ND[chosen])[: len(ready)].float()
        sequences = [self._slots[slot] for slot, _ in ready]
        uniforms = torch.tensor([s.uniforms[len(s.logprobs)] for s in sequences], dtype=torch.float64)
        scripted = torch.tensor([s.scripted_token for s in sequences])
        tokens, logprobs = sample_tokens(logits, uniforms, scripted, temperature=self.settings.temperature)
        finished = []
        for (slot, _), sequence, token, logprob in zip(
            ready, sequences, tokens.tolist(), logprobs.tolist(), strict=True
        ):
            self._keep_prompt(slot, sequence)
            sequence.computed = sequence.length
            sequence.ids[sequence.length] = token
            sequence.length += 1
            sequence.logprobs.append(logprob)
            sequence.versions.append(self.version)
            if token == self.stop_id or len(sequence.logprobs) == sequence.request.max_tokens:
                finished.append(self._finish(slot, sequence))
        self.counters.generated_tokens += len(ready)
        return finished

    def _keep_prompt(self, slot: int, sequence: _Sequence) -> None:
        """The request's own tokens are complete: its siblings can start from them."""
        if self.settings.prefix_caching and not sequence.logprobs:
            self.prefixes.insert(
                sequence.request.token_ids, self.states.copy_out(slot, sequence.prompt_length), self.version
            )

    def _finish(self, slot: int, sequence: _Sequence) -> GenerationResult:
        self._slots[slot] = None
        if self.settings.prefix_caching:
            kept = sequence.ids[: sequence.computed].copy()
            self.prefixes.insert(kept, self.states.copy_out(slot, sequence.computed), self.version)
        action = sequence.ids[sequence.prompt_length : sequence.length].copy()
        return GenerationResult(
            request_id=sequence.request.request_id,
            action_ids=action,
            logprobs=np.array(sequence.logprobs, np.float32),
            versions=np.array(sequence.versions, np.int32),
            finish="stop" if action[-1] == self.stop_id else "length",
        )


def load_engine(policy: Path, *, chat: Chat, settings: GenerationSettings, version: int) -> TransformersEngine:
    """An engine that serves the policy saved in a directory, in FP32."""
    model = AutoModelForCausalLM.from_pretrained(str(policy), dtype=torch.float32)
    return TransformersEngine(model, stop_id=chat.end_id, settings=settings, version=version)


def sample_tokens(
    logits_NV: torch.Tensor, uniforms_N: torch.Tensor, scripted_N: torch.Tensor | None = None, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse-CDF sampling: the first token whose cumulative probability exceeds u.

    Args: logits float32 [N, V]; uniforms float64 [N] in [0, 1); scripted int64 [N], taken instead where not negative.
    Returns token ids int64 [N] and their log-probabilities at temperature one, float32 [N].
    """
    logprobs_NV = torch.log_softmax(logits_NV, -1)
    scaled_NV = logprobs_NV if temperature == 1 else torch.log_softmax(logits_NV / temperature, -1)
    cumulative_NV = scaled_NV.double().exp().cumsum(-1)
    target_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    tokens_N = (cumulative_NV <= target_N1).sum(-1).clamp(max=logits_NV.shape[-1] - 1)
    if scripted_N is not None:
        tokens_N = torch.where(scripted_N >= 0, scripted_N, tokens_N)
    return tokens_N, logprobs_NV.gather(-1, tokens_N[:, None])[:, 0]
