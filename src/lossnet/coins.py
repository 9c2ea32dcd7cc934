"""Independent draws of 0 and 1, from few random bytes.

A byte decides a draw of chance ``p`` in 255 of 256 cases: it is below or above ``256 p``.  In the last case
more bits are needed, which are computed from the place of the draw and a random word of its instance.  A
chance of one half needs a bit.
On a CPU, where `torch.bernoulli` makes four bytes or more for each draw, this is several times faster; the
chances are as exact.  Elsewhere torch's own functions draw, or `lossnet.kernels`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["Coins", "Dropout"]


class Coins:
    """1 with given chances ``(batch, *event)``, else 0, as often as they are flipped.

    >>> Coins(torch.tensor([[0.0, 1.0]])).flip(3)
    tensor([[[0., 1.],
             [0., 1.],
             [0., 1.]]])
    """

    def __init__(self, chances: Tensor) -> None:
        self.chances = chances.unsqueeze(1)
        if chances.device.type == "cpu":
            scaled = self.chances * 256  # exact, and so is what is left of it
            self._limits = scaled.clamp(max=255).to(torch.uint8)
            rest = (scaled - self._limits).flatten(1)
            self._rest = rest.numpy() if rest.any() else None

    def flip(self, count: int, dtype: torch.dtype | None = None) -> Tensor:
        """All coins ``count`` times each, ``(batch, count, *event)``, of the chances' type or another."""
        shape, dtype = (len(self.chances), count, *self.chances.shape[2:]), dtype or self.chances.dtype
        if self.chances.device.type != "cpu":
            return torch.bernoulli(self.chances.expand(shape)).to(dtype)
        drawn = _drawn(self._limits, self._rest, shape)
        # Bytes become numbers faster than truth values do.
        return torch.from_numpy(drawn if dtype == torch.bool else drawn.view(np.uint8)).to(dtype)


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, for inputs ``(batch, …)``; on a CPU by random bytes.

    >>> _ = torch.manual_seed(0)
    >>> sorted(Dropout(0.75)(torch.ones(2, 50)).unique().tolist())
    [0.0, 4.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or input.device.type != "cpu" or input.dim() < 2 or self.p in (0, 1):
            return super().forward(input)
        if self.p == 0.5:
            kept = _halves(input.shape)
        else:
            number = np.float64 if input.dtype == torch.float64 else np.float32
            limit, rest = divmod(256 * (1 - self.p), 1)
            kept = _drawn(int(limit), rest or None, input.shape) * number(1 / (1 - self.p))
        return input * torch.from_numpy(kept).to(input.dtype)


#: the bits of each byte, twice as large
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32) * 2


def _halves(shape: Sequence[int]) -> NDArray[np.float32]:
    """2 with a chance of one half, else 0, ``(batch, *rest)``: one bit decides."""
    batch, size = shape[0], math.prod(shape[1:])
    few = -(-size // 8)
    drawn = _BITS.take(_words(batch, -(-few // 8)).view(np.uint8)[:, :few], axis=0).reshape(batch, 8 * few)
    return drawn[:, :size].reshape(shape)


def _drawn(
    limits: Tensor | int, rest: NDArray[Any] | float | None, shape: Sequence[int]
) -> NDArray[np.bool_]:
    """True ``(batch, *rest)`` with chances ``(limits + rest) / 256``, else False.

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
    """Random words ``(batch, count)``."""
    words: NDArray[np.int64] = torch.empty(batch, count, dtype=torch.int64).random_(-(2**63), None).numpy()
    return words


def _uniform(seeds: NDArray[np.uint64], places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1), each by its seed and place (SplitMix64: Steele, Lea & Flood 2014)."""
    bits = seeds + (places.view(np.uint64) + 1) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> 27)) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> 31
    uniform: NDArray[np.float64] = (bits >> 11) * 2.0**-53
    return uniform
