"""Gradient streaming for GRPO in one page, checked against the plain gradient. Runs on a CPU in seconds.

python experiments/examples/grpo_stream.py
"""

import random

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from thundersync.objectives import GRPO
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

# Two prompts, four trajectories each: two actions (scored) with an observation (not scored) between them.
prompts = [torch.randint(512, (20,)) for _ in range(2)]
mask = torch.tensor([True] * 12 + [False] * 8 + [True] * 12)
ids = {(g, i): torch.randint(512, (32,)) for g in range(2) for i in range(4)}
reward = {source: random.Random(str(source)).random() for source in ids}

# Streamed: each trajectory is learnt when its reward arrives, in whatever order that is.
stream = GradientStream(model, GRPO(prompts=2))
stream.open()
for g in range(2):
    stream.open_group(g, size=4, prompt_ids=prompts[g])
for g, i in sorted(ids, key=reward.get):
    stream.add_trajectory(g, i, Continuation(ids=ids[g, i], scored=mask, reward=reward[g, i]))
for g in range(2):
    stream.close_group(g)
streamed = stream.close()  # ascent direction: parameter name -> FP32 tensor; clip it and take one optimizer step

# Plain: all rewards first, full sequences without a cache, one backward pass through the textbook loss.
loss = torch.zeros(())
for g in range(2):
    r = torch.tensor([reward[g, i] for i in range(4)], dtype=torch.float64)
    advantages = ((r - r.mean()) / (r.std(correction=0) + 1e-6)).float()
    for i in range(4):
        full = torch.cat([prompts[g], ids[g, i]])[None]
        logprobs = torch.log_softmax(model(input_ids=full).logits[0, 19:-1], -1)[range(32), ids[g, i]]
        loss = loss - advantages[i] * logprobs[mask].mean() / 8
loss.backward()

error = sum((streamed[name] + p.grad).square().sum() for name, p in model.named_parameters()).sqrt()
norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
print(f"gradient norm {norm:.4f}, relative error of the streamed gradient {error / norm:.1e}")
if error > 2e-6 * norm:
    raise SystemExit("the streamed gradient differs from the plain one")
