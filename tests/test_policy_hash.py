"""The policy hash: one byte, one name, one shape or one dtype changes it; ties and order of names do not."""

import torch

from thundersync.policy_hash import policy_hash


def tensors():
    return {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(4, dtype=torch.bfloat16)}


def test_every_byte_name_shape_and_dtype_counts():
    base = tensors()
    reference = policy_hash(base)
    corrupted = tensors()
    corrupted["b"].view(torch.uint8)[1, 7] ^= 1
    changed = [
        corrupted,
        {"c": base["b"], "a": base["a"]},
        {"b": base["b"].reshape(3, 2), "a": base["a"]},
        {"b": base["b"].view(torch.int32), "a": base["a"]},
        {"a": base["a"]},
    ]
    assert len({reference, *map(policy_hash, changed)}) == 6


def test_order_and_memory_layout_do_not_count():
    base = tensors()
    assert policy_hash(dict(reversed(base.items()))) == policy_hash(base)
    strided = {"b": base["b"].T.contiguous().T, "a": base["a"]}
    assert not strided["b"].is_contiguous() and policy_hash(strided) == policy_hash(base)


def test_tied_tensors_count_once():
    weight = torch.randn(3, 2)
    assert policy_hash({"embed": weight, "head": weight}) == policy_hash({"embed": weight})
    assert policy_hash({"embed": weight, "head": weight.clone()}) != policy_hash({"embed": weight})
    # A slice that starts at the same address is not the same tensor.
    assert policy_hash({"embed": weight, "part": weight[:1]}) != policy_hash({"embed": weight})
