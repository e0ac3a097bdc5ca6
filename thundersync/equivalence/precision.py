"""Arithmetic for comparisons: FP64 that stays FP64, and BF16 products at a speed that any CPU has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


def native_bf16() -> bool:
    """Whether this CPU multiplies BF16 matrices itself."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextlib.contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """The context in which a model of that precision is run."""
    bf16 = contextlib.nullcontext if native_bf16() else ProductsThroughFP32
    with {"fp32": contextlib.nullcontext, "fp64": WideCasts, "bf16": bf16}[precision]():
        yield


class WideCasts(TorchFunctionMode):
    """Casts to float32 follow an FP64 model instead.

    transformers casts to float32 inside norms, rotary embeddings, softmax, routers and the delta rule whatever the
    model's dtype, which limits an FP64 run to about 1e-7. Meant for FP64 models only: every cast to float32 in its
    scope becomes one to float64. PyTorch's grouped product of experts, which does not know FP64, becomes a loop.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            func, args = torch.Tensor.double, args[:1]
        if func is torch._grouped_mm and args[0].dtype == torch.float64:
            return _grouped_product(*args[:2], kwargs["offs"])
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        kwargs = {name: torch.float64 if value is torch.float32 else value for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _grouped_product(rows_NI: torch.Tensor, experts_EIO: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    """[N, O]: rows up to ends_E[0] times the first expert, from there up to ends_E[1] times the second, and so on."""
    ends = ends_E.tolist()
    products = [rows_NI[a:b] @ expert for a, b, expert in zip([0, *ends], ends, experts_EIO, strict=False)]
    return torch.cat([*products, rows_NI.new_zeros(len(rows_NI) - ends[-1], experts_EIO.shape[-1])])


class ProductsThroughFP32(TorchDispatchMode):
    """BF16 matrix products computed in FP32 and rounded to BF16: what BF16 hardware does, accumulating in FP32.

    A CPU without BF16 instructions takes some thirty times as long for its own BF16 products.
    """

    _PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in self._PRODUCTS or args[0].dtype != torch.bfloat16:
            return func(*args, **(kwargs or {}))
        return func(*(a.float() if isinstance(a, torch.Tensor) else a for a in args), **(kwargs or {})).bfloat16()
