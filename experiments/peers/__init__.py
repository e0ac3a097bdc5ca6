"""The same small job for our trainer and for others: `python -m experiments.bench_peers`."""
