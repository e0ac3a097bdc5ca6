"""The ports on virtual time: the schedule files run unchanged, and an hour of rollout takes milliseconds."""
