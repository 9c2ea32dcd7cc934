"""Losses of rows: of candidates' energies, and of labels' logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.ops.switch import kernels_fit

#: wider rows are the references'
_WIDTH = 1 << 14


def _rows_fit(values: Tensor, others: Tensor) -> bool:
    """Whether there is a kernel for the loss of these rows, given others that carry no gradient."""
    alike = not others.requires_grad and others.shape == values.shape and values.dim() == 2
    return alike and values.shape[1] <= _WIDTH and kernels_fit(values, others)


def reference_contrast(energies: Tensor, offset: Tensor | float) -> Tensor:
    """Compute `contrast` by torch's ``log_softmax``."""
    return -(offset - energies).log_softmax(1)[:, 0]


def contrast(energies: Tensor, offset: Tensor | float) -> Tensor:
    """Return ``−log softmax(offset − E)`` of the first of candidates, ``(batch,)``.

    Energies are ``(batch, 1 + K)``, and so is the offset, if it is no number.

    >>> contrast(torch.zeros(1, 4), 0.0)  # log 4
    tensor([1.3863])
    """
    if isinstance(offset, Tensor) and _rows_fit(energies, offset):
        from lossnet.ops._triton import losses

        return losses.contrast(energies, offset)
    return reference_contrast(energies, offset)


def reference_cross_entropy(logits: Tensor, truth: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `cross_entropy` element by element."""
    each = F.softplus(logits) - truth * logits
    return (each if mask is None else torch.where(mask.bool(), each, 0)).flatten(1).sum(1)


def cross_entropy(logits: Tensor, truth: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``Σ_i softplus(l_i) − y_i l_i``, ``(batch,)``, of logits and truth ``(batch, *event)``.

    The sum is over units that ``mask`` ``(batch, *event)`` has, if it is given.

    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))  # 2 log 2
    tensor([1.3863])
    """
    if mask is None and _rows_fit(logits, truth):
        from lossnet.ops._triton import losses

        return losses.cross_entropy(logits, truth)
    return reference_cross_entropy(logits, truth, mask)
