"""Candidates for contrastive losses: the truth, and fresh samples beside it in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from lossnet.ops.bernoulli import Bernoulli
from lossnet.ops.sparse import SPARSE_SHARE, unbind_sets
from lossnet.ops.switch import rng_key

#: label sets of several steps are drawn at once: at most this many numbers for all instances on a GPU …
AT_ONCE = 1 << 26
#: … and for each instance on a CPU.  What is drawn before other random numbers must not depend on the number
#: of rows there, in which replicas and processes differ.
OF_EACH = 1 << 14


def reference_candidate_batches(
    sampler: Callable[[int], Tensor], truth: Tensor, samples: int, count: int
) -> Iterator[Tensor]:
    """Draw for each step when it comes."""
    for _ in range(count):
        drawn = sampler(samples)
        yield torch.cat([truth.unsqueeze(1).to(drawn.dtype), drawn], 1)


def candidate_batches(
    sampler: Callable[[int], Tensor], truth: Tensor, samples: int, count: int
) -> Iterator[Tensor]:
    """Yield the truth with fresh draws behind it, ``(batch, 1 + samples, *event)``, ``count`` times.

    Label sets from a `Bernoulli` sampler are drawn for several steps at once; on a CPU it is noted where
    their ones are.

    Args:
        sampler: draws a number of outputs of each instance, ``(batch, samples, *event)``.
        truth: ``(batch, *event)``.
        samples: ``K``.
        count: number of batches.

    >>> always = Bernoulli(torch.tensor([[0.0, 1.0]]))
    >>> [batch.tolist() for batch in candidate_batches(always, torch.ones(1, 2), samples=1, count=2)]
    [[[[1.0, 1.0], [0.0, 1.0]]], [[[1.0, 1.0], [0.0, 1.0]]]]
    """
    if isinstance(sampler, Bernoulli) and truth.shape != sampler.chances.shape:
        shape, expected = tuple(truth.shape), tuple(sampler.chances.shape)
        raise ValueError(f"the truth is of shape {shape}, and not {expected} as the samples")
    if not isinstance(sampler, Bernoulli) or sampler.chances.dim() != 2 or truth.requires_grad:
        yield from reference_candidate_batches(sampler, truth, samples, count)
        return
    on_cpu = truth.device.type == "cpu"
    size = samples * (truth.shape[1] if on_cpu else truth.numel())
    together = max(1, (OF_EACH if on_cpu else AT_ONCE) // max(1, size))
    for begun in range(0, count, together):
        steps = min(together, count - begun)
        if on_cpu:
            drawn = sampler(steps * samples, torch.bool).unflatten(1, (steps, samples))
            yield from beside(truth, drawn.transpose(0, 1), sampler.chances.dtype)
        else:
            yield from _on_device(sampler, truth, samples, steps)


def beside(truth: Tensor, drawn: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return label sets ``(steps, batch, K, labels)`` with the truth in front, each step's by itself."""
    steps, batch, count, labels = drawn.shape
    sets, ones = np.empty((steps, batch, 1 + count, labels), bool), truth != 0
    sets[..., 1:, :], sets[..., 0, :] = drawn.numpy(), ones.numpy()
    candidates = torch.from_numpy(sets.view(np.uint8)).to(dtype)
    if not torch.equal(ones.to(truth.dtype), truth):  # it is no set
        candidates[..., 0, :] = truth
    elif np.count_nonzero(sets) <= SPARSE_SHARE * sets.size:
        return unbind_sets(candidates, np.flatnonzero(sets))
    return candidates.unbind()


def _on_device(sampler: Bernoulli, truth: Tensor, samples: int, count: int) -> tuple[Tensor, ...]:
    """Draw label sets where they are needed: copying them would take longer than drawing them."""
    if sampler.logits is not None and sampler.mask is None:
        key = rng_key(truth, sampler.logits)
        if key is not None:
            from lossnet.ops._triton import draw

            return draw.draw(sampler.logits, truth, samples, count, key).unbind()
    chances = sampler.chances.unsqueeze(1)
    drawn = chances.new_empty(count, len(chances), 1 + samples, chances.shape[-1])
    sampler.fill(drawn.transpose(0, 1))
    torch.lt(drawn, chances, out=drawn)
    if sampler.mask is not None:
        drawn *= sampler.mask.bool().unsqueeze(1)
    drawn[:, :, 0] = truth
    return drawn.unbind()
