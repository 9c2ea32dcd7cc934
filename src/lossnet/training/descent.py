"""One step of AdamW along clipped gradients.

On a GPU torch gives 65,536 numbers at a time to one of its many processors, which leaves most of them idle
where a network is small.  In a CUDA graph, where more arguments cost nothing, tensors are split into as many
pieces as one kernel takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from lossnet.sparse import squared_norm

__all__ = ["descend", "excess", "norm_of", "step"]

#: numbers of a tensor that torch gives to one processor of a GPU
_CHUNK = 65536
#: tensors that one kernel takes of one list, and of AdamW's four
_ALONE, _OF_FOUR = 110, 36


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
        torch._foreach_div_(_split(present, _piece(present, _ALONE)), excess(norm, clip))
    step(optimizer, gradients)
    return norm


def excess(norm: Tensor, clip: Tensor | float) -> Tensor:
    """How many times as long as ``clip`` gradients are, at least 1, as torch's clipping has it.

    >>> excess(torch.tensor([1.0, 4.0]), 2.0)
    tensor([1.0000, 2.0000])
    """
    return ((norm + 1e-6) / clip).clamp(min=1)


def norm_of(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients together, ``()``."""
    if not gradients or gradients[0].device.type != "cpu":
        return get_total_norm(_split(gradients, _piece(gradients, _ALONE)))
    return torch.stack([squared_norm(gradient) for gradient in gradients]).sum().sqrt()


def step(optimizer: torch.optim.AdamW, gradients: Sequence[Tensor | None]) -> None:
    """What the fused ``optimizer.step()`` does, of parameters on one device and of one type."""
    (group,) = optimizer.param_groups
    used = [(p, g) for p, g in zip(group["params"], gradients, strict=True) if g is not None]
    if not used:
        return
    parameters = [parameter for parameter, _ in used]
    present = [_laid_out_as(parameter, gradient) for parameter, gradient in used]
    states = [optimizer.state[parameter] for parameter, _ in used]
    if not all(states):
        for parameter, gradient in zip(parameters, present, strict=True):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
        return
    first, second = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
    steps = [state["step"] for state in states]
    piece = _piece([*parameters, *present, *first, *second], 4 * _OF_FOUR)
    with torch.no_grad():
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            _split(parameters, piece),
            _split(present, piece),
            _split(first, piece),
            _split(second, piece),
            [],
            [own for own, p in zip(steps, parameters, strict=True) for _ in _split([p], piece)],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with the parameter's order of numbers in memory, which is all that a fused step looks at.

    A convolution of inputs in another order, such as ``torch.channels_last``, has gradients in that order.
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _piece(tensors: Sequence[Tensor], most: int) -> int | None:
    """How many numbers a piece has, where it pays to split these tensors into at most so many pieces."""
    in_graph = bool(tensors) and tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()
    if not in_graph or len(tensors) >= most or not all(tensor.is_contiguous() for tensor in tensors):
        return None
    least = sum(tensor.numel() for tensor in tensors) / (most - len(tensors))
    piece = 1024 * math.ceil(least / 1024)
    return piece if piece < _CHUNK else None


def _split(tensors: Sequence[Tensor], piece: int | None) -> list[Tensor]:
    """Tensors in pieces ``(piece,)``, or as they are."""
    if piece is None:
        return list(tensors)
    return [part for tensor in tensors for part in tensor.view(-1).split(piece)]
