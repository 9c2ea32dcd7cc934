"""Known parts of outputs: drawn for training, and put into predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lossnet.data.examples import Dataset, arranged
from lossnet.spaces import Batch, Space
from lossnet.trees import first_leaf

#: the largest share of an output's values that is known in training
MOST_KNOWN = 0.9
#: how often values that are 0 are known at all, and pixels are known in blocks
_OFTEN = 0.5
_BLOCK = 4


def combined(space: Space, relaxed: Tensor, known: Tensor) -> Tensor:
    """Return probabilities ``(batch, *event)`` with what is known in its place.

    Where some values of a unit of one value are ruled out, the others share what is left.

    >>> from lossnet.spaces import MultiLabel, Tags
    >>> combined(MultiLabel(2), torch.tensor([[0.3, 0.4]]), torch.tensor([[1.0, torch.nan]]))
    tensor([[1.0000, 0.4000]])
    >>> combined(Tags(3), torch.tensor([[[0.5, 0.1, 0.4]]]), torch.tensor([[[0.0, torch.nan, torch.nan]]]))
    tensor([[[0.0000, 0.2000, 0.8000]]])
    """
    filled = torch.where(known.isnan(), relaxed, known.to(relaxed.dtype))
    if not space.unit_dims:
        return filled
    possible = known.isnan() | (known > 0)
    left = torch.where(possible, relaxed, 0).clamp_min(torch.finfo(relaxed.dtype).tiny) * possible
    shared = left / left.sum(-1, keepdim=True).clamp_min(torch.finfo(relaxed.dtype).tiny)
    some = (~known.isnan()).any(-1, keepdim=True)
    return torch.where(some, shared, relaxed)


def draw_known(space: Space, truth: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return what might be known of true outputs ``(batch, *event)``: 1, 0, and NaN for the rest.

    Each instance has a share of its own, up to `MOST_KNOWN`; values that are 1 and values that are 0 have
    different ones, and the latter often none, since people say what is there more than what is not.  Half of
    the images are known in blocks, as where somebody has drawn on them.

    >>> from lossnet.spaces import MultiLabel
    >>> truth = torch.tensor([[1.0, 0.0]]).repeat(4000, 1)
    >>> known = draw_known(MultiLabel(2), truth, torch.Generator().manual_seed(0))
    >>> known.isnan().float().mean(0).round(decimals=1)
    tensor([0.5000, 0.8000])
    """
    batch, device = len(truth), truth.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(batch, *shape, generator=generator, device=device)

    if space.unit_dims:
        units = uniform(*truth.shape[1:-1]) < MOST_KNOWN * uniform(*[1] * (truth.dim() - 2))
        return torch.where(units.unsqueeze(-1), truth, torch.nan)
    ones = [1] * (truth.dim() - 1)
    share, share_of_zeros = MOST_KNOWN * uniform(*ones), MOST_KNOWN * uniform(*ones)
    if truth.dim() == 2:
        share_of_zeros = share_of_zeros * (uniform(*ones) < _OFTEN)
        chances = uniform(*truth.shape[1:])
    else:
        share_of_zeros = torch.where(uniform(*ones) < _OFTEN, share, share_of_zeros)
        size = [-(-length // _BLOCK) for length in truth.shape[1:]]
        coarse = uniform(*size)
        for dim, length in enumerate(truth.shape[1:], start=1):
            coarse = coarse.repeat_interleave(_BLOCK, dim).narrow(dim, 0, length)
        chances = torch.where(uniform(*ones) < _OFTEN, coarse, uniform(*truth.shape[1:]))
    return torch.where(chances < torch.where(truth > 0, share, share_of_zeros), truth, torch.nan)


class PartlyKnown:
    """Any data set whose inputs are ``(x, known)``: what is known of the outputs is drawn by `draw_known`.

    Anew for each batch or, with a ``seed``, the same for a batch that begins with the same row.

    >>> from lossnet.data import MultiLabelData
    >>> from lossnet.spaces import MultiLabel
    >>> data = MultiLabelData.from_arrays([[0.5], [2.0]], [[1, 0], [0, 1]])
    >>> x, known = PartlyKnown(data, MultiLabel(2), seed=0).batch(torch.arange(2)).x
    >>> x.shape, known.shape
    (torch.Size([2, 1]), torch.Size([2, 2]))
    """

    def __init__(self, data: Dataset, space: Space, seed: int | None = None) -> None:
        self.data, self.space, self.seed = data, space, seed

    def __len__(self) -> int:
        return len(self.data)

    def __getattr__(self, name: str) -> Any:
        if name != "target":
            raise AttributeError(name)
        return getattr(self.data, "target", None)

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        """Return row numbers as the data set would have them."""
        return arranged(self.data, order, batch_size)

    def batch(self, indices: Tensor) -> Batch:
        """Return the rows ``indices``, with what is known of them."""
        batch = self.data.batch(indices)
        generator = None
        if self.seed is not None:
            generator = torch.Generator(batch.y.device).manual_seed(self.seed + int(indices[0]))
        known = draw_known(self.space, batch.y.float(), generator)
        return batch._replace(x=(batch.x, known.to(first_leaf(batch.x).device)))
