"""``vᵀ softplus(h)``, the last two layers of an energy, in one kernel forward and one back."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from lossnet.kernels.elementary import softplus

__all__ = ["read_out", "slopes", "summed"]

#: rows that one program works on
_ROWS = 16


def read_out(hidden: Tensor, weights: Tensor) -> Tensor:
    """``Σ_j v_j softplus(h_j)`` of ``(R, rows, hidden)`` with weights ``(R, hidden)``, as ``(R, rows)``."""
    result: Tensor = _ReadOut.apply(hidden.contiguous(), weights.contiguous())  # type: ignore[no-untyped-call]
    return result


class _ReadOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weights)
        return summed(hidden, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden, weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            each = gradient.unsqueeze(-1)
            return each * weights.unsqueeze(1) * torch.sigmoid(hidden), (each * F.softplus(hidden)).sum(1)
        of_hidden, of_weights = ctx.needs_input_grad
        d_hidden, _, d_weights = slopes(gradient, hidden, weights, of_weights)
        return d_hidden if of_hidden else None, d_weights


def summed(hidden: Tensor, weights: Tensor) -> Tensor:
    """See `read_out`; not to be differentiated."""
    networks, rows, width = hidden.shape
    out = hidden.new_empty(networks, rows)
    with torch.cuda.device(hidden.device):
        _forward[(triton.cdiv(rows, _ROWS), networks)](
            hidden, weights, out, rows, width, ROWS=_ROWS, WIDTH=triton.next_power_of_2(width)
        )
    return out


def slopes(
    gradient: Tensor, hidden: Tensor, weights: Tensor, of_weights: bool, unit: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of `read_out` by ``hidden`` and, if asked for, by its weights.

    Given a ``unit``, the first are in float16, each network's as large as they may be, so that they have the
    11 bits of TF32 however small they are; between both is what makes them right, ``(R,)``, per unit.
    """
    networks, rows, width = hidden.shape
    blocks = triton.cdiv(rows, _ROWS)
    d_hidden = torch.empty_like(hidden, dtype=hidden.dtype if unit is None else torch.float16)
    factor = hidden.new_empty(networks)
    parts = hidden.new_empty(networks, blocks, width) if of_weights else None
    with torch.cuda.device(hidden.device):
        _backward[(blocks, networks)](
            gradient.contiguous(),
            hidden,
            weights,
            d_hidden,
            hidden if parts is None else parts,
            factor,
            1.0 if unit is None else unit,
            rows,
            width,
            blocks,
            OF_WEIGHTS=of_weights,
            SMALL=unit is not None,
            ROWS=_ROWS,
            ALL=triton.next_power_of_2(rows),
            WIDTH=triton.next_power_of_2(width),
        )
        if parts is None:
            return d_hidden, factor, None
        d_weights = torch.empty_like(weights)
        _add[(triton.cdiv(width, 32), networks)](parts, d_weights, width, blocks, COLUMNS=32, ROWS=64)
    return d_hidden, factor, d_weights


@triton.jit  # type: ignore[untyped-decorator]
def _forward(hidden, weights, out, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    network = tl.program_id(1).to(tl.int64)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (column[None, :] < width)
    at = (network * rows + row[:, None]) * width + column[None, :]
    weight = tl.load(weights + network * width + column, column < width, other=0.0)
    summed = tl.sum(softplus(tl.load(hidden + at, inside, other=0.0)) * weight[None, :], 1)
    tl.store(out + network * rows + row, summed, row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    gradient, hidden, weights, d_hidden, parts, factor, unit, rows, width, blocks,
    OF_WEIGHTS: tl.constexpr, SMALL: tl.constexpr,
    ROWS: tl.constexpr, ALL: tl.constexpr, WIDTH: tl.constexpr,
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
    if SMALL:
        every = tl.arange(0, ALL)
        steepest = tl.max(tl.abs(tl.load(gradient + network * rows + every, every < rows, other=0.0)), 0)
        # 2ᵏ times the largest slope there may be is at most 2¹⁵, half of what float16 can hold.
        power = 14 - tl.ceil(tl.log2(tl.maximum(steepest * tl.max(tl.abs(weight), 0), 1e-30)))
        slope = (slope * tl.exp2(power)).to(tl.float16)
        if block == 0:
            tl.store(factor + network, tl.exp2(-power) / unit)
    tl.store(d_hidden + at, slope, inside)
    if OF_WEIGHTS:
        place = parts + (network * blocks + block) * width + column
        tl.store(place, tl.sum(each * softplus(value), 0), column < width)


@triton.jit  # type: ignore[untyped-decorator]
def _add(parts, total, width, blocks, COLUMNS: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of all parts, ``(R, width)``."""
    network = tl.program_id(1).to(tl.int64)
    column, summed = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, blocks, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < blocks) & (column[None, :] < width)
        at = (network * blocks + row[:, None]) * width + column[None, :]
        summed += tl.sum(tl.load(parts + at, inside, other=0.0), 0)
    tl.store(total + network * width + column, summed, column < width)
