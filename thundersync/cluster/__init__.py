"""The ports as Ray actors: one code path for a laptop and a cluster."""
