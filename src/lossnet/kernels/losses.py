"""Losses and their slopes, each instance's in one kernel; what is left to do backward is one product."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.language.extra import libdevice

__all__ = ["contrast", "cross_entropy"]


def contrast(energies: Tensor, offset: Tensor) -> Tensor:
    """``−log softmax(offset − E)`` of the first of candidates, ``(batch,)``; both are ``(batch, 1 + K)``."""
    result: Tensor = _Loss.apply(energies, offset, _contrast)  # type: ignore[no-untyped-call]
    return result


def cross_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """``Σ_i softplus(l_i) − y_i l_i``, ``(batch,)``, of logits and truth ``(batch, labels)``."""
    result: Tensor = _Loss.apply(logits, truth, _cross_entropy)  # type: ignore[no-untyped-call]
    return result


class _Loss(torch.autograd.Function):
    """A loss of rows ``values`` given rows ``others`` that carry no gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, others: Tensor, kernel: Any) -> Tensor:
        values, others = values.contiguous(), others.contiguous()
        rows, width = values.shape
        losses, slopes = values.new_empty(rows), torch.empty_like(values)
        block = triton.next_power_of_2(width)
        with torch.cuda.device(values.device):
            kernel[(rows,)](
                values, others, losses, slopes, width, BLOCK=block, num_warps=1 if block <= 256 else 4
            )
        ctx.save_for_backward(slopes)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return gradient.unsqueeze(1) * slopes, None, None


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
