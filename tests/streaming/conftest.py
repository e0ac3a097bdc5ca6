import pytest
import torch

torch.set_num_threads(1)  # models of a few hundred weights: more threads only get in each other's way


@pytest.fixture(scope="module")
def one_turn_a_pass():
    """Trajectories here have few tokens: otherwise all turns of one would share a forward pass under `turn_forward`."""
    from thundersync.streaming import stream, turn_graph

    with pytest.MonkeyPatch.context() as patched:
        for module in (stream, turn_graph):
            patched.setattr(module, "PASS_TOKENS", 1)
        yield
