"""Multi-label data in memory: sparse until a batch is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from lossnet.data.errors import DataError
from lossnet.spaces import Batch, Weights
from lossnet.training.evaluation import Dataset, arranged
from lossnet.trees import first_leaf, tree_map

__all__ = ["MultiLabelData", "ResidentData", "SparseData", "Weighted", "row_numbers"]

#: Dense tensors up to this size may live on a device for the whole run.
RESIDENT_LIMIT_BYTES = 4 << 30
#: From this many inputs on, it takes long to make a batch of mostly zeros dense.
WIDE = 10_000


@dataclass(frozen=True, eq=False)
class MultiLabelData:
    """Inputs ``x`` ``(n, d)``, labels ``y`` ``(n, L)`` of 0 and 1, and the names of their columns.

    ``x`` is a float32 array or CSR matrix where NaN means *missing*; ``y`` is a uint8 CSR matrix.
    Build one from anything array-like with `from_arrays`.

    >>> data = MultiLabelData.from_arrays([[0.5, 1.0], [2.0, 0.0]], [[1, 0, 1], [0, 0, 1]])
    >>> len(data), data.inputs, data.labels
    (2, 2, 3)
    >>> data.batch(np.array([1]))
    Batch(x=tensor([[2., 0.]]), y=tensor([[0., 0., 1.]]), mask=None, weight=None)
    """

    x: Any
    y: Any
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _inputs(self.x))
        object.__setattr__(self, "y", _labels(self.y))
        object.__setattr__(self, "feature_names", tuple(self.feature_names))
        object.__setattr__(self, "label_names", tuple(self.label_names))
        if self.x.shape[0] != self.y.shape[0]:
            what = f"x has {self.x.shape[0]} rows but y has {self.y.shape[0]}"
            raise DataError(f"{what}; give one row of y per row of x")
        _check_names("feature", self.feature_names, self.inputs)
        _check_names("label", self.label_names, self.labels)

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        feature_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> MultiLabelData:
        """Data from lists, NumPy arrays, SciPy sparse matrices or pandas data frames.

        Names default to a data frame's columns, else to ``feature_0`` … and ``label_0`` ….
        """
        if feature_names is None:
            feature_names = _column_names(x)
        if label_names is None:
            label_names = _column_names(y)
        x, y = _inputs(x), _labels(y)
        if feature_names is None:
            feature_names = [f"feature_{i}" for i in range(x.shape[1])]
        if label_names is None:
            label_names = [f"label_{i}" for i in range(y.shape[1])]
        return cls(x, y, tuple(feature_names), tuple(label_names))

    def __len__(self) -> int:
        return int(self.x.shape[0])

    @property
    def inputs(self) -> int:
        """The number of input columns, ``d``."""
        return int(self.x.shape[1])

    @property
    def labels(self) -> int:
        """The number of labels, ``L``."""
        return int(self.y.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether ``x`` is kept as a CSR matrix."""
        return bool(sparse.issparse(self.x))

    @property
    def has_missing(self) -> bool:
        """Whether ``x`` has missing values, which a `Preprocessor` would fill in."""
        return bool(np.isnan(self.x.data if self.is_sparse else self.x).any())

    def take(self, indices: Any) -> MultiLabelData:
        """The rows ``indices``, in that order."""
        rows = row_numbers(indices, len(self))
        return MultiLabelData(self.x[rows], self.y[rows], self.feature_names, self.label_names)

    def batch(self, indices: NDArray[np.integer[Any]] | Tensor) -> Batch:
        """The rows ``indices`` as dense float32 tensors ``x`` ``(b, d)`` and ``y`` ``(b, L)``."""
        rows = row_numbers(indices, len(self))
        if self.is_sparse:
            x = torch.from_numpy(_dense_rows(self.x, rows))
        else:
            x = self._x_tensor.index_select(0, torch.from_numpy(rows))
        return Batch(x, torch.from_numpy(_dense_rows(self.y, rows)))

    def resident(
        self, device: torch.device | str, limit_bytes: int = RESIDENT_LIMIT_BYTES
    ) -> ResidentData | MultiLabelData:
        """The same rows with their tensors on ``device``, where indices then also live.

        Data that would take more than ``limit_bytes`` when dense stays where it is, and each batch
        is moved instead.

        >>> data = MultiLabelData.from_arrays([[0.5], [2.0]], [[1], [0]])
        >>> data.resident("cpu").batch(torch.tensor([1])).x
        tensor([[2.]])
        >>> type(data.resident("cpu", limit_bytes=1)).__name__
        'MultiLabelData'
        """
        device = torch.device(device)
        if 4 * len(self) * (self.inputs + self.labels) > limit_bytes:
            return self
        x = torch.from_numpy(self.x.toarray()) if self.is_sparse else self._x_tensor
        y = torch.from_numpy(self.y.toarray()).to(torch.float32)
        return ResidentData(x.to(device), y.to(device))

    def sparse(self, width: int = WIDE) -> SparseData | MultiLabelData:
        """The same rows, with ``x`` sparse in batches too, if it is sparse here and ``width`` or more wide.

        `lossnet.nets.MLP` reads such batches.

        >>> data = MultiLabelData.from_arrays(sparse.eye_array(20, format="csr"), np.ones((20, 1)))
        >>> data.sparse(width=20).batch(np.array([3])).x.layout
        torch.sparse_csr
        """
        return SparseData(self) if self.is_sparse and self.inputs >= width else self

    @cached_property
    def _x_tensor(self) -> Tensor:
        return torch.from_numpy(self.x)


@dataclass(frozen=True, eq=False)
class ResidentData:
    """Dense tensors ``x`` and ``y``, one row per instance, that live on a device.

    >>> ResidentData(torch.eye(2), torch.ones(2, 1)).batch(torch.tensor([0])).x
    tensor([[1., 0.]])
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return self.x.shape[0]

    def batch(self, indices: Tensor) -> Batch:
        """The rows ``indices``, gathered on the device."""
        rows = indices.to(self.x.device, non_blocking=True)
        return Batch(self.x.index_select(0, rows), self.y.index_select(0, rows))


@dataclass(frozen=True, eq=False)
class SparseData:
    """Sparse data whose batches have ``x`` as a sparse CSR tensor ``(b, d)``; see `MultiLabelData.sparse`."""

    data: MultiLabelData

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: NDArray[np.integer[Any]] | Tensor) -> Batch:
        """The rows ``indices``."""
        rows = row_numbers(indices, len(self))
        x = self.data.x
        where, ends = _positions(x, rows)
        starts = np.concatenate([[0], ends])
        arrays = (starts, x.indices[where].astype(np.int64), x.data[where])
        tensors = [torch.from_numpy(array) for array in arrays]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
            size = (len(rows), x.shape[1])
            inputs: Tensor = torch.sparse_csr_tensor(*tensors, size, check_invariants=False)  # type: ignore[call-arg, arg-type]
        return Batch(inputs, torch.from_numpy(_dense_rows(self.data.y, rows)))


@dataclass(frozen=True, eq=False)
class Weighted:
    """Any data set with the weights ``(n,)`` of its instances in losses; they should average 1.

    A mapping has weights for each term of the task loss; see `lossnet.spaces.Batch`.

    >>> data = MultiLabelData.from_arrays([[0.5], [2.0]], [[1], [0]])
    >>> Weighted(data, torch.tensor([0.5, 1.5])).batch(torch.tensor([1])).weight
    tensor([1.5000])
    """

    data: Dataset
    weights: Weights

    def __len__(self) -> int:
        return len(self.data)

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        """As the data set would have it."""
        return arranged(self.data, order, batch_size)

    def batch(self, indices: Tensor) -> Batch:
        """The rows ``indices`` with their weights."""
        batch = self.data.batch(indices)
        device = first_leaf(batch.x).device

        def chosen(weights: Tensor) -> Tensor:
            own = weights.to(indices.device).index_select(0, indices)
            return own.to(device, non_blocking=True)

        return batch._replace(weight=tree_map(chosen, self.weights))


def row_numbers(indices: Any, count: int) -> NDArray[np.int64]:
    """Indices of any kind as row numbers ``(b,)`` of data with ``count`` rows, checked.

    >>> row_numbers(torch.tensor([2, 0]), count=3)
    array([2, 0])
    """
    if isinstance(indices, Tensor):
        indices = indices.detach().cpu().numpy()
    rows = np.asarray(indices)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise TypeError(f"row indices must be a list of whole numbers, got {indices!r}")
    rows = rows.astype(np.int64, copy=not rows.flags.writeable)
    # A negative number would silently pick the wrong slice of the CSR arrays.
    if rows.size and (rows.min() < 0 or rows.max() >= count):
        raise IndexError(f"row indices must be from 0 to {count - 1}")
    return rows


def _dense_rows(matrix: Any, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Some rows of a CSR matrix as a dense array; SciPy's own slicing is several times slower."""
    where, ends = _positions(matrix, rows)
    width = matrix.shape[1]
    dense = np.zeros(len(rows) * width, dtype=np.float32)
    # One flat index is cheaper than a pair of indices.
    flat = np.repeat(np.arange(len(rows)) * width, np.diff(ends, prepend=0)) + matrix.indices[where]
    dense[flat] = matrix.data[where]
    return dense.reshape(len(rows), width)


def _positions(matrix: Any, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where some rows' values are in the arrays of a CSR matrix, row after row, and where each row ends."""
    starts = matrix.indptr[rows].astype(np.int64)
    counts = matrix.indptr[rows + 1] - starts
    ends = np.cumsum(counts)
    # Each row's start, plus how far we are into that row.
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts), ends


def _column_names(table: Any) -> list[str] | None:
    columns = getattr(table, "columns", None)
    return None if columns is None else [str(name) for name in columns]


def _inputs(x: Any) -> Any:
    x = _matrix(x, "x")
    with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite: reported below
        if sparse.issparse(x):
            x = _canonical(sparse.csr_array(x, dtype=np.float32, copy=not _is_canonical(x)))
            values = x.data
        else:
            x = np.ascontiguousarray(x, dtype=np.float32)
            x = values = x if x.flags.writeable else x.copy()  # torch shares writable arrays only
    if np.isinf(values).any():
        raise DataError("x has an infinite value; inputs must be finite, or NaN where missing")
    return x


def _labels(y: Any) -> Any:
    y = _matrix(y, "y")
    if sparse.issparse(y):
        y = sparse.csr_array(y, copy=not _is_canonical(y))
        y.sum_duplicates()
        values = y.data
    else:
        values = y
    if not np.isin(values, (0, 1)).all():
        raise DataError("y has a value that is neither 0 nor 1; labels must be 0 or 1")
    return _canonical(sparse.csr_array(y, dtype=np.uint8))


def _matrix(values: Any, name: str) -> Any:
    """Anything matrix-like as a numeric 2-D ndarray or sparse matrix."""
    if not sparse.issparse(values):
        try:
            if hasattr(values, "columns"):
                values = values.to_numpy(dtype=np.float64, na_value=np.nan)
            values = np.asarray(values)
            if values.dtype.kind not in "biuf":
                values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"{name} is not a matrix of numbers ({error})") from error
    if values.ndim != 2:
        raise DataError(f"{name} has {values.ndim} dimension(s); it needs two: rows and columns")
    return values


def _is_canonical(matrix: Any) -> bool:
    return isinstance(matrix, sparse.csr_array) and bool(matrix.has_canonical_format)


def _canonical(matrix: Any) -> Any:
    """CSR with sorted columns, none twice and no stored zeros; changes its argument."""
    matrix.sum_duplicates()
    if not matrix.data.all():
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix


def _check_names(kind: str, names: tuple[str, ...], columns: int) -> None:
    if len(names) != columns:
        raise DataError(f"{len(names)} {kind} names for {columns} columns; give one name per column")
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DataError(f"the {kind} name {twice!r} is given twice; names must differ")
