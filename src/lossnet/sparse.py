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

__all__ = ["Sparse", "beside", "distinct", "few_values", "product", "squared_norm", "unbind"]

#: up to this share of values that are not zero, sums of rows are faster than a dense product
SPARSE_SHARE = 0.1


def distinct(y: Tensor) -> tuple[Tensor, Tensor | None]:
    """The different ones among candidates ``(batch, K, labels)``, as ``(rows, labels)``, and the row of each
    candidate, ``(batch · K,)``; the candidates themselves where they are not known to be sets of few labels.

    >>> y = torch.eye(20)[torch.tensor([[3, 5, 3]])]
    >>> rows, places = distinct(y)
    >>> rows.shape, bool((rows[places].view_as(y) == y).all())
    (torch.Size([2, 20]), True)
    """
    few = few_values(y)
    if few is None or few.value is not None:
        return y, None
    found = few.distinct()
    rows = y.reshape(few.shape).index_select(0, torch.from_numpy(found.rows))
    rows._few_values = (rows._version, found.matrix)  # type: ignore[attr-defined]
    return rows, torch.from_numpy(found.places)


def beside(truth: Tensor, drawn: Tensor, dtype: torch.dtype) -> Tensor:
    """Label sets ``(…, batch, K, labels)`` with the truth ``(batch, labels)`` in front, on a CPU.

    They know where their ones are, if these are few, and so need not be searched for them.

    >>> found = beside(torch.eye(12), torch.eye(12, dtype=torch.bool).unsqueeze(1), torch.float32)
    >>> found.shape, len(few_values(found).column)
    (torch.Size([12, 2, 12]), 24)
    """
    *rounds, batch, count, labels = drawn.shape
    if truth.shape != (batch, labels):
        raise ValueError(
            f"the truth is of shape {tuple(truth.shape)}, and not {(batch, labels)} as the samples"
        )
    sets, ones = np.empty((*rounds, batch, 1 + count, labels), bool), truth.detach() != 0
    sets[..., 1:, :], sets[..., 0, :] = drawn.numpy(), ones.numpy()
    found = torch.from_numpy(sets.view(np.uint8)).to(dtype)
    if truth.requires_grad or not torch.equal(ones.to(truth.dtype), truth):  # it is no set
        found[..., 0, :] = truth
    elif np.count_nonzero(sets) <= SPARSE_SHARE * sets.size and not found.is_inference():
        few = _of_ones(np.flatnonzero(sets), (found.shape[:-1].numel(), labels))
        found._few_values = (found._version, few)  # type: ignore[attr-defined]
    return found


def unbind(sets: Tensor) -> tuple[Tensor, ...]:
    """The parts of a tensor along its first axis, which know as much of themselves as the whole does."""
    parts = sets.unbind()
    version, few = getattr(sets, "_few_values", (None, None))
    if few is not None and few.value is None and version == sets._version:
        sizes = [few.shape[0] // len(parts)] * len(parts)
        for index, (part, own) in enumerate(zip(parts, few.split(sizes), strict=True)):
            known = replace(own, part=(few, index, len(parts)))
            part._few_values = (part._version, known)  # type: ignore[attr-defined]
    return parts


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
    """``Xᵀ D`` that knows its norm, where it has many more rows than ``D``."""
    found = x.columns.of(gradient)
    if x.shape[0] ** 2 <= x.shape[1]:
        # ‖Xᵀ D‖² = Σ (X Xᵀ) ∘ (D Dᵀ), of few numbers
        square = torch.dot(x.gram.to(gradient.dtype).view(-1), (gradient @ gradient.T).view(-1))
        found._square = (found._version, square)  # type: ignore[attr-defined]
    return found


def squared_norm(gradient: Tensor) -> Tensor:
    """``‖g‖²``, ``()``, of any tensor; quick for the gradient of a product's weights.

    >>> squared_norm(torch.tensor([[3.0, 4.0]]))
    tensor(25.)
    """
    version, square = getattr(gradient, "_square", (None, None))
    if version != gradient._version:
        flat = gradient.reshape(-1)
        square = torch.dot(flat, flat)
    return cast("Tensor", square)


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


def few_values(x: Tensor) -> Sparse | None:
    """What is not zero in constant inputs on a CPU ``(…, inputs)``, as a matrix, if that is little."""
    if x.requires_grad or x.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    if torch._C._functorch.maybe_current_level() is not None:  # one tensor stands for many inside vmap
        return None
    # Kept with the tensor, since all steps on a batch read the same one.
    version, known = getattr(x, "_few_values", (None, None))
    if version != x._version:
        known = _scan(x)
        x._few_values = (x._version, known)  # type: ignore[attr-defined]
    return cast("Sparse | None", known)


def _scan(x: Tensor) -> Sparse | None:
    shape = (x.shape[:-1].numel(), x.shape[-1])
    if x.layout == torch.sparse_csr:
        counts = np.diff(x.crow_indices().numpy())
        row = np.repeat(np.arange(shape[0]), counts)
        column, value = x.col_indices().numpy().astype(np.int64), x.values().numpy()
        return Sparse(row, column, None if (value == 1).all() else value, shape)
    flat = x.detach().reshape(-1).numpy()
    places = flat != 0
    if np.count_nonzero(places) > SPARSE_SHARE * flat.size:
        return None
    where = np.flatnonzero(places)
    found, value = _of_ones(where, shape), flat[where]
    return found if (value == 1).all() else replace(found, value=value)


def _of_ones(where: NDArray[np.int64], shape: tuple[int, int]) -> Sparse:
    """A matrix with ones at these places, row after row."""
    row = where // max(shape[1], 1)
    return Sparse(row, where - row * shape[1], None, shape)
