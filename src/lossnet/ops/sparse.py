"""Products with what is mostly zeros: inputs with few features, sets of few labels.

A product ``X W`` with a sparse ``X`` reads the rows of ``W`` for what is not zero and no others, and its
gradient ``Xᵀ D`` is as cheap.  Both are sums of few rows of a matrix, which PyTorch has as
`torch.nn.functional.embedding_bag`.  All results can be differentiated any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.ops.side_table import SideTable
from lossnet.ops.switch import inside_transform

__all__ = ["SPARSE_SHARE", "Sparse", "distinct", "nonzeros", "note_ones", "product", "squared_norm", "unbind"]

#: up to this share of values that are not zero, sums of rows are faster than a dense product
SPARSE_SHARE = 0.1


def nonzeros(x: Tensor) -> Sparse | None:
    """Return what is not zero in constant inputs on a CPU ``(…, inputs)``, as a matrix, if that is little.

    It is looked for once, since all steps on a batch read the same tensor.

    >>> nonzeros(torch.eye(20)).column[:3]
    array([0, 1, 2])
    """
    if x.requires_grad or x.device.type != "cpu" or inside_transform():
        return None
    known = _nonzeros.get(x, _UNKNOWN)
    if known is _UNKNOWN:
        known = _scan(x)
        _nonzeros.set(x, known)
    return cast("Sparse | None", known)


def note_ones(sets: Tensor, where: NDArray[np.int64]) -> None:
    """Note where label sets ``(…, labels)`` have their ones: at these places, counted through all of them."""
    _nonzeros.set(sets, _of_ones(where, (sets.shape[:-1].numel(), sets.shape[-1])))


def unbind(sets: Tensor) -> tuple[Tensor, ...]:
    """Return the parts of a tensor along its first axis, of which as much is known as of the whole."""
    parts, few = sets.unbind(), _nonzeros.get(sets, None)
    if few is not None and few.value is None:
        sizes = [few.shape[0] // len(parts)] * len(parts)
        for index, (part, own) in enumerate(zip(parts, few.split(sizes), strict=True)):
            _nonzeros.set(part, replace(own, part=(few, index, len(parts))))
    return parts


def distinct(y: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the different ones among candidates ``(batch, K, labels)``, ``(rows, labels)``, and the row of
    each, ``(batch · K,)``; or the candidates themselves, where they are not sets of few labels.

    >>> y = torch.eye(20)[torch.tensor([[3, 5, 3]])]
    >>> rows, places = distinct(y)
    >>> rows.shape, bool((rows[places].view_as(y) == y).all())
    (torch.Size([2, 20]), True)
    """
    few = nonzeros(y)
    if few is None or few.value is not None:
        return y, None
    different = few.distinct()
    rows = y.reshape(few.shape).index_select(0, torch.from_numpy(different.rows))
    _nonzeros.set(rows, different.matrix)
    return rows, torch.from_numpy(different.places)


class SparseProduct(torch.autograd.Function):
    """``X W`` ``(rows, outputs)`` for a constant sparse ``X`` and ``W`` ``(inputs, outputs)``.

    ``dense`` is ``X`` as a tensor, where there is one, for those who read the graph.
    """

    @staticmethod
    def forward(ctx: Any, x: Sparse, weight: Tensor, dense: Tensor | None) -> Tensor:
        ctx.sparse_input, ctx.constant_input = x, dense
        return x.rows.of(weight.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        if not torch.is_grad_enabled():  # nobody will differentiate it again
            return None, _weight_gradient(ctx.sparse_input, gradient), None
        return None, _TransposedProduct.apply(ctx.sparse_input, gradient), None  # type: ignore[no-untyped-call]


def _weight_gradient(x: Sparse, gradient: Tensor) -> Tensor:
    """Return ``Xᵀ D``; its norm is noted where it has many more rows than ``D``."""
    product = x.columns.of(gradient)
    if x.shape[0] ** 2 <= x.shape[1]:
        # ‖Xᵀ D‖² = Σ (X Xᵀ) ∘ (D Dᵀ), of few numbers
        gram = x.gram.to(gradient.dtype)
        _squares.set(product, torch.dot(gram.view(-1), (gradient @ gradient.T).view(-1)))
    return product


def squared_norm(gradient: Tensor) -> Tensor:
    """Return ``‖g‖²``, ``()``, of any tensor; quick for the gradient of a product's weights.

    >>> squared_norm(torch.tensor([[3.0, 4.0]]))
    tensor(25.)
    """
    square = _squares.get(gradient, None)
    if square is None:
        flat = gradient.reshape(-1)
        square = torch.dot(flat, flat)
    return square


class _TransposedProduct(torch.autograd.Function):
    """``Xᵀ D`` ``(inputs, outputs)`` for ``D`` ``(rows, outputs)``: the adjoint of `SparseProduct`."""

    @staticmethod
    def forward(ctx: Any, x: Sparse, gradient: Tensor) -> Tensor:
        ctx.x = x
        return x.columns.of(gradient.detach())

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> tuple[None, Tensor]:
        return None, product(ctx.x, direction)


def product(x: Sparse, weight: Tensor, dense: Tensor | None = None) -> Tensor:
    """``X W`` ``(rows, outputs)`` for ``W`` ``(inputs, outputs)``; see `SparseProduct` for ``dense``."""
    return cast("Tensor", SparseProduct.apply(x, weight, dense))  # type: ignore[no-untyped-call]


class _Sums(NamedTuple):
    """Which rows of a matrix are summed: those at ``indices[starts[i]:starts[i + 1]]``, times ``values``."""

    indices: Tensor
    starts: Tensor
    values: Tensor | None

    def of(self, matrix: Tensor) -> Tensor:
        """The sums, ``(sums, width)``, of rows of ``(rows, width)``."""
        values = None if self.values is None else self.values.to(matrix.dtype)
        mode, last = 0, True  # sums; the last start is where all end
        matrix = matrix.contiguous()
        return torch.embedding_bag(matrix, self.indices, self.starts, False, mode, False, values, last)[0]


class Distinct(NamedTuple):
    """Different rows: where they are, ``(k,)``; which of them each of all rows is, ``(m,)``; just these."""

    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    matrix: Sparse


@dataclass(frozen=True, eq=False)
class Sparse:
    """A constant matrix ``(m, n)``: where it is not zero, row after row; the values, if some are not 1.

    It may be a ``part`` of another, the second of three equal ones, say: ``(other, 1, 3)``.
    """

    row: NDArray[np.int64]
    column: NDArray[np.int64]
    value: NDArray[Any] | None
    shape: tuple[int, int]
    part: tuple[Sparse, int, int] | None = None

    @cached_property
    def rows(self) -> _Sums:
        """``X R`` as sums of rows of ``R``."""
        return self._sums(self.row, self.column, self.value, self.shape[0])

    @cached_property
    def columns(self) -> _Sums:
        """``Xᵀ D`` as sums of rows of ``D``."""
        # NumPy sorts small numbers several times faster.
        keys = self.column.astype(np.uint16) if self.shape[1] <= 1 << 16 else self.column
        order = np.argsort(keys, kind="stable")
        value = None if self.value is None else self.value[order]
        return self._sums(self.column, self.row[order], value, self.shape[1])

    @cached_property
    def gram(self) -> Tensor:
        """``X Xᵀ``, ``(m, m)``."""
        return self.rows.of(self.columns.of(torch.eye(self.shape[0], dtype=torch.float64)))

    def split(self, sizes: Sequence[int]) -> Iterator[Sparse]:
        """Its rows in parts of these sizes, for a matrix of ones."""
        ends = np.cumsum([0, *sizes])
        places = np.searchsorted(self.row, ends)
        bounds = zip(pairwise(ends.tolist()), pairwise(places.tolist()), strict=True)
        for (first, last), (start, stop) in bounds:
            shape = (last - first, self.shape[1])
            yield Sparse(self.row[start:stop] - first, self.column[start:stop], None, shape)

    def distinct(self) -> Distinct:
        """Its rows without those that are equal to others, for a matrix of ones.

        Rows are known by the sums of 64 random bits for each of their ones, so that one of 10¹³ matrices
        with a thousand rows has two that are taken for equal and are not.
        """
        whole, index, count = self.part or (self, 0, 1)
        if count not in whole._distinct:  # of all parts in the time of one
            whole._distinct[count] = whole._distinct_in(count)
        return whole._distinct[count][index]

    @cached_property
    def _distinct(self) -> dict[int, list[Distinct]]:
        """What is known of so many parts of equal size."""
        return {}

    def _distinct_in(self, parts: int) -> list[Distinct]:
        sums = np.zeros(len(self.column) + 1, np.uint64)
        np.cumsum(_bits(self.shape[1])[self.column], out=sums[1:])
        starts = self.rows.starts.numpy()
        keys = (sums[starts[1:]] - sums[starts[:-1]]).reshape(parts, -1)
        order = np.argsort(keys, axis=1)
        ordered = np.take_along_axis(keys, order, 1)
        new = np.ones(keys.shape, bool)
        np.not_equal(ordered[:, 1:], ordered[:, :-1], out=new[:, 1:])
        places = np.empty(keys.shape, np.int64)
        np.put_along_axis(places, order, np.cumsum(new, 1) - 1, 1)
        counts = new.sum(1)
        rows = order[new]
        all_rows = self.take(rows + np.repeat(keys.shape[1] * np.arange(parts), counts))
        found = zip(np.split(rows, np.cumsum(counts)[:-1]), places, all_rows.split(counts), strict=True)
        return [Distinct(*each) for each in found]

    def take(self, rows: NDArray[np.int64]) -> Sparse:
        """Some of its rows, ``(k, n)``, for a matrix of ones."""
        starts = self.rows.starts.numpy()
        counts = starts[rows + 1] - starts[rows]
        row = np.repeat(np.arange(len(rows)), counts)
        begins = np.cumsum(counts) - counts
        return Sparse(
            row,
            self.column[np.arange(len(row)) + (starts[rows] - begins)[row]],
            None,
            (len(rows), self.shape[1]),
        )

    @staticmethod
    def _sums(
        sums: NDArray[np.int64], indices: NDArray[np.int64], values: NDArray[Any] | None, count: int
    ) -> _Sums:
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(sums, minlength=count), out=starts[1:])
        weights = None if values is None else torch.from_numpy(values)
        return _Sums(torch.from_numpy(indices), torch.from_numpy(starts), weights)


@cache
def _bits(count: int) -> NDArray[np.uint64]:
    """64 random bits for each column, always the same."""
    return np.random.default_rng(count).integers(2**64, size=count, dtype=np.uint64)


def _scan(x: Tensor) -> Sparse | None:
    shape = (x.shape[:-1].numel(), x.shape[-1])
    if x.layout == torch.sparse_csr:
        counts = np.diff(x.crow_indices().numpy())
        row = np.repeat(np.arange(shape[0]), counts)
        column, value = x.col_indices().numpy().astype(np.int64), _numpy(x.values())
        return Sparse(row, column, None if (value == 1).all() else value, shape)
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
    """A matrix with ones at these places, row after row."""
    row = where // max(shape[1], 1)
    return Sparse(row, where - row * shape[1], None, shape)


_UNKNOWN = object()
#: what is not zero in tensors; None for those that have too much
_nonzeros = SideTable[Sparse | None]()
#: squared norms of gradients
_squares = SideTable[Tensor]()
