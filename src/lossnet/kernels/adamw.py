"""A clipped step of AdamW in two GPU kernels, of one network or of several side by side.

Torch takes a dozen kernels for it, and gives 65,536 numbers at a time to one of a GPU's many processors,
which leaves most of them idle where a network is small.  Here the first kernel sums squares of gradients,
block by block, and counts the step; the second adds these sums up, scales the gradients and takes the step.

Importing this needs Triton, which torch brings along where it is built for CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

__all__ = ["adamw"]

#: numbers that one program of a kernel works on
_BLOCK = 1024


def adamw(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
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
    sizes = tuple(parameter.numel() // networks for parameter in parameters)
    blocks = sum(triton.cdiv(size, _BLOCK) for size in sizes)
    squares = rates.new_empty(networks, blocks)
    norms = rates.new_empty(networks)
    lists = tuple(parameters), tuple(gradients), tuple(firsts), tuple(seconds), tuple(steps), sizes
    count = len(sizes)
    with torch.cuda.device(rates.device):
        _square[(blocks, networks)](lists[1], lists[4], sizes, squares, blocks, COUNT=count, BLOCK=_BLOCK)
        _step[(blocks, networks)](
            *lists,
            squares,
            norms,
            rates,
            decays,
            clips,
            blocks,
            LEFT_FIRST=1 - betas[0],
            LEFT_SECOND=1 - betas[1],
            LOG_FIRST=math.log(betas[0]),
            LOG_SECOND=math.log(betas[1]),
            EPS=eps,
            COUNT=count,
            BLOCK=_BLOCK,
            BLOCKS=triton.next_power_of_2(blocks),
        )
    return norms


@triton.jit  # type: ignore[untyped-decorator]
def _square(gradients, steps, sizes, squares, blocks, COUNT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of squares of each block, ``squares`` ``(R, blocks)``; one more step of each parameter."""
    block, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start = 0
    for i in tl.static_range(COUNT):
        end = start + tl.cdiv(sizes[i], BLOCK)
        if block >= start and block < end:
            at = (block - start) * BLOCK + tl.arange(0, BLOCK)
            gradient = tl.load(gradients[i] + network * sizes[i] + at, at < sizes[i], other=0.0)
            tl.store(squares + network * blocks + block, tl.sum(gradient * gradient, 0))
            if block == start:
                tl.store(steps[i] + network, tl.load(steps[i] + network) + 1)
        start = end


@triton.jit  # type: ignore[untyped-decorator]
def _step(  # type: ignore[no-untyped-def]
    parameters,
    gradients,
    firsts,
    seconds,
    steps,
    sizes,
    squares,
    norms,
    rates,
    decays,
    clips,
    blocks,
    LEFT_FIRST: tl.constexpr,
    LEFT_SECOND: tl.constexpr,
    LOG_FIRST: tl.constexpr,
    LOG_SECOND: tl.constexpr,
    EPS: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The step of each block, after `_square`; ``norms`` ``(R,)``."""
    block, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    every = tl.arange(0, BLOCKS)
    norm = tl.sqrt(tl.sum(tl.load(squares + network * blocks + every, every < blocks, other=0.0), 0))
    if block == 0:
        tl.store(norms + network, norm)
    scale = (norm + 1e-6) / tl.load(clips + network)
    scale = tl.maximum(scale, 1.0, propagate_nan=tl.PropagateNan.ALL)
    rate = tl.load(rates + network)
    kept = 1 - rate * tl.load(decays + network)
    start = 0
    for i in tl.static_range(COUNT):
        end = start + tl.cdiv(sizes[i], BLOCK)
        if block >= start and block < end:
            place = (block - start) * BLOCK + tl.arange(0, BLOCK)
            inside = place < sizes[i]
            at = network * sizes[i] + place
            gradient = tl.load(gradients[i] + at, inside) / scale
            first = tl.load(firsts[i] + at, inside)
            second = tl.load(seconds[i] + at, inside)
            first += LEFT_FIRST * (gradient - first)
            second += LEFT_SECOND * (gradient * gradient - second)
            steps_taken = tl.load(steps[i] + network)
            # 1 − βᵗ, without losing digits where it is small.
            whole_first = -libdevice.expm1(steps_taken * LOG_FIRST)
            whole_second = -libdevice.expm1(steps_taken * LOG_SECOND)
            change = rate / whole_first * first / (tl.sqrt(second) / tl.sqrt(whole_second) + EPS)
            tl.store(parameters[i] + at, kept * tl.load(parameters[i] + at, inside) - change, inside)
            tl.store(firsts[i] + at, first, inside)
            tl.store(seconds[i] + at, second, inside)
        start = end
