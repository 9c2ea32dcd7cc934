"""Products with matrices of mostly zeros: inputs with few features, sets of few labels.

A product ``X W`` with a sparse ``X`` reads only the rows of ``W`` for what is not zero, and its gradient
``Xᵀ D`` is as cheap.  Both are sums of few rows of a matrix, as `torch.nn.functional.embedding_bag` computes
them.  All results can be differentiated any number of times.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lossnet.ops.switch import inside_transform

#: up to this share of values that are not zero, sums of rows are faster than a dense product
SPARSE_SHARE = 0.1

T = TypeVar("T")


class SideTable(Generic[T]):
    """Values of tensors, kept while the tensor lives and is not changed in place.

    >>> table, x = SideTable[str](), torch.zeros(2)
    >>> table.set(x, "zeros")
    >>> table.get(x)
    'zeros'
    >>> table.get(x.add_(1))
    """

    def __init__(self) -> None:
        self._entries: MutableMapping[Tensor, tuple[int, T]] = WeakTensorKeyDictionary()

    def set(self, tensor: Tensor, value: T) -> None:
        """Note a value; inference tensors are left out, since their changes are not counted."""
        if not tensor.is_inference():
            self._entries[tensor] = tensor._version, value

    def get(self, tensor: Tensor) -> T | None:
        """Return the value, or None if there is none or the tensor has changed since."""
        entry = self._entries.get(tensor)
        return None if entry is None or entry[0] != tensor._version else entry[1]


def nonzeros(x: Tensor) -> Sparse | None:
    """Return the nonzero values of constant inputs ``(…, inputs)`` on a CPU as a matrix, if they are few.

    A tensor is searched once, since all steps on a batch read the same one.

    >>> nonzeros(torch.eye(20)).column[:3]
    array([0, 1, 2])
    """
    if x.requires_grad or x.device.type != "cpu" or inside_transform():
        return None
    known = _nonzeros.get(x)
    if known is None:
        known = _scan(x) or False
        _nonzeros.set(x, known)
    return known or None


def unbind_sets(sets: Tensor, where: NDArray[np.int64]) -> tuple[Tensor, ...]:
    """Return the parts along the first axis of label sets ``(parts, …, labels)``, and note their ones.

    ``where`` are the places of all ones, counted through all sets.
    """
    parts, size = sets.unbind(), sets[0].numel()
    bounds = np.searchsorted(where, np.arange(len(parts) + 1) * size)
    for index, (part, (start, stop)) in enumerate(zip(parts, pairwise(bounds.tolist()), strict=True)):
        own = where[start:stop] - index * size
        _nonzeros.set(part, _of_ones(own, (part.shape[:-1].numel(), part.shape[-1])))
    return parts


def distinct(y: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the distinct candidates of ``(batch, K, labels)``, ``(rows, labels)``, and the row of each of
    them, ``(batch · K,)``; or the candidates and None, where they are not sets of few labels.

    >>> y = torch.eye(20)[torch.tensor([[3, 5, 3]])]
    >>> rows, places = distinct(y)
    >>> rows.shape, bool((rows[places].view_as(y) == y).all())
    (torch.Size([2, 20]), True)
    """
    few = nonzeros(y)
    if few is None or few.value is not None:
        return y, None
    where, places, matrix = few.distinct()
    rows = y.reshape(few.shape).index_select(0, torch.from_numpy(where))
    _nonzeros.set(rows, matrix)
    return rows, torch.from_numpy(places)


def product(x: Sparse, weight: Tensor, dense: Tensor | None = None) -> Tensor:
    """Return ``X W`` ``(rows, outputs)`` for a constant ``X`` and ``W`` ``(inputs, outputs)``.

    ``dense`` is ``X`` as a tensor, if there is one, for `lossnet.hypergradient`, which reads the graph.
    """
    return cast("Tensor", _Product.apply(x, weight, dense))  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Sparse, weight: Tensor, dense: Tensor | None) -> Tensor:
        ctx.sparse_input, ctx.constant_input = x, dense
        return x.rows.of(weight.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        x: Sparse = ctx.sparse_input
        if torch.is_grad_enabled():  # it may be differentiated again
            return None, _TransposedProduct.apply(x, gradient), None  # type: ignore[no-untyped-call]
        of_weight = x.columns.of(gradient)
        if x.shape[0] ** 2 <= x.shape[1]:
            # ‖Xᵀ D‖² = Σ (X Xᵀ) ∘ (D Dᵀ), of few numbers
            gram = x.gram.to(gradient.dtype)
            _squares.set(of_weight, torch.dot(gram.view(-1), (gradient @ gradient.T).view(-1)))
        return None, of_weight, None


class _TransposedProduct(torch.autograd.Function):
    """``Xᵀ D`` ``(inputs, outputs)`` for ``D`` ``(rows, outputs)``: the adjoint of `_Product`."""

    @staticmethod
    def forward(ctx: Any, x: Sparse, gradient: Tensor) -> Tensor:
        ctx.x = x
        return x.columns.of(gradient.detach())

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> tuple[None, Tensor]:
        return None, product(ctx.x, direction)


def squared_norm(gradient: Tensor) -> Tensor:
    """Return ``‖g‖²``, ``()``, of any tensor; it is known already for the gradient of a product's weights.

    >>> squared_norm(torch.tensor([[3.0, 4.0]]))
    tensor(25.)
    """
    square = _squares.get(gradient)
    if square is None:
        flat = gradient.reshape(-1)
        square = torch.dot(flat, flat)
    return square


class RowSums(NamedTuple):
    """Which rows of a matrix are summed: those at ``indices[starts[i]:starts[i + 1]]``, times ``values``."""

    indices: Tensor
    starts: Tensor
    values: Tensor | None

    def of(self, matrix: Tensor) -> Tensor:
        """Return the sums, ``(sums, width)``, of rows of ``(rows, width)``."""
        values = None if self.values is None else self.values.to(matrix.dtype)
        mode, last = 0, True  # sums; the last start is where all end
        matrix = matrix.contiguous()
        return torch.embedding_bag(matrix, self.indices, self.starts, False, mode, False, values, last)[0]


@dataclass(frozen=True, eq=False)
class Sparse:
    """A constant matrix ``(m, n)`` in CSR layout.

    Args:
        starts: where each row starts in ``column``, and the end of all, ``(m + 1,)``.
        column: of each value.
        value: None if all are 1; `distinct` is for such matrices.
        shape: ``(m, n)``.
    """

    starts: NDArray[np.int64]
    column: NDArray[np.int64]
    value: NDArray[Any] | None
    shape: tuple[int, int]

    @cached_property
    def rows(self) -> RowSums:
        """``X R`` as sums of rows of ``R``."""
        value = None if self.value is None else torch.from_numpy(self.value)
        return RowSums(torch.from_numpy(self.column), torch.from_numpy(self.starts), value)

    @cached_property
    def columns(self) -> RowSums:
        """``Xᵀ D`` as sums of rows of ``D``."""
        # NumPy sorts small numbers several times faster.
        keys = self.column.astype(np.uint16) if self.shape[1] <= 1 << 16 else self.column
        order = np.argsort(keys, kind="stable")
        row = np.repeat(np.arange(self.shape[0]), np.diff(self.starts))
        starts = np.zeros(self.shape[1] + 1, np.int64)
        np.cumsum(np.bincount(self.column, minlength=self.shape[1]), out=starts[1:])
        value = None if self.value is None else torch.from_numpy(self.value[order])
        return RowSums(torch.from_numpy(row[order]), torch.from_numpy(starts), value)

    @cached_property
    def gram(self) -> Tensor:
        """``X Xᵀ``, ``(m, m)``."""
        return self.rows.of(self.columns.of(torch.eye(self.shape[0], dtype=torch.float64)))

    def distinct(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Sparse]:
        """Return where its distinct rows are, ``(k,)``; which of them each row is, ``(m,)``; and these rows.

        Rows are compared by the sums of 64 random bits for each of their ones, so that one of 10¹³ matrices
        with a thousand rows has two that are taken for equal and are not.
        """
        sums = np.zeros(len(self.column) + 1, np.uint64)
        np.cumsum(_bits(self.shape[1])[self.column], out=sums[1:])
        keys = np.diff(sums[self.starts])
        order = np.argsort(keys)  # `np.unique` would sort stably, which takes longer
        ordered, new = keys[order], np.ones(len(keys), bool)
        np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
        places = np.empty(len(keys), np.int64)
        places[order] = np.cumsum(new) - 1
        rows = order[new]
        counts, starts = self.starts[rows + 1] - self.starts[rows], np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        kept = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], counts)
        return rows, places, Sparse(starts, self.column[kept], None, (len(rows), self.shape[1]))


@cache
def _bits(count: int) -> NDArray[np.uint64]:
    """Return 64 random bits for each column, always the same."""
    return np.random.default_rng(count).integers(2**64, size=count, dtype=np.uint64)


def _scan(x: Tensor) -> Sparse | None:
    shape = (x.shape[:-1].numel(), x.shape[-1])
    if x.layout == torch.sparse_csr:
        starts, column = (part.numpy().astype(np.int64) for part in (x.crow_indices(), x.col_indices()))
        value = _numpy(x.values())
        return Sparse(starts, column, None if (value == 1).all() else value, shape)
    flat = _numpy(x.detach().reshape(-1))
    places = flat != 0
    if np.count_nonzero(places) > SPARSE_SHARE * flat.size:
        return None
    where = np.flatnonzero(places)
    ones, value = _of_ones(where, shape), flat[where]
    return ones if (value == 1).all() else replace(ones, value=value)


def _numpy(x: Tensor) -> NDArray[Any]:
    """Return values as NumPy has them, which does not know bfloat16."""
    array: NDArray[Any] = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    return array


def _of_ones(where: NDArray[np.int64], shape: tuple[int, int]) -> Sparse:
    """Return a matrix with ones at these places, row after row."""
    starts = np.searchsorted(where, np.arange(shape[0] + 1) * shape[1])
    return Sparse(starts, where % max(shape[1], 1), None, shape)


#: False for tensors that are not sparse
_nonzeros = SideTable[Sparse | Literal[False]]()
#: squared norms of gradients
_squares = SideTable[Tensor]()
