"""Norms of gradients, and a clipped step of AdamW for networks side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lossnet.ops.sparse import squared_norm
from lossnet.ops.switch import kernels_enabled, works

__all__ = [
    "adamw_fits",
    "clip_factor",
    "clipped_adamw",
    "fused_adamw",
    "is_fused_adamw",
    "norms_of_each",
    "reference_clipped_adamw",
    "scale_down",
    "total_norm",
]

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


def norms_of_each(gradients: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the Euclidean norms of several networks' gradients, ``(R,)``.

    >>> norms_of_each([[torch.tensor([3.0]), torch.tensor([4.0])], [torch.zeros(1), torch.ones(1)]])
    tensor([5., 1.])
    """
    lengths = torch._foreach_norm([part for own in gradients for part in own])
    norms: Tensor = torch.linalg.vector_norm(torch.stack(lengths).view(len(gradients), -1), dim=1)
    return norms


def clip_factor(norm: Tensor, clip: Tensor | float) -> Tensor:
    """Return how many times as long as ``clip`` gradients are, at least 1, as torch's clipping has it.

    >>> clip_factor(torch.tensor([1.0, 4.0]), 2.0)
    tensor([1.0000, 2.0000])
    """
    return ((norm + 1e-6) / clip).clamp(min=1)


def scale_down(gradients: list[Tensor] | tuple[Tensor, ...], factor: Tensor) -> None:
    """Divide gradients in place."""
    torch._foreach_div_(gradients, factor)


def is_fused_adamw(optimizer: Optimizer) -> bool:
    """Return True for fused AdamW with one group of parameters, whose steps nobody watches.

    >>> is_fused_adamw(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    False
    """
    if type(optimizer) is not torch.optim.AdamW or len(optimizer.param_groups) > 1:
        return False
    (group,) = optimizer.param_groups
    watched = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(group["fused"] and not (group["amsgrad"] or group["maximize"] or watched))


def fused_adamw(
    parameters: list[Tensor],
    gradients: list[Tensor],
    firsts: list[Tensor],
    seconds: list[Tensor],
    steps: list[Tensor],
    group: Mapping[str, Any],
) -> None:
    """Take the step of `torch.optim.AdamW` with ``fused=True``, of tensors on one device and of one type.

    ``optimizer.step()`` does the same and takes 0.1 ms more, which were 4 to 6 % of SEAL's steps on bibtex.

    >>> group = {"lr": 0.1, "betas": (0.9, 0.999), "weight_decay": 0.0, "eps": 1e-8}
    >>> weight, first, second = (torch.zeros(1) for _ in range(3))
    >>> fused_adamw([weight], [torch.tensor([3.0])], [first], [second], [torch.zeros(())], group)
    >>> weight
    tensor([-0.1000])
    """
    with torch.no_grad():
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            parameters,
            gradients,
            firsts,
            seconds,
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


def reference_clipped_adamw(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    steps: Sequence[Tensor],
    rates: Tensor,
    decays: Tensor,
    clips: Tensor,
    betas: tuple[float, float],
    eps: float,
) -> Tensor:
    """Compute `clipped_adamw` tensor by tensor."""
    networks = len(rates)
    norms = torch.stack([g.reshape(networks, -1).square().sum(1) for g in gradients]).sum(0).sqrt()
    factor = clip_factor(norms, clips)
    for parameter, gradient, first, second, step in zip(
        parameters, gradients, firsts, seconds, steps, strict=True
    ):
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
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    steps: Sequence[Tensor],
    rates: Tensor,
    decays: Tensor,
    clips: Tensor,
    betas: tuple[float, float],
    eps: float,
) -> Tensor:
    """Take AdamW's step in place along gradients cut to norms of ``clips``; return the norms, ``(R,)``.

    ``m ← β₁ m + (1 − β₁) g``, ``v ← β₂ v + (1 − β₂) g²``,
    ``θ ← (1 − η λ) θ − η m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)`` (Loshchilov & Hutter 2019).

    Args:
        parameters: each ``(R, …)`` for ``R`` networks, or any shape for one; in the same order in memory as
            their gradients and both moments.
        gradients: of the parameters; they are left as they are.
        firsts: means of gradients, ``m``.
        seconds: means of squares of gradients, ``v``.
        steps: how many steps each parameter has had, ``(R,)`` each.
        rates: learning rates ``η``, ``(R,)``.
        decays: weight decays ``λ``, ``(R,)``.
        clips: largest norms, ``(R,)``.
        betas: how much of the moments is kept.
        eps: what is added to the root of the second moment.

    >>> weight, zeros, one = torch.zeros(2), torch.zeros(2), torch.ones(1)
    >>> given = [weight], [torch.tensor([3.0, -4.0])], [zeros], [zeros.clone()], [torch.zeros(1)]
    >>> clipped_adamw(*given, rates=0.1 * one, decays=0 * one, clips=one, betas=(0.9, 0.999), eps=1e-8)
    tensor([5.])
    >>> weight
    tensor([-0.1000,  0.1000])
    """
    given = parameters, gradients, firsts, seconds, steps, rates, decays, clips, betas, eps
    with torch.no_grad():
        if not (kernels_enabled() and parameters[0].is_cuda and works(parameters[0].device)):
            return reference_clipped_adamw(*given)
        from lossnet.ops._triton import adamw

        return adamw.adamw(*given)


def adamw_fits(tensors: Sequence[Tensor]) -> bool:
    """Return True if a kernel takes the step along gradients like these, of one network.

    >>> adamw_fits([torch.zeros(3)])  # on a GPU only
    False
    """
    return (
        kernels_enabled()
        and 0 < len(tensors) <= _TENSORS
        and all(tensor.is_cuda and tensor.dtype == torch.float32 for tensor in tensors)
        and sum(tensor.numel() for tensor in tensors) <= _NUMBERS
        and works(tensors[0].device)
    )
