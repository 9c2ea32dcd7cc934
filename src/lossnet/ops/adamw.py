"""Norms of gradients, and a clipped step of AdamW for networks side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lossnet.ops.sparse import squared_norm
from lossnet.ops.switch import kernels_enabled, works

#: lists of parameters, gradients, first moments, second moments and numbers of steps
StepTensors = Sequence[Sequence[Tensor]]
#: networks with more tensors, or more numbers, keep a GPU busy with torch's own step
_TENSORS, _NUMBERS = 16, 1 << 22


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all gradients together, ``()``.

    >>> total_norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
    tensor(5.)
    """
    if not gradients or gradients[0].device.type != "cpu":
        return get_total_norm(gradients)
    return torch.stack([squared_norm(gradient) for gradient in gradients]).sum().sqrt()


def clip_factor(norm: Tensor, clip: Tensor | float) -> Tensor:
    """Return what to divide gradients by, so that norms are at most ``clip``, as torch's clipping has it.

    >>> clip_factor(torch.tensor([1.0, 4.0]), 2.0)
    tensor([1.0000, 2.0000])
    """
    return ((norm + 1e-6) / clip).clamp(min=1)


def reference_clipped_adamw(
    tensors: StepTensors, rates: Tensor, decays: Tensor, clips: Tensor, betas: tuple[float, float], eps: float
) -> Tensor:
    """Compute `clipped_adamw` tensor by tensor."""
    networks = len(rates)
    norms = torch.stack([g.reshape(networks, -1).square().sum(1) for g in tensors[1]]).sum(0).sqrt()
    factor = clip_factor(norms, clips)
    for parameter, gradient, first, second, step in zip(*tensors, strict=True):
        step += 1
        shape = (networks, *[1] * (parameter.dim() - 1)) if networks > 1 else ()
        scaled = gradient / factor.view(shape)
        first.lerp_(scaled, 1 - betas[0])
        second.lerp_(scaled.square(), 1 - betas[1])
        pace = (rates / (1 - betas[0] ** step)).view(shape)
        root = (1 - betas[1] ** step).sqrt().view(shape)
        parameter.mul_(1 - (rates * decays).view(shape)).sub_(pace * first / (second.sqrt() / root + eps))
    return norms


def clipped_adamw(
    tensors: StepTensors, rates: Tensor, decays: Tensor, clips: Tensor, betas: tuple[float, float], eps: float
) -> Tensor:
    """Take AdamW's step in place along gradients cut to norms of ``clips``; return the norms, ``(R,)``.

    ``m ← β₁ m + (1 − β₁) g``, ``v ← β₂ v + (1 − β₂) g²``,
    ``θ ← (1 − η λ) θ − η m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)`` (Loshchilov & Hutter 2019).

    Args:
        tensors: parameters, gradients, ``m``, ``v`` and ``t``, each a list.  The first four are ``(R, …)``
            for ``R`` networks side by side, or of any shape for one, in the same order in memory; ``t``,
            numbers of steps, are ``(R,)``.
        rates: learning rates ``η``, ``(R,)``.
        decays: weight decays ``λ``, ``(R,)``.
        clips: largest norms, ``(R,)``.
        betas: ``β₁`` and ``β₂``.
        eps: ``ε``.

    >>> weight, zeros, one = torch.zeros(2), torch.zeros(2), torch.ones(1)
    >>> tensors = [weight], [torch.tensor([3.0, -4.0])], [zeros], [zeros.clone()], [torch.zeros(1)]
    >>> clipped_adamw(tensors, rates=0.1 * one, decays=0 * one, clips=one, betas=(0.9, 0.999), eps=1e-8)
    tensor([5.])
    >>> weight
    tensor([-0.1000,  0.1000])
    """
    with torch.no_grad():
        if not (kernels_enabled() and rates.is_cuda and works(rates.device)):
            return reference_clipped_adamw(tensors, rates, decays, clips, betas, eps)
        from lossnet.ops._triton import adamw

        return adamw.adamw(tensors, rates, decays, clips, betas, eps)


def adamw_fits(optimizers: Sequence[Optimizer], gradients: Sequence[Tensor]) -> bool:
    """Whether a kernel takes these optimizers' steps along gradients like these, of one network.

    >>> weight = torch.zeros(3, requires_grad=True)
    >>> adamw_fits([torch.optim.AdamW([weight])], [weight])  # on a GPU only
    False
    """
    if not (
        kernels_enabled()
        and 0 < len(gradients) <= _TENSORS
        and all(gradient.is_cuda and gradient.dtype == torch.float32 for gradient in gradients)
        and sum(gradient.numel() for gradient in gradients) <= _NUMBERS
        and all(type(optimizer) is torch.optim.AdamW for optimizer in optimizers)
        and works(gradients[0].device)
    ):
        return False
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    plain = not any(group["amsgrad"] or group["maximize"] for group in groups)
    return plain and len(groups) == len(optimizers) and len({(*g["betas"], g["eps"]) for g in groups}) == 1
