"""A clipped step of AdamW in two GPU kernels, of one network or of several side by side.

Torch takes a dozen kernels for it, and gives 65,536 numbers at a time to one of a GPU's many processors,
which leaves most of them idle where a network is small.  Here the first kernel sums squares of gradients,
piece by piece, and counts the step; the second adds these sums up, scales the gradients and takes the step.
Both compute gradients that are `lossnet.kernels.Thin` or `lossnet.kernels.Scaled`, which are in no memory.

Importing this needs Triton, which torch brings along where it is built for CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from lossnet.kernels.elementary import rounded
from lossnet.kernels.thin import Scaled, Thin, Used

__all__ = ["adamw", "settle"]

#: numbers of a gradient that one program of a kernel works on
_BLOCK = 1024
#: where they are products: rows and columns of a tile, and how many tiles, one below the other
_SQUARE_TILE = {"TALL": 32, "WIDE": 64, "TILES": 4, "num_warps": 4, "num_stages": 2}
_STEP_TILE = {"TALL": 16, "WIDE": 64, "TILES": 8, "num_warps": 4, "num_stages": 3}
#: what a gradient is: numbers, the sum of a thin matrix's rows, the product of two, or numbers times a factor
_DENSE, _SUM, _PRODUCT, _SCALED = range(4)


def adamw(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor | Thin | Scaled],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    steps: Sequence[Tensor],
    rates: Tensor,
    decays: Tensor,
    clips: Tensor,
    betas: tuple[float, float],
    eps: float,
) -> Tensor:
    """AdamW's step in place along gradients of at most the norms ``clips``; their norms before, ``(R,)``.

    Args:
        parameters: each ``(R, …)`` for ``R`` networks, or any shape for one; float32 and dense, in the same
            order in memory as their gradients and both moments, ``firsts`` and ``seconds``.
        gradients: of the parameters; they are left as they are.
        firsts: means of gradients.
        seconds: means of squares of gradients.
        steps: how many steps each parameter has had, ``(R,)`` each.
        rates: learning rates, ``(R,)``.
        decays: weight decays, ``(R,)``.
        clips: largest norms, ``(R,)``.
        betas: how much of the moments is kept.
        eps: what is added to the root of the second moment.
    """
    networks = rates.numel()
    parts = [_part(gradient, networks) for gradient in gradients]
    kinds, lefts, rights, orders, shares, heights, aparts, talls, wides = zip(*parts, strict=True)
    made = lefts, rights, orders, shares, heights, aparts, talls, wides, tuple(steps)
    fixed = {
        # Numbers, since not every Triton has constant tuples.
        "KINDS": sum(kind << 2 * place for place, kind in enumerate(kinds)),
        "SOME": sum((order is not left) << place for place, (_, left, _, order, *_) in enumerate(parts)),
        "COUNT": len(parts),
        "BLOCK": _BLOCK,
        "ROWS": max(16, triton.next_power_of_2(max(heights))),
    }
    pieces, counts = ([_pieces(part, tile) for part in parts] for tile in (_SQUARE_TILE, _STEP_TILE))
    squares = rates.new_empty(networks, sum(pieces))
    norms = rates.new_empty(networks)
    with torch.cuda.device(rates.device):
        _square[(sum(pieces), networks)](*made, tuple(pieces), squares, sum(pieces), **fixed, **_SQUARE_TILE)
        _step[(sum(counts), networks)](
            *made,
            tuple(counts),
            tuple(parameters),
            tuple(firsts),
            tuple(seconds),
            squares,
            norms,
            rates,
            decays,
            clips,
            sum(pieces),
            **_constants(betas, eps),
            PIECES=triton.next_power_of_2(sum(pieces)),
            **fixed,
            **_STEP_TILE,
        )
    return norms


def settle(
    parameter: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    rates: Tensor,
    decays: Tensor,
    betas: tuple[float, float],
    eps: float,
    used: Used,
    times: int,
) -> None:
    """The last ``times`` steps of weights ``(R, inputs, outputs)`` of inputs that were not in use.

    `adamw` has left them out; ``step`` counts them already.  Their gradients were zeros.
    """
    networks, tall, wide = parameter.shape
    tile = {"TALL": 16, "WIDE": 64}
    grid = (triton.cdiv(tall, tile["TALL"]) * triton.cdiv(wide, tile["WIDE"]), networks)
    with torch.cuda.device(rates.device):
        _settle[grid](
            parameter, first, second, step, rates, decays, used.order, used.count, tall, wide, times,
            **_constants(betas, eps), **tile,
        )  # fmt: skip


def _constants(betas: tuple[float, float], eps: float) -> dict[str, float]:
    return {
        "LEFT_FIRST": 1 - betas[0],
        "LEFT_SECOND": 1 - betas[1],
        "LOG_FIRST": math.log(betas[0]),
        "LOG_SECOND": math.log(betas[1]),
        "EPS": eps,
    }


#: kind, left and right factor, which row is where and how many there are (or numbers' factor), the factors'
#: rows, how far apart the left one's rows (or networks' numbers) are, the gradient's own rows and columns
_Part = tuple[int, Tensor, Tensor, Tensor, Tensor, int, int, int, int]


def _part(gradient: Tensor | Thin | Scaled, networks: int) -> _Part:
    if isinstance(gradient, Tensor):
        size = gradient.numel() // networks
        return _DENSE, gradient, gradient, gradient, gradient, 1, size, 1, size
    if isinstance(gradient, Scaled):
        values, size = gradient.values, gradient.shape.numel() // networks
        return _SCALED, values, values, values, gradient.factor, 1, values[0].numel(), 1, size
    left, right, used = gradient.left, gradient.right, gradient.used
    rows, wide = right.shape[1:]
    if left is None:
        return _SUM, right, right, right, right, rows, 1, 1, wide
    order, share = (left, left) if used is None else (used.order, used.count)
    return _PRODUCT, left, right, order, share, rows, left.shape[2], gradient.shape[-2], wide


def _pieces(part: _Part, tile: Mapping[str, int]) -> int:
    """In how many pieces a gradient is treated."""
    kind, tall, wide = part[0], *part[-2:]
    across = -(-wide // (_BLOCK if kind in (_DENSE, _SCALED) else tile["WIDE"]))
    return across * -(-tall // (tile["TALL"] * tile["TILES"]))


@triton.jit  # type: ignore[untyped-decorator]
def _piece(  # type: ignore[no-untyped-def]
    right, share, network, rows, apart, wide, piece,
    KIND: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A piece of a gradient that has one row: its places, and its numbers, 0 behind the end."""
    if KIND == 1:
        j, k = piece * WIDE + tl.arange(0, WIDE), tl.arange(0, ROWS)
        inside = (k[:, None] < rows) & (j[None, :] < wide)
        right += network * rows * wide
        found = tl.sum(tl.load(right + k[:, None] * wide + j[None, :], inside, other=0.0), 0)
    else:
        j = piece * BLOCK + tl.arange(0, BLOCK)
        found = tl.load(right + network * apart + j, j < wide, other=0.0, eviction_policy="evict_first")
        if KIND == 3:
            found *= tl.load(share + network)
    return j, found


@triton.jit  # type: ignore[untyped-decorator]
def _factor(right, rows, wide, j, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Columns ``j`` of the right factor."""
    k = tl.arange(0, ROWS)
    inside = (k[:, None] < rows) & (j[None, :] < wide)
    return rounded(tl.load(right + k[:, None] * wide + j[None, :], inside, other=0.0))


@triton.jit  # type: ignore[untyped-decorator]
def _tile(left, factor, rows, apart, tall, i, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows ``i`` of the product with `_factor`."""
    k = tl.arange(0, ROWS)
    # Four numbers at once, whatever is behind the last.
    own = tl.load(
        left + k[None, :] * apart + i[:, None], (i[:, None] < apart) & (k[None, :] < rows), other=0.0
    )
    own = tl.where(i[:, None] < tall, own, 0.0)
    return tl.dot(rounded(own), factor, input_precision="tf32")


@triton.jit  # type: ignore[untyped-decorator]
def _square(  # type: ignore[no-untyped-def]
    lefts, rights, orders, shares, heights, aparts, talls, wides, steps, counts, squares, pieces,
    KINDS: tl.constexpr, SOME: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The sum of squares of each piece, ``squares`` ``(R, pieces)``; one more step of each parameter."""
    block, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start = 0
    for p in tl.static_range(COUNT):
        end = start + counts[p]
        if block >= start and block < end:
            KIND: tl.constexpr = (KINDS >> 2 * p) & 3
            rows, tall, wide = heights[p], talls[p], wides[p]
            if KIND != 2:
                _, gradient = _piece(
                    rights[p], shares[p], network, rows, aparts[p], wide, block - start,
                    KIND, BLOCK, WIDE, ROWS,
                )  # fmt: skip
                summed = tl.sum(gradient * gradient)
            else:
                apart, across = aparts[p] // 4 * 4, tl.cdiv(wide, WIDE)
                if (SOME >> p) & 1:
                    tall = tl.load(shares[p] + network)
                j = (block - start) % across * WIDE + tl.arange(0, WIDE)
                top = (block - start) // across * (TALL * TILES)
                factor = _factor(rights[p] + network * rows * wide, rows, wide, j, ROWS)
                each = tl.zeros((TALL, WIDE), tl.float32)
                for first in range(top, tl.minimum(top + TALL * TILES, tall), TALL):
                    i = first + tl.arange(0, TALL)
                    gradient = _tile(lefts[p] + network * rows * apart, factor, rows, apart, tall, i, ROWS)
                    each += gradient * gradient
                summed = tl.sum(each)
            tl.store(squares + network * pieces + block, summed)
            if block == start:
                tl.store(steps[p] + network, tl.load(steps[p] + network) + 1)
        start = end


@triton.jit  # type: ignore[untyped-decorator]
def _moved(  # type: ignore[no-untyped-def]
    parameter, first, second, gradient, kept, pace, root,
    LEFT_FIRST: tl.constexpr, LEFT_SECOND: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """A parameter and its moments after a step."""
    first += LEFT_FIRST * (gradient - first)
    second += LEFT_SECOND * (gradient * gradient - second)
    return kept * parameter - pace * first / (tl.sqrt(second) / root + EPS), first, second


@triton.jit
def _load(parameters, firsts, seconds, at, inside):  # type: ignore[no-untyped-def]
    """Parameters and moments; these are read once in a step, those may stay in the cache for the next."""
    return (
        tl.load(parameters + at, inside, other=0.0),
        tl.load(firsts + at, inside, other=0.0, eviction_policy="evict_first"),
        tl.load(seconds + at, inside, other=0.0, eviction_policy="evict_first"),
    )


@triton.jit
def _store(parameters, firsts, seconds, at, inside, parameter, first, second):  # type: ignore[no-untyped-def]
    tl.store(parameters + at, parameter, inside)
    tl.store(firsts + at, first, inside, eviction_policy="evict_first")
    tl.store(seconds + at, second, inside, eviction_policy="evict_first")


@triton.jit  # type: ignore[untyped-decorator]
def _pace(rate, steps_taken, LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr):  # type: ignore[no-untyped-def]
    """What corrects moments' bias: 1 − βᵗ, without losing digits where it is small."""
    root = tl.sqrt(-libdevice.expm1(steps_taken * LOG_SECOND))
    return rate / -libdevice.expm1(steps_taken * LOG_FIRST), root


@triton.jit  # type: ignore[untyped-decorator]
def _step(  # type: ignore[no-untyped-def]
    lefts, rights, orders, shares, heights, aparts, talls, wides, steps, counts,
    parameters, firsts, seconds, squares, norms, rates, decays, clips, pieces,
    LEFT_FIRST: tl.constexpr, LEFT_SECOND: tl.constexpr, LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr,
    EPS: tl.constexpr, PIECES: tl.constexpr,
    KINDS: tl.constexpr, SOME: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The step of each piece, after `_square`; ``norms`` ``(R,)``."""
    block, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    every = tl.arange(0, PIECES)
    norm = tl.sqrt(tl.sum(tl.load(squares + network * pieces + every, every < pieces, other=0.0), 0))
    if block == 0:
        tl.store(norms + network, norm)
    scale = (norm + 1e-6) / tl.load(clips + network)
    scale = tl.maximum(scale, 1.0, propagate_nan=tl.PropagateNan.ALL)
    rate = tl.load(rates + network)
    kept = 1 - rate * tl.load(decays + network)
    start = 0
    for p in tl.static_range(COUNT):
        end = start + counts[p]
        if block >= start and block < end:
            KIND: tl.constexpr = (KINDS >> 2 * p) & 3
            rows, tall, wide = heights[p], talls[p], wides[p]
            size = network * tall * wide
            ours, means, mean_squares = parameters[p] + size, firsts[p] + size, seconds[p] + size
            pace, root = _pace(rate, tl.load(steps[p] + network), LOG_FIRST, LOG_SECOND)
            if KIND != 2:
                at, gradient = _piece(
                    rights[p], shares[p], network, rows, aparts[p], wide, block - start,
                    KIND, BLOCK, WIDE, ROWS,
                )  # fmt: skip
                now = _load(ours, means, mean_squares, at, at < wide)
                new = _moved(
                    now[0], now[1], now[2], gradient / scale, kept, pace, root, LEFT_FIRST, LEFT_SECOND, EPS
                )  # fmt: skip
                _store(ours, means, mean_squares, at, at < wide, new[0], new[1], new[2])
            else:
                PART: tl.constexpr = (SOME >> p) & 1
                apart, across = aparts[p] // 4 * 4, tl.cdiv(wide, WIDE)
                order = orders[p] + network * tall
                if PART:
                    tall = tl.load(shares[p] + network)
                top = (block - start) // across * (TALL * TILES)
                bottom = tl.minimum(tall, top + TALL * TILES)
                i, j = top + tl.arange(0, TALL), (block - start) % across * WIDE + tl.arange(0, WIDE)
                row, inside = i, (i[:, None] < bottom) & (j[None, :] < wide)
                next_row = i + TALL
                if PART:
                    row = tl.load(order + i, i < bottom, other=0)
                    next_row = tl.load(order + i + TALL, i + TALL < bottom, other=0)
                at = row[:, None] * wide + j[None, :]
                parameter, first, second = _load(ours, means, mean_squares, at, inside)
                factor = _factor(rights[p] + network * rows * wide, rows, wide, j, ROWS)
                left = lefts[p] + network * rows * apart
                for _ in range(top, bottom, TALL):
                    # What the next tile needs is on its way while this one is computed.
                    below = next_row[:, None] * wide + j[None, :]
                    there = ((i + TALL)[:, None] < bottom) & (j[None, :] < wide)
                    later, later_first, later_second = _load(ours, means, mean_squares, below, there)
                    next_row += TALL
                    if PART:
                        next_row = tl.load(order + i + 2 * TALL, i + 2 * TALL < bottom, other=0)
                    gradient = _tile(left, factor, rows, apart, tall, i, ROWS) / scale
                    parameter, first, second = _moved(
                        parameter, first, second, gradient, kept, pace, root, LEFT_FIRST, LEFT_SECOND, EPS
                    )  # fmt: skip
                    _store(ours, means, mean_squares, at, inside, parameter, first, second)
                    parameter, first, second = later, later_first, later_second
                    i, at, inside = i + TALL, below, there
        start = end


@triton.jit  # type: ignore[untyped-decorator]
def _settle(  # type: ignore[no-untyped-def]
    parameters, firsts, seconds, steps, rates, decays, orders, shares, tall, wide, times,
    LEFT_FIRST: tl.constexpr, LEFT_SECOND: tl.constexpr, LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr,
    EPS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Steps without a gradient, of rows that are behind those of which there are ``shares``."""
    piece, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    across = tl.cdiv(wide, WIDE)
    i, j = piece // across * TALL + tl.arange(0, TALL), piece % across * WIDE + tl.arange(0, WIDE)
    waits = (i >= tl.load(shares + network)) & (i < tall)
    row = tl.load(orders + network * tall + i, waits, other=0)
    at, inside = row[:, None] * wide + j[None, :], waits[:, None] & (j[None, :] < wide)
    size = network * tall * wide
    parameter, first, second = _load(parameters + size, firsts + size, seconds + size, at, inside)
    rate = tl.load(rates + network)
    kept = 1 - rate * tl.load(decays + network)
    taken = tl.load(steps + network) - times
    for turn in range(times):
        pace, root = _pace(rate, taken + turn + 1, LOG_FIRST, LOG_SECOND)
        parameter, first, second = _moved(
            parameter, first, second, 0.0, kept, pace, root, LEFT_FIRST, LEFT_SECOND, EPS
        )  # fmt: skip
    _store(parameters + size, firsts + size, seconds + size, at, inside, parameter, first, second)
