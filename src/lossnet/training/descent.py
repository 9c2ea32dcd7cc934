"""One step of AdamW along clipped gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

__all__ = ["descend", "norm_of", "step"]


def descend(optimizer: torch.optim.AdamW, gradients: Sequence[Tensor | None], clip: float) -> Tensor:
    """A step along gradients of at most the norm ``clip``; returns their norm before that, ``()``.

    ``gradients`` are of the optimizer's parameters, in their order.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    >>> descend(optimizer, [torch.tensor([3.0, -4.0])], clip=1.0)
    tensor(5.)
    >>> weight.detach()
    tensor([-0.1000,  0.1000])
    """
    present = [gradient for gradient in gradients if gradient is not None]
    norm = norm_of(present)
    if norm.device.type != "cpu" or norm > clip:
        scale = (clip / (norm + 1e-6)).clamp(max=1)
        torch._foreach_mul_(present, scale)
    step(optimizer, gradients)
    return norm


def norm_of(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients together, ``()``."""
    if not gradients or gradients[0].device.type != "cpu":
        return get_total_norm(gradients)
    flat = [gradient.reshape(-1) for gradient in gradients]
    return torch.stack([torch.dot(part, part) for part in flat]).sum().sqrt()


def step(optimizer: torch.optim.AdamW, gradients: Sequence[Tensor | None]) -> None:
    """What the fused ``optimizer.step()`` does, on a CPU without finding out anew what goes together."""
    (group,) = optimizer.param_groups
    used = [(p, g) for p, g in zip(group["params"], gradients, strict=True) if g is not None]
    if not used:
        return
    states = [optimizer.state[parameter] for parameter, _ in used]
    if not all(states) or used[0][0].device.type != "cpu":
        for parameter, gradient in used:
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
        return
    steps = [state["step"] for state in states]
    with torch.no_grad():
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            [parameter for parameter, _ in used],
            [gradient for _, gradient in used],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
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
