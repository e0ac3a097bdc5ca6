"""Scoring checkpoints offline: pass@k, the attempt ledger, evaluation runs, confidence intervals."""
