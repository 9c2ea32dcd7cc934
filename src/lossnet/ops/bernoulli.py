"""Independent draws of 0 and 1.

On a CPU from few random bytes: a byte decides a draw of chance ``p`` in 255 of 256 cases, below or above
``256 p``.  In the last case more bits are needed, which are computed from the place of the draw and a random
word of its instance.  A chance of one half needs a bit.  `torch.bernoulli` takes four bytes or more for each
draw, several times as long; the chances are as exact.  Elsewhere torch's own functions draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F


def reference_bernoulli(chances: Tensor, count: int) -> Tensor:
    """Draw 1 with chances ``(batch, *event)``, else 0, ``count`` times, ``(batch, count, *event)``."""
    return torch.bernoulli(chances.unsqueeze(1).expand(len(chances), count, *chances.shape[1:]))


class Bernoulli:
    """Sampler of independent zeros and ones.

    Args:
        chances: of 1, ``(batch, *event)``.
        mask: units that may be 1, ``(batch, *event)``.
        logits: of the chances, for kernels that draw by logits.

    >>> Bernoulli(torch.tensor([[0.0, 1.0]]))(3)
    tensor([[[0., 1.],
             [0., 1.],
             [0., 1.]]])
    """

    def __init__(self, chances: Tensor, mask: Tensor | None = None, logits: Tensor | None = None) -> None:
        self.chances, self.mask, self.logits = chances, mask, logits

    @classmethod
    def from_logits(cls, logits: Tensor, mask: Tensor | None = None) -> Bernoulli:
        """Return a sampler with chances ``σ(l)``, which are 0 for NaN."""
        logits = logits.detach()
        return cls(torch.sigmoid(logits).nan_to_num(), mask, logits)

    def __call__(self, count: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return ``count`` draws of each, ``(batch, count, *event)``, of the chances' type or another."""
        drawn = self.draw(count, dtype or self.chances.dtype)
        return drawn if self.mask is None else drawn.masked_fill(~self.mask.bool().unsqueeze(1), 0)

    def draw(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return draws without regard to the mask."""
        if self.chances.device.type != "cpu":
            return reference_bernoulli(self.chances, count).to(dtype)
        shape = (len(self.chances), count, *self.chances.shape[1:])
        drawn = _drawn(*self._limits, shape)
        # Bytes become numbers faster than truth values do.
        return torch.from_numpy(drawn if dtype == torch.bool else drawn.view(np.uint8)).to(dtype)

    def fill(self, out: Tensor) -> None:
        """Fill a tensor ``(batch, …)`` with uniform numbers of [0, 1), to compare with the chances."""
        out.uniform_()

    @cached_property
    def _limits(self) -> tuple[Tensor, NDArray[Any] | None]:
        """``256 p`` as bytes ``(batch, 1, *event)``, and the rest of it, if any, ``(batch, size)``."""
        scaled = self.chances.unsqueeze(1) * 256  # exact, and so is what is left of it
        limits = scaled.clamp(max=255).to(torch.uint8)
        rest = (scaled - limits).flatten(1)
        rest = rest.float() if rest.dtype == torch.bfloat16 else rest  # which NumPy does not know
        return limits, rest.numpy() if rest.any() else None


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Return inputs ``(batch, …)`` with each number 0 with a chance of ``p``, else times ``1 / (1 − p)``.

    It is `torch.nn.functional.dropout`, and on a CPU faster.

    >>> _ = torch.manual_seed(0)
    >>> sorted(dropout(torch.ones(2, 50), 0.75).unique().tolist())
    [0.0, 4.0]
    """
    if not training or x.device.type != "cpu" or x.dim() < 2 or p in (0, 1):
        return F.dropout(x, p, training)
    if p == 0.5:
        kept: NDArray[Any] = _halves(x.shape)
    else:
        number = np.float64 if x.dtype == torch.float64 else np.float32
        limit, rest = divmod(256 * (1 - p), 1)
        kept = _drawn(int(limit), rest or None, x.shape) * number(1 / (1 - p))
    return x * torch.from_numpy(kept).to(x.dtype)


#: the bits of each byte, twice as large
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32) * 2


def _halves(shape: Sequence[int]) -> NDArray[np.float32]:
    """Return 2 with a chance of one half, else 0, ``(batch, *rest)``: one bit decides."""
    batch, size = shape[0], math.prod(shape[1:])
    few = -(-size // 8)
    drawn = _BITS.take(_words(batch, -(-few // 8)).view(np.uint8)[:, :few], axis=0).reshape(batch, 8 * few)
    return drawn[:, :size].reshape(shape)


def _drawn(
    limits: Tensor | int, rest: NDArray[Any] | float | None, shape: Sequence[int]
) -> NDArray[np.bool_]:
    """Return True ``(batch, *rest)`` with chances ``(limits + rest) / 256``, else False.

    ``limits`` broadcast to that shape, and ``rest`` ``(batch, size)`` recurs in each instance.
    """
    batch, size = shape[0], math.prod(shape[1:])
    # Of each instance: a word for its later bits, and its bytes.
    words = _words(batch, 1 + -(-size // 8))
    random = words.view(np.uint8)[:, 8 : 8 + size].reshape(shape)
    # NumPy is faster at comparing with one number, torch with many.
    compared = random if isinstance(limits, int) else torch.from_numpy(random)
    drawn = np.asarray(compared < limits)
    if rest is not None:
        ties = np.flatnonzero(compared == limits)
        row, place = np.divmod(ties, size)
        chance = rest if isinstance(rest, float) else rest[row, place % rest.shape[1]]
        won = ties[_uniform(words[row, 0].view(np.uint64), place) < chance]
        drawn.reshape(-1)[won] = True
    return drawn


def _words(batch: int, count: int) -> NDArray[np.int64]:
    """Return random words ``(batch, count)``."""
    words: NDArray[np.int64] = torch.empty(batch, count, dtype=torch.int64).random_(-(2**63), None).numpy()
    return words


def _uniform(seeds: NDArray[np.uint64], places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return numbers in [0, 1), each by its seed and place (SplitMix64: Steele, Lea & Flood 2014)."""
    bits = seeds + (places.view(np.uint64) + 1) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> 27)) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> 31
    uniform: NDArray[np.float64] = (bits >> 11) * 2.0**-53
    return uniform
