"""Linear layers with their softplus and dropout, few kernels, of networks side by side.

A layer of ``R`` networks maps inputs ``(R, rows, inputs)`` to ``(R, rows, outputs)``.  Batches are small, so
that products take no longer than starting a kernel does: what follows a product is computed where its result
is, and going back, the gradients of inputs, weights and bias are computed beside each other.  Factors are
rounded to 11 bits (TF32), which is all that tensor cores look at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from lossnet.kernels.elementary import rounded, softplus
from lossnet.kernels.thin import Used

__all__ = ["Keep", "layer"]

#: takes inputs ``(R, rows, inputs)`` and slopes ``(R, rows, outputs)``, and says whether it did
Keep = Callable[[Tensor, Tensor], bool]


def layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    upright: bool,
    active: bool = False,
    dropout: float = 0.0,
    words: Tensor | None = None,
    keep: Keep | None = None,
    used: Used | None = None,
) -> Tensor:
    """``x W + b``, its softplus where ``active``, and of that the part that dropout leaves.

    Args:
        x: inputs ``(R, rows, inputs)``.
        weight: ``(R, inputs, outputs)`` if ``upright``, else ``(R, outputs, inputs)``.
        bias: ``(R, outputs)``.
        upright: how weights lie.
        active: whether softplus follows.
        dropout: the chance of an output to become 0, if it is active; others are scaled up.
        words: a random word for each network, ``(R,)``, for dropout.
        keep: is offered what the gradients of weight and bias are made of.
        used: the inputs, where only these need be looked at.
    """
    x, weight = x.contiguous(), weight.contiguous()
    result: Tensor = _Layer.apply(x, weight, bias, upright, active, dropout, words, keep, used)  # type: ignore[no-untyped-call]
    return result


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        upright: bool,
        active: bool,
        dropout: float,
        words: Tensor | None,
        keep: Keep | None,
        used: Used | None,
    ) -> Tensor:
        networks, rows, inputs = x.shape
        outputs = weight.shape[2 if upright else 1]
        out = x.new_empty(networks, rows, outputs)
        tile = _forward_tile(outputs, networks, used is not None)
        grid = (triton.cdiv(outputs, tile["COLUMNS"]), triton.cdiv(rows, tile["ROWS"]), networks)
        with torch.cuda.device(x.device):
            _forward[grid](
                x if used is None else used.x,
                weight,
                x if bias is None else bias,
                x if words is None else words,
                x if used is None else used.order,
                x if used is None else used.count,
                out,
                rows,
                inputs,
                outputs,
                inputs if used is None else used.x.shape[2],
                0 if words is None else words.stride(0),
                dropout,
                1 / (1 - dropout),
                SOME=used is not None,
                UPRIGHT=upright,
                BIAS=bias is not None,
                ACTIVE=active,
                DROPS=dropout > 0,
                **tile,
            )
        ctx.save_for_backward(x, weight, out if active else None)
        ctx.upright, ctx.scale, ctx.keep = upright, 1 / (1 - dropout), keep
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # to be differentiated again
            found = _derivatives(gradient, x, weight, out, ctx.upright, ctx.scale)
            return *found[:2], found[2] if of_bias else None, *[None] * 6
        gradient = gradient.contiguous()
        networks, rows, inputs = x.shape
        outputs = gradient.shape[-1]
        tile = _backward_tile(networks)
        x_tiles = triton.cdiv(rows, tile["ROWS"]) * triton.cdiv(inputs, tile["COLUMNS"]) if of_x else 0
        w_tiles = triton.cdiv(weight.shape[1], tile["TALL"]) * triton.cdiv(weight.shape[2], tile["WIDE"])
        with torch.cuda.device(x.device):
            if out is not None:
                slope = torch.empty_like(gradient)
                size = gradient.numel()
                _slope[(triton.cdiv(size, 512),)](gradient, out, slope, size, SCALE=ctx.scale, BLOCK=512)
                gradient = slope
            if (of_weight or of_bias) and ctx.keep is not None and ctx.keep(x, gradient):
                of_weight = of_bias = False
            d_x = torch.empty_like(x) if of_x else None
            d_weight = torch.empty_like(weight) if of_weight else None
            d_bias = x.new_empty(networks, outputs) if of_bias else None
            w_tiles = w_tiles if of_weight or of_bias else 0
            # A lone network's parts are computed beside each other; those of several fill a GPU one by one.
            parts = [(x_tiles, w_tiles)] if networks == 1 else [(x_tiles, 0), (0, w_tiles)]
            for of_inputs, of_others in parts:
                if of_inputs + of_others == 0:
                    continue
                _backward[(networks, of_inputs + of_others)](
                    gradient,
                    x,
                    weight,
                    x if d_x is None else d_x,
                    x if d_weight is None else d_weight,
                    x if d_bias is None else d_bias,
                    rows,
                    inputs,
                    outputs,
                    of_inputs,
                    UPRIGHT=ctx.upright,
                    OF_X=of_inputs > 0,
                    OF_WEIGHT=of_weight and of_others > 0,
                    OF_BIAS=of_bias and of_others > 0,
                    **tile,
                )
        return d_x, d_weight, d_bias, *[None] * 6


def _derivatives(
    gradient: Tensor, x: Tensor, weight: Tensor, out: Tensor | None, upright: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of inputs, weights and bias, by functions that can be differentiated."""
    if out is not None:
        gradient = gradient * scale * -torch.expm1(-out / scale)
    d_x = torch.bmm(gradient, weight.mT if upright else weight)
    d_weight = torch.bmm(x.mT, gradient) if upright else torch.bmm(gradient.mT, x)
    return d_x, d_weight, gradient.sum(1)


# What was fastest on one H200 for layers of 400 × 400 to 1836 × 400 and 400 × 983, and batches of 32.


def _forward_tile(outputs: int, networks: int, some: bool) -> dict[str, int]:
    if some:  # what is looked up takes stages of its own
        return {"ROWS": 32, "COLUMNS": 32, "STEP": 64, "num_warps": 4, "num_stages": 9}
    if networks > 1:
        columns = 32 if outputs > 256 else 16
        return {"ROWS": 32, "COLUMNS": columns, "STEP": 64, "num_warps": 4, "num_stages": 4}
    if outputs > 512:
        return {"ROWS": 16, "COLUMNS": 32, "STEP": 64, "num_warps": 4, "num_stages": 4}
    return {"ROWS": 16, "COLUMNS": 16, "STEP": 128, "num_warps": 4, "num_stages": 3}


def _backward_tile(networks: int) -> dict[str, int]:
    tile = {"TALL": 32, "WIDE": 64, "AT_ONCE": 32, "num_warps": 4}
    if networks > 1:
        return {"ROWS": 32, "COLUMNS": 32, "STEP": 64, "num_stages": 4, **tile}
    return {"ROWS": 16, "COLUMNS": 32, "STEP": 64, "num_stages": 3, **tile}


@triton.jit  # type: ignore[untyped-decorator]
def _slope(gradient, out, slope, size, SCALE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient before softplus and dropout: where dropped, ``out`` is 0 and so is this."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    active = -libdevice.expm1(-tl.load(out + at, inside, other=0.0) / SCALE)
    tl.store(slope + at, tl.load(gradient + at, inside, other=0.0) * SCALE * active, inside)


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    a, a_m, a_k, b, b_k, b_n, m, n, M, N, K,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Rows ``m`` and columns ``n`` of ``A B``."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a_in = (m[:, None] < M) & (k[None, :] < K)
        b_in = (k[:, None] < K) & (n[None, :] < N)
        left = tl.load(a + m[:, None] * a_m + k[None, :] * a_k, a_in, other=0.0)
        right = tl.load(b + k[:, None] * b_k + n[None, :] * b_n, b_in, other=0.0)
        total = tl.dot(rounded(left), rounded(right), total, input_precision="tf32")
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x, weight, bias, words, order, count, out, rows, inputs, outputs, apart, words_apart, dropout, scale,
    SOME: tl.constexpr, UPRIGHT: tl.constexpr, BIAS: tl.constexpr, ACTIVE: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    network = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    x += network * rows * apart
    weight += network * inputs * outputs
    if SOME:
        known, total = tl.load(count + network), tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, known, STEP):
            k = start + tl.arange(0, STEP)
            source = tl.load(order + network * inputs + k, k < known, other=0)
            left = tl.load(
                x + m[:, None] * apart + k[None, :], (m[:, None] < rows) & (k[None, :] < known), other=0.0
            )
            right = tl.load(
                weight + source[:, None] * outputs + n[None, :],
                (k[:, None] < known) & (n[None, :] < outputs),
                other=0.0,
            )
            total = tl.dot(rounded(left), rounded(right), total, input_precision="tf32")
    else:
        b_k, b_n = (outputs, 1) if UPRIGHT else (1, inputs)
        total = _product(
            x, inputs, 1, weight, b_k, b_n, m, n, rows, outputs, inputs, ROWS, COLUMNS, STEP
        )  # fmt: skip
    if BIAS:
        total += tl.load(bias + network * outputs + n, n < outputs, other=0.0)[None, :]
    at = m[:, None] * outputs + n[None, :]
    if ACTIVE:
        total = softplus(total)
        if DROPS:
            uniform = tl.rand(tl.load(words + network * words_apart), at)
            total = tl.where(uniform < dropout, 0.0, total * scale)
    inside = (m[:, None] < rows) & (n[None, :] < outputs)
    tl.store(out + network * rows * outputs + at, total, inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    gradient, x, weight, d_x, d_weight, d_bias, rows, inputs, outputs, x_tiles,
    UPRIGHT: tl.constexpr, OF_X: tl.constexpr, OF_WEIGHT: tl.constexpr, OF_BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Some programs compute tiles of the inputs' gradient, the others of the weights' and bias's."""
    network, program = tl.program_id(0).to(tl.int64), tl.program_id(1)
    gradient += network * rows * outputs
    x += network * rows * inputs
    weight += network * inputs * outputs
    if OF_X:  # noqa: SIM102 (known when compiled)
        if program < x_tiles:
            x_across = tl.cdiv(inputs, COLUMNS)
            m = program // x_across * ROWS + tl.arange(0, ROWS)
            n = program % x_across * COLUMNS + tl.arange(0, COLUMNS)
            b_k, b_n = (1, outputs) if UPRIGHT else (inputs, 1)
            of_x = _product(
                gradient, outputs, 1, weight, b_k, b_n, m, n, rows, inputs, outputs, ROWS, COLUMNS, STEP
            )  # fmt: skip
            x_inside = (m[:, None] < rows) & (n[None, :] < inputs)
            tl.store(d_x + network * rows * inputs + m[:, None] * inputs + n[None, :], of_x, x_inside)
    if OF_WEIGHT or OF_BIAS:  # noqa: SIM102
        if program >= x_tiles:
            tile = program - x_tiles
            # ``d_weight`` is ``(tall, wide)``, the product of the transposed left and the right.
            left, right = (x, gradient) if UPRIGHT else (gradient, x)
            tall, wide = (inputs, outputs) if UPRIGHT else (outputs, inputs)
            across = tl.cdiv(wide, WIDE)
            i = tile // across * TALL + tl.arange(0, TALL)
            j = tile % across * WIDE + tl.arange(0, WIDE)
            if OF_WEIGHT:
                of_weight = _product(
                    left, 1, tall, right, wide, 1, i, j, tall, wide, rows, TALL, WIDE, AT_ONCE
                )  # fmt: skip
                inside = (i[:, None] < tall) & (j[None, :] < wide)
                place = d_weight + network * inputs * outputs + i[:, None] * wide + j[None, :]
                tl.store(place, of_weight, inside)
            o = j if UPRIGHT else i
            first = tile < across if UPRIGHT else tile % across == 0
            if OF_BIAS:  # noqa: SIM102
                if first:
                    summed = tl.zeros((WIDE if UPRIGHT else TALL,), tl.float32)
                    for start in range(0, rows, AT_ONCE):
                        k = start + tl.arange(0, AT_ONCE)
                        known = (k[:, None] < rows) & (o[None, :] < outputs)
                        summed += tl.sum(
                            tl.load(gradient + k[:, None] * outputs + o[None, :], known, other=0.0), 0
                        )
                    tl.store(d_bias + network * outputs + o, summed, o < outputs)
