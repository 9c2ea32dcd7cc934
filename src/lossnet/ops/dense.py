"""Linear layers, of one network or of several side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.ops.sparse import nonzeros, product


def dense_layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    transposed: bool = False,
    training: bool = False,
) -> Tensor:
    """Return ``x Wᵀ + b``, ``(…, outputs)``, or ``x W + b`` for transposed weights.

    Weights and biases of ``R`` networks side by side have a first axis of that length; each network has its
    part of the rows, ``(R·b, …, inputs)``.  The result can be differentiated any number of times.

    Args:
        x: inputs ``(…, inputs)``, or a matrix in CSR layout, which gets no gradient.
        weight: ``(outputs, inputs)``, or ``(inputs, outputs)`` where it is ``transposed``.
        bias: ``(outputs,)``.
        transposed: the order of the weights' axes.
        training: whether transposed weights are learned from these inputs, so that it pays to look, on a CPU,
            for constant inputs that are mostly zeros.

    >>> dense_layer(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[11.]])
    """
    inputs = weight.shape[-2 if transposed else -1]
    if x.shape[-1] != inputs:
        raise ValueError(f"inputs have {x.shape[-1]} features; this layer takes {inputs}")
    if weight.dim() == 3:
        rows, batched = x.reshape(len(weight), -1, inputs), _batched if transposed else _Product.apply
        out: Tensor = batched(rows, weight, bias)
        return out.view(*x.shape[:-1], out.shape[-1])
    if not transposed:
        return F.linear(x, weight, bias)
    if x.layout == torch.sparse_csr or training:
        few = nonzeros(x)
        if few is not None:
            out = product(few, weight, x if x.dim() == 2 and x.layout == torch.strided else None)
            out = out if bias is None else out + bias
            return out.view(*x.shape[:-1], weight.shape[1])
    if x.dim() == 2 and bias is not None and x.device.type == "cpu":
        return torch.addmm(bias, x, weight)
    return x @ weight if bias is None else x @ weight + bias


def _batched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)


class _Product(torch.autograd.Function):
    """``x Wᵀ + b``, batched; torch's own would leave the gradient of ``W`` transposed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _batched(x, weight.mT, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if of_x else None,
            torch.bmm(gradient.mT, x) if of_weight else None,
            gradient.sum(1) if of_bias else None,
        )
