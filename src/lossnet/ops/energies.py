"""Energies of candidates: label sets, masks and others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.ops.dense import dense_layer
from lossnet.ops.precision import matmul_precision
from lossnet.ops.sparse import distinct
from lossnet.ops.switch import inside_transform, kernels_fit


def label_interaction(
    y: Tensor,
    mixing: Tensor,
    weights: Tensor,
    shift: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
) -> Tensor:
    """Return ``vᵀ softplus(M y + b + shift)`` of candidates ``(batch, K, labels)``, as ``(batch, K)``.

    Several networks side by side have parameters with a first axis, as in `dense_layer`.

    Args:
        y: candidates; sets of few labels that `candidate_batches` made are known as such.
        mixing: ``M``, transposed, ``(labels, hidden)``.
        weights: ``v``, ``(1, hidden)``.
        shift: ``(batch, 1, hidden)``.
        bias: ``b``, ``(hidden,)``.
        training: whether ``M`` is learned from these candidates; see `dense_layer`.

    >>> label_interaction(torch.ones(1, 2, 3), torch.zeros(3, 4), torch.ones(1, 4))  # 4 log 2
    tensor([[2.7726, 2.7726]])
    """
    if training and shift is None and mixing.dim() == 2:
        rows, places = distinct(y)
        if places is not None:  # equal sets have equal energies
            energies = _read_out(dense_layer(rows, mixing, bias, transposed=True, training=True), weights)
            return energies.index_select(0, places).view(y.shape[:-1])
    hidden = dense_layer(y, mixing, bias, transposed=True, training=training)
    return _read_out(hidden if shift is None else hidden + shift, weights)


def _read_out(hidden: Tensor, weights: Tensor) -> Tensor:
    """Return ``vᵀ softplus(h)`` of ``(…, hidden)``, as ``(…)``."""
    if kernels_fit(hidden, weights) and hidden.dim() > 1 and 0 < hidden.shape[-1] <= 1024:
        from lossnet.ops._triton import readout

        flat = weights.flatten(0, -2)
        return readout.read_out(hidden.reshape(len(flat), -1, hidden.shape[-1]), flat).view(hidden.shape[:-1])
    return dense_layer(F.softplus(hidden), weights).squeeze(-1)


def reference_weighted_sum(y: Tensor, weights: Tensor) -> Tensor:
    """Compute `weighted_sum` element by element."""
    return (y * weights.unsqueeze(1)).flatten(1 - weights.dim()).sum(-1)


def weighted_sum(y: Tensor, weights: Tensor) -> Tensor:
    """Return ``Σ weights · y`` of candidates ``(…, batch, K, *event)``, as ``(…, batch, K)``.

    Weights are ``(batch, *event)``.

    >>> weighted_sum(torch.tensor([[[1.0, 0.0], [1.0, 1.0]]]), torch.tensor([[1.0, 2.0]]))
    tensor([[1., 3.]])
    """
    units = 1 - weights.dim()
    if y.dtype != weights.dtype:
        return reference_weighted_sum(y, weights)
    if y.is_cuda and not torch.is_autocast_enabled("cuda"):
        with matmul_precision(y.device, rounded=False):
            flat, column = y.flatten(units), weights.flatten(1).unsqueeze(2)
            if y.requires_grad and flat.dim() == 3 and not inside_transform():
                total: Tensor = _WeightedSum.apply(flat, column)  # type: ignore[no-untyped-call]
                return total.squeeze(-1)
            return (flat @ column).squeeze(-1)
    if y.device.type == "cpu" and y.shape[units - 1] > 2 and not y.requires_grad:
        # In this order: a CPU is slow at products with single columns.
        return (weights.flatten(1).unsqueeze(1) @ y.flatten(units).transpose(-1, -2)).squeeze(-2)
    return reference_weighted_sum(y, weights)


class _WeightedSum(torch.autograd.Function):
    """``y w`` for columns ``w`` ``(batch, n, 1)``; a GPU is slow at products of columns with rows."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, column: Tensor) -> Tensor:
        ctx.save_for_backward(y, column)
        return y @ column

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        y, column = ctx.saved_tensors
        return gradient * column.mT, y.mT @ gradient if ctx.needs_input_grad[1] else None


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
