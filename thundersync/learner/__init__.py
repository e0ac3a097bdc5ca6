"""One learner rank: policy, gradient stream and optimizer."""
