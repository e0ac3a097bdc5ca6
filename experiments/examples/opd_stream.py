"""Gradient streaming for on-policy distillation, turn by turn, checked against the plain gradient. CPU, seconds.

python experiments/examples/opd_stream.py
"""

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from thundersync.objectives import OPD
from thundersync.streaming import Continuation, GradientStream

torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
model = AutoModelForCausalLM.from_config(config).eval()
teacher = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)

# One prompt, two trajectories of three turns: an observation (not scored), then an action (scored).
prompt = torch.randint(512, (20,))
ids = torch.randint(512, (2, 3, 16))  # trajectory, turn, token
mask = torch.tensor([False] * 6 + [True] * 10)


def logprobs(network: torch.nn.Module, trajectory: int) -> torch.Tensor:
    """log-probability of each token after the prompt, [turn, token], from one plain forward pass."""
    full = torch.cat([prompt, ids[trajectory].flatten()])[None]
    after_prompt = torch.log_softmax(network(input_ids=full).logits[0, 19:-1], -1)
    return after_prompt[range(48), full[0, 20:]].view(3, 16)


scores = [logprobs(teacher, i) for i in range(2)]

# Streamed: each turn is learnt as soon as the teacher has scored it, while its trajectory is still growing.
stream = GradientStream(model, OPD())
stream.open()
stream.open_group("g", size=2, prompt_ids=prompt)
for turn in range(3):
    for i in range(2):
        source = Continuation(ids=ids[i, turn], scored=mask, teacher_logprobs=scores[i][turn][mask])
        stream.add_turn("g", i, source)
for i in range(2):
    stream.close_trajectory("g", i)  # replays what later turns owe to earlier ones
stream.close_group("g")
streamed = stream.close()  # ascent direction: parameter name -> FP32 tensor, divided by the scored tokens

# Plain: full sequences without a cache, one backward pass through the token mean over the batch.
student = torch.stack([logprobs(model, i) for i in range(2)])[:, :, mask]
advantages = (torch.stack(scores)[:, :, mask] - student).detach()
(-(advantages * student).mean()).backward()

error = sum((streamed[name] + p.grad).square().sum() for name, p in model.named_parameters()).sqrt()
norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
print(f"gradient norm {norm:.4f}, relative error of the streamed gradient {error / norm:.1e}")
if error > 2e-6 * norm:
    raise SystemExit("the streamed gradient differs from the plain one")
