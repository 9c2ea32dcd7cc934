"""One step of an optimizer along clipped gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.optim import Optimizer

from lossnet import ops

__all__ = ["begun", "descend", "has_kernel", "laid_out_as", "ordered", "parameters_of", "step"]


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
        return _in_one_op(optimizer, gradients, clip)
    norm = ops.total_norm(present)
    if norm.device.type != "cpu" or norm > clip:
        ops.scale_down(present, ops.clip_factor(norm, clip))
    step(optimizer, gradients)
    return norm


def step(optimizer: Optimizer, gradients: Sequence[Tensor | None]) -> None:
    """Take the optimizer's step along gradients of its parameters, in their order; no ``.grad`` stays."""
    if ops.is_fused_adamw(optimizer):
        tensors = _used(optimizer, gradients)
        if tensors[0]:
            ops.fused_adamw(*tensors, optimizer.param_groups[0])
        return
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


def has_kernel(optimizers: Sequence[Optimizer], tensors: Sequence[Tensor]) -> bool:
    """Whether `ops.clipped_adamw` takes these optimizers' steps along gradients like these, of one network.

    >>> weight = torch.zeros(3, requires_grad=True)
    >>> has_kernel([torch.optim.AdamW([weight])], [weight])  # on a GPU only
    False
    """
    if not ops.adamw_fits(tensors) or any(type(one) is not torch.optim.AdamW for one in optimizers):
        return False
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    plain = not any(group["amsgrad"] or group["maximize"] for group in groups)
    return plain and len(groups) == len(optimizers) and len({(*g["betas"], g["eps"]) for g in groups}) == 1


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
    """Return parameters that have a gradient, the gradients, both moments, their steps."""
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


def _in_one_op(optimizer: Optimizer, gradients: Sequence[Tensor | None], clip: float) -> Tensor:
    tensors, (group,) = _used(optimizer, gradients), optimizer.param_groups
    device = tensors[0][0].device
    rate, decay, most = (
        value.view(1) if isinstance(value, Tensor) and value.is_cuda else _constant(float(value), device)
        for value in (group["lr"], group["weight_decay"], clip)
    )
    return ops.clipped_adamw(*tensors, rate, decay, most, group["betas"], group["eps"]).view(())


@cache
def _constant(value: float, device: torch.device) -> Tensor:
    """Return a number ``(1,)`` on a device, made once: while a graph is captured, nothing is copied there."""
    return torch.tensor([value], device=device)


def laid_out_as(parameter: Tensor, values: Tensor) -> Tensor:
    """Return a gradient or moment in its parameter's memory order, all that a fused step looks at.

    A convolution of inputs in another order, such as ``torch.channels_last``, has gradients in that order.
    """
    if values.stride() == parameter.stride():
        return values
    return torch.empty_like(parameter, requires_grad=False).copy_(values)
