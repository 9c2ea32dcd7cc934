"""Label sets: drawn beside the truth, weighed label by label, and mixed by a matrix.

Sets are made of ones and zeros, which 16 bits hold exactly.  Beside the sets themselves, ``(…, labels)``, is
a *short* copy of them in bfloat16, half as many bytes to read, whose rows have zeros behind them to begin
where tensor cores read fast, ``(…, apart)``.  Forward, a matrix is rounded to the 11 bits of float16, as
TF32 would round it; backward, where numbers may be tiny, each is the sum of two of bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from lossnet.kernels.readout import slopes, summed

__all__ = ["draw", "interact", "mix", "weigh"]

_BLOCK = 1024
#: what the bits of bfloat16's 1 mean in float16
_ONE = 1.875


def draw(logits: Tensor, truth: Tensor, samples: int, count: int, words: Tensor) -> tuple[Tensor, Tensor]:
    """The truth and independent samples beside it, ``count`` times, ``(count, R·b, 1 + samples, labels)``.

    The second is their short copy.

    Args:
        logits: of labels' chances, ``(R·b, labels)``; NaN is never drawn.
        truth: of the same shape, ones and zeros.
        samples: in each round.
        count: rounds.
        words: a random word for each network's part of the batch, ``(R,)``.
    """
    logits, truth = logits.contiguous(), truth.contiguous()
    rows, labels = logits.shape
    apart = triton.cdiv(labels, 16) * 16
    drawn = logits.new_empty(count, rows, 1 + samples, labels)
    short = logits.new_empty(count, rows, 1 + samples, apart, dtype=torch.bfloat16)
    with torch.cuda.device(logits.device):
        _draw[(rows, count, max(1, triton.cdiv(samples, 4)))](
            logits,
            truth,
            words,
            drawn,
            short,
            rows,
            rows // len(words),
            labels,
            apart,
            samples,
            words.stride(0),
            BLOCK=min(_BLOCK, triton.next_power_of_2(apart)),
        )
    return drawn, short


def mix(short: Tensor, weight: Tensor) -> Tensor:
    """``y W`` of short sets ``(R, rows, apart)`` with ``(R, labels, outputs)``."""
    result: Tensor = _Mix.apply(short, weight)  # type: ignore[no-untyped-call]
    return result


def interact(
    short: Tensor, weight: Tensor, weights: Tensor, keep: Callable[[Tensor, Tensor], bool] | None = None
) -> Tensor:
    """``Σ_j v_j softplus((y W)_j)`` of short sets ``(R, rows, apart)``, as ``(R, rows)``.

    ``W`` is ``(R, labels, hidden)``, ``v`` ``(R, hidden)``.  ``keep`` is offered the values and the factor
    that the gradient of ``W`` is made of.
    """
    result: Tensor = _Interact.apply(short, weight, weights.contiguous(), keep)  # type: ignore[no-untyped-call]
    return result


def weigh(short: Tensor, weights: Tensor) -> Tensor:
    """``Σ weights · y`` of short sets ``(…, batch, K, apart)``, as ``(…, batch, K)``.

    Weights are ``(batch, labels)``.
    """
    result: Tensor = _Weigh.apply(short, weights)  # type: ignore[no-untyped-call]
    return result


def _mixed(short: Tensor, weight: Tensor) -> Tensor:
    weight = weight.contiguous()
    networks, labels, outputs = weight.shape
    rounded = weight.new_empty(networks, short.shape[2], outputs, dtype=torch.float16)
    sizes = labels * outputs, short.shape[2] * outputs
    with torch.cuda.device(weight.device):
        _round[(triton.cdiv(sizes[1], _BLOCK), networks)](weight, rounded, *sizes, _ONE, BLOCK=_BLOCK)
    return torch.bmm(short.view(torch.float16), rounded, out_dtype=torch.float32)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, short: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(short)
        ctx.labels = weight.shape[1]
        return _mixed(short, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (short,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return None, torch.bmm(short[..., : ctx.labels].mT.to(gradient.dtype), gradient)
        gradient = gradient.contiguous()
        networks, rows, width = gradient.shape
        halves = gradient.new_empty(networks, rows, 2 * width, dtype=torch.bfloat16)
        found = gradient.new_empty(networks, ctx.labels, width)
        with torch.cuda.device(gradient.device):
            size = gradient.numel()
            _halve[(triton.cdiv(size, _BLOCK),)](gradient, halves, size, width, BLOCK=_BLOCK)
            both = torch.bmm(short.mT, halves, out_dtype=torch.float32)
            size, larger = found[0].numel(), both[0].numel()
            _join[(triton.cdiv(size, _BLOCK), networks)](both, found, size, larger, width, BLOCK=_BLOCK)
        return None, found


class _Interact(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, short: Tensor, weight: Tensor, weights: Tensor, keep: Any) -> Tensor:
        hidden = _mixed(short, weight)
        ctx.save_for_backward(short, hidden, weight, weights)
        ctx.keep = keep
        return summed(hidden, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None, None]:
        short, hidden, weight, weights = ctx.saved_tensors
        labels = weight.shape[1]
        if torch.is_grad_enabled():  # to be differentiated again
            long, each = short[..., :labels].to(weight.dtype), gradient.unsqueeze(-1)
            hidden = torch.bmm(long, weight)
            slope = each * weights.unsqueeze(1) * torch.sigmoid(hidden)
            return None, torch.bmm(long.mT, slope), (each * F.softplus(hidden)).sum(1), None
        _, of_weight, of_weights, _ = ctx.needs_input_grad
        slope, factor, d_weights = slopes(gradient, hidden, weights, of_weights, unit=_ONE)
        if not of_weight:
            return None, None, d_weights, None
        values = torch.bmm(short.view(torch.float16).mT, slope, out_dtype=torch.float32)
        if ctx.keep is not None and ctx.keep(values, factor):
            return None, None, d_weights, None
        return None, values[:, :labels] * factor.view(-1, 1, 1), d_weights, None


class _Weigh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, short: Tensor, weights: Tensor) -> Tensor:
        weights = weights.contiguous()
        (batch, labels), (candidates, apart) = weights.shape, short.shape[-2:]
        rows = short[..., 0, 0].numel()
        out = weights.new_empty(short.shape[:-1])
        with torch.cuda.device(weights.device):
            _weigh[(rows, triton.cdiv(candidates, 8))](
                short,
                weights,
                out,
                batch,
                candidates,
                labels,
                apart,
                SETS=8,
                BLOCK=min(256, triton.next_power_of_2(labels)),
            )
        ctx.save_for_backward(short)
        ctx.labels = labels
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (short,) = ctx.saved_tensors
        if short.dim() != 3 or torch.is_grad_enabled():
            long = short[..., : ctx.labels].to(gradient.dtype)
            found = (gradient.unsqueeze(-1) * long).sum(-2)
            return None, found.flatten(0, -3).sum(0) if found.dim() > 2 else found
        batch, candidates, apart = short.shape
        found = gradient.new_empty(batch, ctx.labels)
        with torch.cuda.device(gradient.device):
            _spread[(batch, triton.cdiv(ctx.labels, 256))](
                short, gradient.contiguous(), found, candidates, ctx.labels, apart, BLOCK=256
            )
        return None, found


@triton.jit  # type: ignore[untyped-decorator]
def _draw(  # type: ignore[no-untyped-def]
    logits, truth, words, drawn, short, rows, size, labels, apart, samples, words_apart, BLOCK: tl.constexpr
):  # fmt: skip
    row, turn, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    network = row // size
    word = tl.load(words + network * words_apart)
    place = (turn.to(tl.int64) * rows + row) * (1 + samples)
    # Of its own network: alone it draws the same.
    first = ((turn * size + row - network * size) * tl.num_programs(2) + group) * labels
    for start in range(0, apart, BLOCK):
        label = start + tl.arange(0, BLOCK)
        inside, known = label < apart, label < labels
        at = row.to(tl.int64) * labels + label
        chance = 1 / (1 + tl.exp(-tl.load(logits + at, known, other=0.0)))
        chance = tl.where(known, chance, 0.0)
        # Random numbers come by four: of as many samples.
        a, b, c, d = tl.rand4x(word, first + label, n_rounds=7)
        for i in tl.static_range(4):
            uniform = a if i == 0 else b if i == 1 else c if i == 2 else d
            sample = 4 * group + i
            into, value = place + 1 + sample, tl.where(uniform < chance, 1.0, 0.0)
            tl.store(drawn + into * labels + label, value, known & (sample < samples))
            tl.store(short + into * apart + label, value.to(tl.bfloat16), inside & (sample < samples))
        if group == 0:
            right = tl.load(truth + at, known, other=0.0)
            tl.store(drawn + place * labels + label, right, known)
            tl.store(short + place * apart + label, right.to(tl.bfloat16), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _round(values, rounded, size, larger, ONE, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers ``(R, size)`` in float16 and zeros behind them, ``(R, larger)``, in units of ``ONE``."""
    network, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + network * size + at, at < size, other=0.0) / ONE
    tl.store(rounded + network * larger + at, value.to(tl.float16), at < larger)


@triton.jit  # type: ignore[untyped-decorator]
def _halve(values, halves, size, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers ``(…, width)`` as sums of two, ``(…, 2 width)``."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + at, at < size, other=0.0)
    high = value.to(tl.bfloat16)
    low = (value - high.to(tl.float32)).to(tl.bfloat16)
    into = halves + at // width * 2 * width + at % width
    tl.store(into, high, at < size)
    tl.store(into + width, low, at < size)


@triton.jit  # type: ignore[untyped-decorator]
def _join(both, out, size, larger, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sums of both halves of ``(R, n, 2 width)``, of which there are ``larger`` numbers each."""
    network, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, place = at < size, both + network * larger + at // width * 2 * width + at % width
    total = tl.load(place, inside, other=0.0) + tl.load(place + width, inside, other=0.0)
    tl.store(out + network * size + at, total, inside)


@triton.jit  # type: ignore[untyped-decorator]
def _weigh(  # type: ignore[no-untyped-def]
    short, weights, out, batch, candidates, labels, apart, SETS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    candidate = tl.program_id(1) * SETS + tl.arange(0, SETS)
    real = candidate < candidates
    into = row * candidates + candidate
    summed = tl.zeros((SETS, BLOCK), tl.float32)
    for start in range(0, labels, BLOCK):
        label = start + tl.arange(0, BLOCK)
        weight = tl.load(weights + row % batch * labels + label, label < labels, other=0.0)
        inside = real[:, None] & (label[None, :] < apart)
        chosen = tl.load(short + into[:, None] * apart + label[None, :], inside, other=0.0)
        summed += chosen.to(tl.float32) * weight[None, :]
    tl.store(out + into, tl.sum(summed, 1), real)


@triton.jit  # type: ignore[untyped-decorator]
def _spread(short, gradient, out, candidates, labels, apart, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """``Σ_k g_k y_k`` of each instance, ``(batch, labels)``."""
    row, label = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, summed = label < labels, tl.zeros((BLOCK,), tl.float32)
    for candidate in range(candidates):
        at = row * candidates + candidate
        chosen = tl.load(short + at * apart + label, inside, other=0.0)
        summed += tl.load(gradient + at) * chosen.to(tl.float32)
    tl.store(out + row * labels + label, summed, inside)
