"""Which inputs of a batch are in use: those of ``R`` networks that are not zero in all instances."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lossnet.kernels.thin import Used

__all__ = ["used"]


def used(x: Tensor) -> Used:
    """The inputs ``(R, rows, inputs)`` with those in use, in their order, before the others."""
    x = x.contiguous()
    networks, rows, inputs = x.shape
    apart = triton.cdiv(inputs, 4) * 4
    flags = torch.empty(networks, inputs, dtype=torch.int32, device=x.device)
    order = torch.empty_like(flags)
    count = torch.empty(networks, dtype=torch.int32, device=x.device)
    sorted_x = x.new_empty(networks, rows, apart)
    with torch.cuda.device(x.device):
        _look[(triton.cdiv(inputs, 128), networks)](x, flags, rows, inputs, AT_ONCE=32, BLOCK=128)
        _sort[(networks,)](flags, order, count, inputs, BLOCK=1024)
        _gather[(triton.cdiv(inputs, 256), rows, networks)](
            x, order, sorted_x, rows, inputs, apart, BLOCK=256
        )
    return Used(sorted_x, order, count)


@triton.jit  # type: ignore[untyped-decorator]
def _look(x, flags, rows, inputs, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 for inputs that are not all zeros (NaN is none), else 0."""
    network, column = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, rows, AT_ONCE):
        row = start + tl.arange(0, AT_ONCE)
        inside = (row[:, None] < rows) & (column[None, :] < inputs)
        values = tl.load(x + (network * rows + row[:, None]) * inputs + column[None, :], inside, other=0.0)
        found = tl.maximum(found, tl.max((values != 0).to(tl.int32), 0))
    tl.store(flags + network * inputs + column, found, column < inputs)


@triton.jit  # type: ignore[untyped-decorator]
def _sort(flags, order, count, inputs, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Those in use from the start on, the others from the end on."""
    network = tl.program_id(0).to(tl.int64)
    before = 0
    for start in range(0, inputs, BLOCK):
        column = start + tl.arange(0, BLOCK)
        flag = tl.load(flags + network * inputs + column, column < inputs, other=0)
        rank = before + tl.cumsum(flag, 0) - flag  # how many in use are before this one
        place = tl.where(flag == 1, rank, inputs - 1 - (column - rank))
        tl.store(order + network * inputs + place, column, column < inputs)
        before += tl.sum(flag, 0)
    tl.store(count + network, before)


@triton.jit  # type: ignore[untyped-decorator]
def _gather(x, order, out, rows, inputs, apart, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, network = tl.program_id(1), tl.program_id(2).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.load(order + network * inputs + place, place < inputs, other=0)
    value = tl.load(x + (network * rows + row) * inputs + column, place < inputs, other=0.0)
    tl.store(out + (network * rows + row) * apart + place, value, place < inputs)
