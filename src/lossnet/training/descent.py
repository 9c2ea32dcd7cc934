"""One step of AdamW along clipped gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from lossnet import kernels
from lossnet.sparse import squared_norm

__all__ = ["begun", "descend", "excess", "has_kernel", "laid_out_as", "norm_of", "step"]

#: networks with more tensors, or more numbers, keep a GPU busy with torch's own step
_TENSORS, _NUMBERS = 16, 1 << 22


def descend(optimizer: torch.optim.AdamW, gradients: Sequence[Tensor | None], clip: float) -> Tensor:
    """A step along gradients of at most the norm ``clip``; returns their norm before that, ``()``.

    ``gradients`` are of the optimizer's parameters, in their order; they may be scaled in place.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    >>> descend(optimizer, [torch.tensor([3.0, -4.0])], clip=1.0)
    tensor(5.)
    >>> weight.detach()
    tensor([-0.1000,  0.1000])
    """
    present = [gradient for gradient in gradients if gradient is not None]
    if has_kernel(present):
        return _in_two_kernels(optimizer, gradients, clip)
    norm = norm_of(present)
    if norm.device.type != "cpu" or norm > clip:
        torch._foreach_div_(present, excess(norm, clip))
    step(optimizer, gradients)
    return norm


def has_kernel(tensors: Sequence[Tensor]) -> bool:
    """Whether `lossnet.kernels` takes the step along gradients like these, of one network.

    >>> has_kernel([torch.zeros(3)])  # on a GPU only
    False
    """
    return (
        0 < len(tensors) <= _TENSORS
        and all(tensor.is_cuda and tensor.dtype == torch.float32 for tensor in tensors)
        and sum(tensor.numel() for tensor in tensors) <= _NUMBERS
        and kernels.works(tensors[0].device)
    )


def excess(norm: Tensor, clip: Tensor | float) -> Tensor:
    """How many times as long as ``clip`` gradients are, at least 1, as torch's clipping has it.

    >>> excess(torch.tensor([1.0, 4.0]), 2.0)
    tensor([1.0000, 2.0000])
    """
    return ((norm + 1e-6) / clip).clamp(min=1)


def norm_of(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients together, ``()``."""
    if not gradients or gradients[0].device.type != "cpu":
        return get_total_norm(gradients)
    return torch.stack([squared_norm(gradient) for gradient in gradients]).sum().sqrt()


def step(optimizer: torch.optim.AdamW, gradients: Sequence[Tensor | None]) -> None:
    """What the fused ``optimizer.step()`` does, of parameters on one device and of one type."""
    (group,) = optimizer.param_groups
    parameters, present, firsts, seconds, steps = _used(optimizer, gradients)
    if not parameters:
        return
    with torch.no_grad():
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            parameters,
            present,
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


def begun(optimizer: torch.optim.AdamW, parameter: Tensor) -> dict[str, Tensor]:
    """What the optimizer remembers of a parameter, as fused AdamW begins with it where it is new."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter, requires_grad=False)
        state["exp_avg_sq"] = torch.zeros_like(parameter, requires_grad=False)
    return state


def _used(
    optimizer: torch.optim.AdamW, gradients: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    """Parameters that have a gradient, the gradients, their first and second moments, and their steps."""
    (group,) = optimizer.param_groups
    pairs = [(p, g) for p, g in zip(group["params"], gradients, strict=True) if g is not None]
    states = [begun(optimizer, parameter) for parameter, _ in pairs]
    return (
        [parameter for parameter, _ in pairs],
        [laid_out_as(parameter, gradient) for parameter, gradient in pairs],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [state["step"] for state in states],
    )


def _in_two_kernels(optimizer: torch.optim.AdamW, gradients: Sequence[Tensor | None], clip: float) -> Tensor:
    from lossnet.kernels import adamw  # only where there is Triton

    (group,) = optimizer.param_groups
    used = _used(optimizer, gradients)
    device = used[0][0].device
    rate, decay, most = (
        value.view(1) if isinstance(value, Tensor) and value.is_cuda else _constant(float(value), device)
        for value in (group["lr"], group["weight_decay"], clip)
    )
    with torch.no_grad():
        norms = adamw.adamw(*used, rate, decay, most, group["betas"], group["eps"])
    return norms.view(())


@cache
def _constant(value: float, device: torch.device) -> Tensor:
    """A number ``(1,)`` on a device, made once: while a graph is captured, nothing is copied there."""
    return torch.tensor([value], device=device)


def laid_out_as(parameter: Tensor, values: Tensor) -> Tensor:
    """A gradient or moment with its parameter's order of numbers in memory, all that a fused step looks at.

    A convolution of inputs in another order, such as ``torch.channels_last``, has gradients in that order.
    """
    if values.stride() == parameter.stride():
        return values
    return torch.empty_like(parameter, requires_grad=False).copy_(values)
