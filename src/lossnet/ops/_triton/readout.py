"""``vᵀ softplus(h)``, the last two layers of an energy, in one kernel forward and one back."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from triton.language.extra import libdevice

#: rows that one program works on
_ROWS = 16


def read_out(hidden: Tensor, weights: Tensor) -> Tensor:
    """Return ``Σ_j v_j softplus(h_j)`` of ``(R, rows, hidden)``, ``v`` ``(R, hidden)``, as ``(R, rows)``."""
    result: Tensor = _ReadOut.apply(hidden.contiguous(), weights.contiguous())  # type: ignore[no-untyped-call]
    return result


class _ReadOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weights)
        networks, rows, width = hidden.shape
        out = hidden.new_empty(networks, rows)
        with torch.cuda.device(hidden.device):
            _forward[(triton.cdiv(rows, _ROWS), networks)](
                hidden, weights, out, rows, width, ROWS=_ROWS, WIDTH=triton.next_power_of_2(width)
            )
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden, weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            each = gradient.unsqueeze(-1)
            return each * weights.unsqueeze(1) * torch.sigmoid(hidden), (each * F.softplus(hidden)).sum(1)
        of_hidden, of_weights = ctx.needs_input_grad
        networks, rows, width = hidden.shape
        blocks = triton.cdiv(rows, _ROWS)
        d_hidden = torch.empty_like(hidden)
        parts = hidden.new_empty(networks, blocks, width) if of_weights else hidden
        with torch.cuda.device(hidden.device):
            _backward[(blocks, networks)](
                gradient.contiguous(), hidden, weights, d_hidden, parts, rows, width, blocks,
                OF_WEIGHTS=of_weights, ROWS=_ROWS, WIDTH=triton.next_power_of_2(width),
            )  # fmt: skip
        return d_hidden if of_hidden else None, parts.sum(1) if of_weights else None


@triton.jit
def _softplus(x):  # type: ignore[no-untyped-def]
    """``log(1 + eˣ)``."""
    return tl.where(x > 20, x, tl.maximum(x, 0.0) + libdevice.log1p(tl.exp(-tl.abs(x))))


@triton.jit  # type: ignore[untyped-decorator]
def _forward(hidden, weights, out, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    network = tl.program_id(1).to(tl.int64)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (column[None, :] < width)
    at = (network * rows + row[:, None]) * width + column[None, :]
    weight = tl.load(weights + network * width + column, column < width, other=0.0)
    summed = tl.sum(_softplus(tl.load(hidden + at, inside, other=0.0)) * weight[None, :], 1)
    tl.store(out + network * rows + row, summed, row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    gradient, hidden, weights, d_hidden, parts, rows, width, blocks,
    OF_WEIGHTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``parts`` ``(R, blocks, hidden)`` add up to the weights' gradient."""
    block, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, column = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (column[None, :] < width)
    at = (network * rows + row[:, None]) * width + column[None, :]
    weight = tl.load(weights + network * width + column, column < width, other=0.0)
    each = tl.load(gradient + network * rows + row, row < rows, other=0.0)[:, None]
    value = tl.load(hidden + at, inside, other=0.0)
    slope = each * weight[None, :] / (1 + tl.exp(-value))
    tl.store(d_hidden + at, slope, inside)
    if OF_WEIGHTS:
        place = parts + (network * blocks + block) * width + column
        tl.store(place, tl.sum(each * _softplus(value), 0), column < width)
