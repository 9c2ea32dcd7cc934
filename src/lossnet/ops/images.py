"""Convolutions of masks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["mask_convolution", "reference_mask_convolution"]


def reference_mask_convolution(encoded: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Compute `mask_convolution` by torch's convolution of one channel."""
    masks = F.conv2d(y.flatten(0, 1).unsqueeze(1), weight, padding=weight.shape[-1] // 2)
    together: Tensor = masks.unflatten(0, y.shape[:2]) + encoded.unsqueeze(1)
    return together.flatten(0, 1)


def mask_convolution(encoded: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return ``w ∗ y + encoded``, ``(batch · K, filters, height, width)``.

    Args:
        encoded: the image's part of a convolution of image and mask, ``(batch, filters, height, width)``.
        y: masks, ``(batch, K, height, width)``.
        weight: the mask's part of its weights, ``(filters, 1, size, size)``, of an odd size.

    >>> mask_convolution(torch.zeros(1, 2, 3, 3), torch.ones(1, 4, 3, 3), torch.ones(2, 1, 3, 3))[0, 0]
    tensor([[4., 6., 4.],
            [6., 9., 6.],
            [4., 6., 4.]])
    """
    if y.is_cuda:
        return reference_mask_convolution(encoded, y, weight)
    # CPUs are slow with one channel: what is side by side in a row of the weights becomes channels.
    edge = weight.shape[-1] // 2
    columns = F.pad(y.flatten(0, 1), (edge, edge)).unfold(2, weight.shape[-1], 1).permute(0, 3, 1, 2)
    columns = columns.contiguous(memory_format=torch.channels_last)
    masks = F.conv2d(columns, weight.transpose(1, 3).contiguous(), padding=(edge, 0))
    encoded = encoded.contiguous(memory_format=torch.channels_last)
    together: Tensor = masks.unflatten(0, y.shape[:2]) + encoded.unsqueeze(1)
    return together.flatten(0, 1)
