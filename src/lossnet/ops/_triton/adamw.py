"""A clipped step of AdamW in two GPU kernels, of one network or of several side by side.

Torch takes a dozen kernels for it, and gives 65,536 numbers at a time to one of a GPU's many processors,
which leaves most of them idle where a network is small.  Here the first kernel sums squares of gradients,
piece by piece, and counts the step; the second adds these sums up, scales the gradients and takes the step.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from lossnet.ops.adamw import StepTensors

#: numbers of a gradient that one program of a kernel works on
_BLOCK = 1024


def adamw(
    tensors: StepTensors, rates: Tensor, decays: Tensor, clips: Tensor, betas: tuple[float, float], eps: float
) -> Tensor:
    """See `lossnet.ops.clipped_adamw`; of dense tensors in float32."""
    parameters, gradients, firsts, seconds, steps = map(tuple, tensors)
    networks = rates.numel()
    sizes = tuple(gradient.numel() // networks for gradient in gradients)
    counts = tuple(triton.cdiv(size, _BLOCK) for size in sizes)
    pieces = sum(counts)
    squares, norms = rates.new_empty(networks, pieces), rates.new_empty(networks)
    fixed = {"COUNT": len(sizes), "BLOCK": _BLOCK}
    with torch.cuda.device(rates.device):
        _square[(pieces, networks)](gradients, steps, sizes, counts, squares, pieces, **fixed)
        _step[(pieces, networks)](
            gradients, steps, sizes, counts, parameters, firsts, seconds,
            squares, norms, rates, decays, clips, pieces,
            LEFT_FIRST=1 - betas[0], LEFT_SECOND=1 - betas[1],
            LOG_FIRST=math.log(betas[0]), LOG_SECOND=math.log(betas[1]),
            EPS=eps, PIECES=triton.next_power_of_2(pieces), **fixed,
        )  # fmt: skip
    return norms


@triton.jit  # type: ignore[untyped-decorator]
def _square(  # type: ignore[no-untyped-def]
    gradients, steps, sizes, counts, squares, pieces, COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """The sum of squares of each piece, ``squares`` ``(R, pieces)``; one more step of each parameter."""
    block, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start = 0
    for p in tl.static_range(COUNT):
        end = start + counts[p]
        if block >= start and block < end:
            at = (block - start) * BLOCK + tl.arange(0, BLOCK)
            gradient = tl.load(gradients[p] + network * sizes[p] + at, at < sizes[p], other=0.0)
            tl.store(squares + network * pieces + block, tl.sum(gradient * gradient))
            if block == start:
                tl.store(steps[p] + network, tl.load(steps[p] + network) + 1)
        start = end


@triton.jit  # type: ignore[untyped-decorator]
def _step(  # type: ignore[no-untyped-def]
    gradients, steps, sizes, counts, parameters, firsts, seconds,
    squares, norms, rates, decays, clips, pieces,
    LEFT_FIRST: tl.constexpr, LEFT_SECOND: tl.constexpr, LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr,
    EPS: tl.constexpr, PIECES: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr,
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
            # What corrects moments' bias: 1 − βᵗ, without losing digits where it is small.
            taken = tl.load(steps[p] + network)
            pace = rate / -libdevice.expm1(taken * LOG_FIRST)
            root = tl.sqrt(-libdevice.expm1(taken * LOG_SECOND))
            at = (block - start) * BLOCK + tl.arange(0, BLOCK)
            inside, at = at < sizes[p], network * sizes[p] + at
            gradient = tl.load(gradients[p] + at, inside, other=0.0) / scale
            parameter = tl.load(parameters[p] + at, inside, other=0.0)
            first = tl.load(firsts[p] + at, inside, other=0.0)
            second = tl.load(seconds[p] + at, inside, other=0.0)
            first += LEFT_FIRST * (gradient - first)
            second += LEFT_SECOND * (gradient * gradient - second)
            parameter = kept * parameter - pace * first / (tl.sqrt(second) / root + EPS)
            tl.store(parameters[p] + at, parameter, inside)
            tl.store(firsts[p] + at, first, inside)
            tl.store(seconds[p] + at, second, inside)
        start = end
