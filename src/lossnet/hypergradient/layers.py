"""Linear layers with a constant input: the gradients of their weights are products of two thin matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

if TYPE_CHECKING:
    from lossnet.ops.sparse import Sparse


@dataclass(frozen=True)
class Layer:
    """``Z = X Wᵀ`` (and perhaps a bias), the only use that a loss makes of ``W``, where ``X`` is constant.

    The parameter is ``W``, or ``Wᵀ`` where the layer is ``transposed``.  Every gradient of ``W``, of whatever
    order, is ``Dᵀ X`` with ``D`` the gradient of ``Z``, and ``W`` acts only through ``Z``.  A network's first
    layer is of this kind, and often holds most of its weights.

    Attributes:
        output: where the graph has ``Z``, ``(rows, outputs)``; nowhere, if the graph is gone.
        input: ``X``, ``(rows, inputs)``.
        dtype: of ``W``.
        version: of ``X`` when the graph was made.
        transposed: whether the parameter has a row for each input.
        sparse: ``X`` again, where it is mostly zeros and the graph says so.
    """

    output: GradientEdge | None
    input: Tensor
    outputs: int
    dtype: torch.dtype
    version: int
    transposed: bool = False
    sparse: Sparse | None = None

    def weights(self, gradient: Tensor) -> Tensor:
        """Return the gradient ``Dᵀ X`` of ``W`` for that of ``Z``."""
        if self.input._version != self.version:
            raise RuntimeError(
                "a layer's input was changed in place after the outer loss was evaluated: "
                "leave it alone, or pass products=DoubleBackward(thin=False)"
            )
        with self._no_autocast():
            if self.sparse is not None:
                transposed = self.sparse.columns.of(gradient)
                return transposed if self.transposed else transposed.T
            return self.input.T @ gradient if self.transposed else gradient.T @ self.input

    @cached_property
    def gram(self) -> Tensor:
        """``X Xᵀ``, ``(rows, rows)``, in float64: ``Dᵀ X`` moves ``Z`` by ``X Xᵀ D``.

        In less, the norm of a ``D`` that cancels much of ``X`` would be that of rounding.
        """
        if self.sparse is not None:
            return self.sparse.gram
        with self._no_autocast():
            matrix = self.input.double()
            return matrix @ matrix.T

    def dot(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the inner product ``()`` of the gradients of ``W`` for two of ``Z``, in their type."""
        with self._no_autocast():
            moved = self.gram @ second.double()
            return torch.dot(first.double().reshape(-1), moved.view(-1)).to(first.dtype)

    def _no_autocast(self) -> torch.autocast:
        return torch.autocast(self.input.device.type, enabled=False)

    @property
    def shape(self) -> torch.Size:
        """The shape of ``Z``."""
        return torch.Size((len(self.input), self.outputs))

    def has_input_of(self, other: Layer) -> bool:
        """Whether both layers read the very same memory, unchanged in between."""
        mine, its = self.input, other.input
        same_kind = (mine.shape, mine.stride(), mine.dtype) == (its.shape, its.stride(), its.dtype)
        return same_kind and mine.data_ptr() == its.data_ptr() and self.version == other.version


#: where a derivative is taken: at a parameter, or at the output of a layer in place of its weights
Place = Tensor | Layer


def places(parameters: Sequence[Tensor], layers: Mapping[int, Layer]) -> tuple[Place, ...]:
    """Return the parameters, with layers in place of their weights."""
    return tuple(layers.get(index, parameter) for index, parameter in enumerate(parameters))


def within(layers: Mapping[int, Layer], start: int, stop: int) -> dict[int, Layer]:
    """Return the layers of some of the parameters, counted from the first of these."""
    return {index - start: layer for index, layer in layers.items() if start <= index < stop}


@dataclass(frozen=True)
class Gradient:
    """A gradient of some parameters, at the outputs of ``layers`` in place of their weights.

    >>> Gradient((torch.tensor([3.0, 4.0]),), {}).norm()
    tensor(5.)
    """

    parts: tuple[Tensor, ...]
    layers: Mapping[int, Layer]

    def part(self, start: int, stop: int) -> Gradient:
        """Return the gradient of some of the parameters."""
        return Gradient(self.parts[start:stop], within(self.layers, start, stop))

    def common(self, layers: Mapping[int, Layer]) -> dict[int, Layer]:
        """Return those of the layers where this gradient has the same form."""
        shared = [index for index in layers if index in self.layers]
        return {index: layers[index] for index in shared if layers[index].has_input_of(self.layers[index])}

    def at(self, layers: Mapping[int, Layer]) -> Gradient:
        """Return the same gradient, at the outputs of these layers only."""
        own = {index: layer for index, layer in self.layers.items() if index not in layers}
        parts = [own[i].weights(part) if i in own else part for i, part in enumerate(self.parts)]
        return Gradient(tuple(parts), layers)

    def without_graph(self) -> Gradient:
        """Return the same gradient without the layers' graph."""
        return Gradient(self.parts, {i: replace(layer, output=None) for i, layer in self.layers.items()})

    @property
    def whole(self) -> tuple[Tensor, ...]:
        """The gradients of the parameters."""
        return self.at({}).parts

    def dot(self, other: Gradient, problems: int | None = None) -> Tensor:
        """Return the inner product with another of the same layers: ``()``, or ``(problems,)``."""
        pairs = list(zip(self.parts, other.parts, strict=True))
        if problems is not None:  # which have no layers
            return torch.stack([(a * b).flatten(1).sum(1) for a, b in pairs]).sum(0)
        return torch.stack([self._dot(index, a, b) for index, (a, b) in enumerate(pairs)]).sum()

    def _dot(self, index: int, first: Tensor, second: Tensor) -> Tensor:
        layer = self.layers.get(index)
        return torch.dot(first.reshape(-1), second.reshape(-1)) if layer is None else layer.dot(first, second)

    def norm(self, problems: int | None = None) -> Tensor:
        """Return the norm, ``()``, or ``(problems,)``."""
        if problems is not None:
            lengths = [torch.linalg.vector_norm(part.flatten(1), dim=1) for part in self.parts]
        else:
            lengths = [
                # Rounding may leave a little less than 0.
                self._dot(i, part, part).clamp(min=0).sqrt()
                if i in self.layers
                else torch.linalg.vector_norm(part)
                for i, part in enumerate(self.parts)
            ]
        total: Tensor = torch.linalg.vector_norm(torch.stack(lengths), dim=0)
        return total


def thin_layers(loss: Tensor, parameters: Sequence[Tensor]) -> dict[int, Layer]:
    """Return the layers, by the index of their weights, with so few rows that ``D`` is better to work with.

    Reads the loss's graph, where `torch.nn.Linear` is a product with a transposed matrix.  A function of your
    own that makes this product sets ``constant_input`` on its context, and perhaps ``sparse_input``, the same
    as a `lossnet.ops.sparse.Sparse`.  Weights used twice, cast by autocast or hidden in compiled code are
    left out, which costs only time.

    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.Linear(3, 1))
    >>> loss = net(torch.ones(2, 8)).sum()
    >>> [(index, layer.input.shape) for index, layer in thin_layers(loss, list(net.parameters())).items()]
    [(0, torch.Size([2, 8]))]
    """
    users = _users(loss)
    layers = {}
    for index, parameter in enumerate(parameters):
        edge = get_gradient_edge(parameter)
        if parameter._backward_hooks:  # its gradient must be computed for them
            continue
        factor, products = edge.node, users.get((edge.node, edge.output_nr), [])
        transposed = [node.name() for node in products] != ["TBackward0"]
        if not transposed:
            factor, products = products[0], users.get((products[0], 0), [])
        if len(products) != 1:
            continue
        source = _constant_input(products[0], factor)
        if source is None:
            continue
        rows, outputs = len(source), parameter.shape[1 if transposed else 0]
        if 2 * rows <= source.shape[1] and rows <= outputs:
            edge = GradientEdge(products[0], 0)
            sparse = getattr(products[0], "sparse_input", None)
            layers[index] = Layer(edge, source, outputs, parameter.dtype, source._version, transposed, sparse)
    return layers


def _users(loss: Tensor) -> dict[tuple[Node, int], list[Node]]:
    """Return the nodes that read each value in the loss's graph, once for each time."""
    users: dict[tuple[Node, int], list[Node]] = {}
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for source, index in node.next_functions:
            if source is not None:
                users.setdefault((source, index), []).append(node)
                waiting.append(source)
    return users


def _constant_input(product: Node, weights: Node) -> Tensor | None:
    """Return ``X`` if the node is ``X Wᵀ`` or ``X Wᵀ + bias`` and ``X`` needs no gradient."""
    source: Tensor | None = getattr(product, "constant_input", None)
    if source is not None:
        return source
    *_, (first, _), (second, _) = [(None, 0), (None, 0), *product.next_functions]
    if first is not None or second is not weights:
        return None
    if product.name() == "MmBackward0":
        source = getattr(product, "_saved_self", None)
    if product.name() == "AddmmBackward0" and getattr(product, "_saved_alpha", None) == 1:
        source = getattr(product, "_saved_mat1", None)
    return source
