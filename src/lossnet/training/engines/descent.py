"""One step of an optimizer along clipped gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lossnet import kernels
from lossnet.sparse import squared_norm

__all__ = [
    "begun",
    "descend",
    "excess",
    "has_kernel",
    "laid_out_as",
    "norm_of",
    "ordered",
    "parameters_of",
    "step",
]

#: networks with more tensors, or more numbers, keep a GPU busy with torch's own step
_TENSORS, _NUMBERS = 16, 1 << 22


def descend(optimizer: Optimizer, gradients: Sequence[Tensor | None], clip: float) -> Tensor:
    """Take a step along gradients of at most the norm ``clip``; return their norm before that, ``()``.

    ``gradients`` are of the optimizer's parameters, in their order; they may be scaled in place.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    >>> descend(optimizer, [torch.tensor([3.0, -4.0])], clip=1.0)
    tensor(5.)
    >>> weight.detach()
    tensor([-0.1000,  0.1000])
    """
    present = [gradient for gradient in gradients if gradient is not None]
    if has_kernel([optimizer], present):
        return _in_two_kernels(optimizer, gradients, clip)
    norm = norm_of(present)
    if norm.device.type != "cpu" or norm > clip:
        torch._foreach_div_(present, excess(norm, clip))
    step(optimizer, gradients)
    return norm


def has_kernel(optimizers: Sequence[Optimizer], tensors: Sequence[Tensor]) -> bool:
    """Whether `lossnet.kernels` takes these optimizers' steps along gradients like these, of one network.

    >>> weight = torch.zeros(3, requires_grad=True)
    >>> has_kernel([torch.optim.AdamW([weight])], [weight])  # on a GPU only
    False
    """
    return (
        all(map(_is_plain, optimizers))
        and len({str([group[key] for key in ("betas", "eps")]) for group in map(_group, optimizers)}) == 1
        and 0 < len(tensors) <= _TENSORS
        and all(tensor.is_cuda and tensor.dtype == torch.float32 for tensor in tensors)
        and sum(tensor.numel() for tensor in tensors) <= _NUMBERS
        and kernels.works(tensors[0].device)
    )


def _is_plain(optimizer: Optimizer) -> bool:
    """Whether this is AdamW as the kernels have it."""
    if type(optimizer) is not torch.optim.AdamW or len(optimizer.param_groups) > 1:
        return False
    return not (_group(optimizer)["amsgrad"] or _group(optimizer)["maximize"])


def _group(optimizer: Optimizer) -> dict[str, Any]:
    group: dict[str, Any] = optimizer.param_groups[0]
    return group


def excess(norm: Tensor, clip: Tensor | float) -> Tensor:
    """Return how many times as long as ``clip`` gradients are, at least 1, as torch's clipping has it.

    >>> excess(torch.tensor([1.0, 4.0]), 2.0)
    tensor([1.0000, 2.0000])
    """
    return ((norm + 1e-6) / clip).clamp(min=1)


def norm_of(gradients: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all gradients together, ``()``."""
    if not gradients or gradients[0].device.type != "cpu":
        return get_total_norm(gradients)
    return torch.stack([squared_norm(gradient) for gradient in gradients]).sum().sqrt()


def step(optimizer: Optimizer, gradients: Sequence[Tensor | None]) -> None:
    """Take the optimizer's step along gradients of its parameters, in their order."""
    parameters = parameters_of(optimizer)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else laid_out_as(parameter, gradient)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def ordered(
    optimizer: Optimizer, parameters: Iterable[Tensor], gradients: Iterable[Tensor | None]
) -> list[Tensor | None]:
    """Return gradients of parameters in the order of the optimizer's, which may have fewer."""
    known = dict(zip(parameters, gradients, strict=True))
    return [known[parameter] for parameter in parameters_of(optimizer)]


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return an optimizer's parameters, group after group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def begun(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return what AdamW remembers of a parameter, as its fused step begins with it where it is new."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter, requires_grad=False)
        state["exp_avg_sq"] = torch.zeros_like(parameter, requires_grad=False)
    return state


def _used(
    optimizer: Optimizer, gradients: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    """Return parameters that have a gradient, the gradients, their first and second moments, and steps."""
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


def _in_two_kernels(optimizer: Optimizer, gradients: Sequence[Tensor | None], clip: float) -> Tensor:
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
    """Return a number ``(1,)`` on a device, made once: while a graph is captured, nothing is copied there."""
    return torch.tensor([value], device=device)


def laid_out_as(parameter: Tensor, values: Tensor) -> Tensor:
    """Return a gradient or moment with its parameter's order of numbers in memory, as fused steps want it.

    A convolution of inputs in another order, such as ``torch.channels_last``, has gradients in that order.
    """
    if values.stride() == parameter.stride():
        return values
    return torch.empty_like(parameter, requires_grad=False).copy_(values)
