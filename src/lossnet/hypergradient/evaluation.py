"""Evaluations and derivatives of losses, and parameters as one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from lossnet.hypergradient.layers import Layer, Place, places


def evaluate(loss: Tensor | Callable[[], Tensor], name: str, problems: int | None = None) -> Tensor:
    """Return the scalar with its graph, ``()``; buffers (batch-norm statistics) stay as they were.

    The losses ``(problems,)`` of independent problems are summed, which leaves each its own derivatives.
    """
    if callable(loss):
        with torch.enable_grad(), kept_buffers():
            loss = loss()
    if problems is not None:
        if loss.shape != (problems,):
            raise ValueError(f"the {name} loss must be of shape {(problems,)}, not {tuple(loss.shape)}")
    elif loss.numel() != 1:
        raise ValueError(f"the {name} loss must be a scalar, not of shape {tuple(loss.shape)}")
    if not loss.requires_grad:
        raise ValueError(f"the {name} loss has no graph: it depends on no parameter, or was made in no_grad")
    return loss if problems is None else loss.sum()


def derivatives(
    outputs: Sequence[Tensor],
    at: Sequence[Place],
    directions: Sequence[Tensor] | None = None,
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Return ``∂ (Σ output · direction)`` at each place, 0 where nothing reaches; the graph stays usable.

    A scalar output, such as a loss, needs no direction.
    """
    if not outputs:
        return tuple(map(_zeros, at))
    with torch.autocast(outputs[0].device.type, enabled=False):  # backward has the types of the forward pass
        gradients = torch.autograd.grad(
            outputs,
            cast("list[Tensor]", [place.output if isinstance(place, Layer) else place for place in at]),
            directions,
            create_graph=create_graph,
            retain_graph=True,
            allow_unused=True,
        )
    return tuple(_zeros(place) if part is None else part for part, place in zip(gradients, at, strict=True))


def _zeros(place: Place) -> Tensor:
    if isinstance(place, Layer):
        return torch.zeros(place.shape, dtype=place.dtype, device=place.input.device)
    return torch.zeros_like(place)


@contextmanager
def kept_buffers() -> Iterator[None]:
    """Restore the buffers of every module called inside.

    >>> norm = nn.BatchNorm1d(2)
    >>> with kept_buffers():
    ...     _ = norm(torch.randn(4, 2))
    >>> norm.running_mean, int(norm.num_batches_tracked)
    (tensor([0., 0.]), 0)
    """
    kept: dict[nn.Module, dict[str, tuple[Tensor, Tensor]]] = {}

    def keep(module: nn.Module, _: object) -> None:
        if module not in kept:
            own = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
            kept[module] = {name: (buffer, buffer.detach().clone()) for name, buffer in own.items()}

    hook = register_module_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()
        for module, buffers in kept.items():
            for name, (buffer, content) in buffers.items():
                buffer.data.copy_(content)  # through ``data``: graphs made before stay valid
                module._buffers[name] = buffer


class Layout:
    """Parameters end to end in one vector ``(n,)``, in their common precision and at least float32.

    The weights of each of ``layers`` are given by a ``D`` that stands for ``Dᵀ X``: it has fewer entries, is
    what differentiation finds, and moves the layer's output by ``X Xᵀ D``.  The inner product is still that
    of the weights.

    The first axis of several ``problems``' parameters stays: vectors are ``(problems, n)`` and their inner
    products ``(problems, 1)``.  There are no layers then.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        layers: Mapping[int, Layer] | None = None,
        problems: int | None = None,
    ) -> None:
        self.first = () if problems is None else (problems,)
        self.parameters = tuple(parameters)
        self.layers = dict(layers or {})
        self.places = places(self.parameters, self.layers)
        self.shapes = [place.shape for place in self.places]
        self.sizes = [shape.numel() // (problems or 1) for shape in self.shapes]
        runs: dict[int, int] = {}  # the lengths of layers and of what is between them
        start = 0
        for index, size in enumerate(self.sizes):
            start = index if index in self.layers or start in self.layers else start
            runs[start] = runs.get(start, 0) + size
        self.starts, self.lengths = list(runs), list(runs.values())
        self.dtype = reduce(torch.promote_types, [one.dtype for one in self.parameters], torch.float32)
        self.grams = {index: layer.gram.to(self.dtype) for index, layer in self.layers.items()}

    def flatten(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the vector of a gradient at each place."""
        return torch.cat([gradient.reshape(*self.first, -1).to(self.dtype) for gradient in gradients], -1)

    def split(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Return how a vector moves each place."""
        parts = vector.split_with_sizes(self.sizes, -1)
        moves = [self._move(index, part).view(self.shapes[index]) for index, part in enumerate(parts)]
        return tuple(move.to(like.dtype) for move, like in zip(moves, self.parameters, strict=True))

    def dot(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the inner product of two vectors, ``()``."""
        if self.first:
            return (first * second).sum(-1, keepdim=True)
        if not self.layers:
            return torch.dot(first, second)
        pairs = zip(first.split_with_sizes(self.lengths), second.split_with_sizes(self.lengths), strict=True)
        indexed = zip(self.starts, pairs, strict=True)
        return torch.stack([torch.dot(a, self._move(index, b)) for index, (a, b) in indexed]).sum()

    def _move(self, index: int, part: Tensor) -> Tensor:
        if index not in self.layers:
            return part
        return (self.grams[index] @ part.view(self.shapes[index])).view(-1)
