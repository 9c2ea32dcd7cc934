"""Candidates for contrastive losses: the truth, and fresh samples beside it in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from lossnet.ops.bernoulli import Bernoulli
from lossnet.ops.sparse import SPARSE_SHARE, note_ones, unbind
from lossnet.ops.switch import rng_key

__all__ = ["candidate_batches", "reference_candidate_batches"]

#: label sets of several steps are drawn at once: so many numbers at most of all instances on a GPU …
AT_ONCE = 1 << 26
#: … and of each instance on a CPU.  How many are drawn before other random numbers must not depend on the
#: rows there: replicas and processes have more or less of them.
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

    Label sets, which a `Bernoulli` sampler draws, are drawn for several steps at once, and on a CPU remember
    where their ones are.

    Args:
        sampler: draws so many outputs of each instance, ``(batch, samples, *event)``.
        truth: ``(batch, *event)``.
        samples: ``K``.
        count: how many batches.

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
        now = min(together, count - begun)
        yield from (_sets if on_cpu else _on_device)(sampler, truth, samples, now)


def _sets(sampler: Bernoulli, truth: Tensor, samples: int, count: int) -> tuple[Tensor, ...]:
    """Draw label sets for ``count`` steps on a CPU."""
    drawn = sampler(count * samples, torch.bool)
    return beside(truth, drawn.unflatten(1, (count, samples)).transpose(0, 1), sampler.chances.dtype)


def beside(truth: Tensor, drawn: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return label sets ``(steps, batch, K, labels)`` with the truth in front, each step's by itself.

    They are known by their ones, if these are few, and so need not be searched for them.
    """
    steps, batch, count, labels = drawn.shape
    sets, ones = np.empty((steps, batch, 1 + count, labels), bool), truth != 0
    sets[..., 1:, :], sets[..., 0, :] = drawn.numpy(), ones.numpy()
    candidates = torch.from_numpy(sets.view(np.uint8)).to(dtype)
    if not torch.equal(ones.to(truth.dtype), truth):  # it is no set
        candidates[..., 0, :] = truth
    elif np.count_nonzero(sets) <= SPARSE_SHARE * sets.size:
        note_ones(candidates, np.flatnonzero(sets))
    return unbind(candidates)


def _on_device(sampler: Bernoulli, truth: Tensor, samples: int, count: int) -> tuple[Tensor, ...]:
    """Draw label sets where they belong: copies of so many numbers would take longer than drawing them."""
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
