"""Steps of TRL's GRPOTrainer on the job, in a process of its own: prints JSON with seconds and tokens of each step."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    print(json.dumps(measure(arguments.policy, arguments.steps, arguments.threads)))


def measure(policy: str, steps: int, threads: int) -> dict:
    """Step time: from one optimizer step's end to the next one's, generation and rewards included."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from experiments.peers.job import COMPLETION_TOKENS, GENERATIONS, LEARNING_RATE, PROMPTS, SENTENCES
    from thundersync.rollout.chat import load_chat

    torch.set_num_threads(threads)
    chat = load_chat(policy)
    rewards = itertools.cycle((0.0, 1.0))
    tokens: list[int] = []

    def alternate(completions, completion_ids, **_) -> list[float]:
        tokens.append(sum(map(len, completion_ids)))
        return [next(rewards) for _ in completions]

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_, **__) -> None:
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as directory:
        settings = GRPOConfig(
            output_dir=directory,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_steps=steps,
            per_device_train_batch_size=PROMPTS * GENERATIONS,
            num_generations=GENERATIONS,
            max_completion_length=COMPLETION_TOKENS,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            loss_type="grpo",
            beta=0.0,
            temperature=1.0,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        # The prompts are the very token sequences that our rollout starts from.
        prompts = [chat.tokenizer.decode(chat.prompt(text)) for text in SENTENCES]
        trainer = GRPOTrainer(
            model=policy,
            reward_funcs=alternate,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=AutoTokenizer.from_pretrained(policy, padding_side="left"),
            callbacks=[Clock()],
        )
        trainer.train()
    return {"seconds": [b - a for a, b in itertools.pairwise(ends)], "tokens": tokens[1:]}


if __name__ == "__main__":
    main()
