"""Losses and their slopes, each instance's in one kernel; what is left to do backward is one product."""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice


def contrast(energies: Tensor, offset: Tensor) -> Tensor:
    """See `lossnet.ops.contrast`."""
    return cast("Tensor", _Loss.apply(energies.contiguous(), offset, _contrast, _of_contrast))  # type: ignore[no-untyped-call]


def cross_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """See `lossnet.ops.cross_entropy`."""
    return cast("Tensor", _Loss.apply(logits.contiguous(), truth, _cross_entropy, _of_cross_entropy))  # type: ignore[no-untyped-call]


class _Loss(torch.autograd.Function):
    """A loss of rows ``values`` given rows ``others`` that carry no gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, others: Tensor, kernel: Any, slope: Any) -> Tensor:
        others = others.contiguous()
        rows, width = values.shape
        losses, slopes = values.new_empty(rows), torch.empty_like(values)
        block = triton.next_power_of_2(width)
        with torch.cuda.device(values.device):
            kernel[(rows,)](
                values, others, losses, slopes, width, BLOCK=block, num_warps=1 if block <= 256 else 4
            )
        ctx.save_for_backward(values, others, slopes)
        ctx.slope = slope
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        values, others, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            slopes = ctx.slope(values, others)
        return gradient.unsqueeze(1) * slopes, None, None, None


def _of_contrast(energies: Tensor, offset: Tensor) -> Tensor:
    share = (offset - energies).softmax(1)
    return torch.cat([1 - share[:, :1], -share[:, 1:]], 1)


def _of_cross_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    return torch.sigmoid(logits) - truth


@triton.jit  # type: ignore[untyped-decorator]
def _contrast(energies, offset, losses, slopes, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside, at = place < width, row * width + place
    exponent = tl.load(offset + at, inside, other=0.0) - tl.load(energies + at, inside, other=0.0)
    exponent = tl.where(inside, exponent, float("-inf"))
    highest = tl.max(exponent, 0)
    weight = tl.exp(exponent - highest)
    total = tl.sum(weight, 0)
    first = tl.sum(tl.where(place == 0, exponent, 0.0), 0)
    tl.store(losses + row, highest + tl.log(total) - first)
    tl.store(slopes + at, tl.where(place == 0, 1.0, 0.0) - weight / total, inside)


@triton.jit  # type: ignore[untyped-decorator]
def _cross_entropy(logits, truth, losses, slopes, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside, at = place < width, row * width + place
    logit, known = tl.load(logits + at, inside, other=0.0), tl.load(truth + at, inside, other=0.0)
    small = tl.exp(-tl.abs(logit))
    loss = tl.maximum(logit, 0.0) + libdevice.log1p(small) - known * logit
    tl.store(losses + row, tl.sum(tl.where(inside, loss, 0.0), 0))
    tl.store(slopes + at, tl.where(logit < 0, small, 1.0) / (1 + small) - known, inside)
