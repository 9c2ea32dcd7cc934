"""Feature vectors and label sets in memory, sparse until a batch is asked for."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from lossnet.data.errors import DataError
from lossnet.data.examples import Column, Examples, Resident, Rows, Source, Target, row_numbers


class Origin(NamedTuple):
    """The columns of a table: what those hold that are inputs, and why others are dropped."""

    used: Mapping[str, str]
    dropped: Mapping[str, str]


#: from this many inputs on, it takes long to make a batch of mostly zeros dense
WIDE = 10_000


class _Table(Column):
    """A matrix with named columns, one row per instance."""

    kind: ClassVar[str]
    matrix: Any
    names: tuple[str, ...]

    def __init__(self, matrix: Any, names: Sequence[str] | None = None) -> None:
        self.matrix = self._checked(matrix)
        columns = getattr(matrix, "columns", None)
        if names is None and columns is not None:
            names = [str(name) for name in columns]
        self.names = _names(self.kind, names, int(self.matrix.shape[1]))

    @abstractmethod
    def _checked(self, matrix: Any) -> Any:
        """Return the matrix in its own format."""

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def take(self, rows: NDArray[np.int64]) -> Self:
        return type(self)(self.matrix[rows], self.names)

    def join(self, others: Sequence[Self]) -> Self:
        matrices = [self.matrix, *(other.matrix for other in others)]
        is_sparse = sparse.issparse(self.matrix)
        stacked = sparse.vstack(matrices, format="csr") if is_sparse else np.concatenate(matrices)
        return type(self)(stacked, self.names)

    def batch(self, indices: Rows) -> Tensor:
        """Return some rows as a dense float32 tensor ``(b, columns)``."""
        rows = row_numbers(indices, len(self))
        if sparse.issparse(self.matrix):
            return torch.from_numpy(_dense_rows(self.matrix, rows))
        return torch.from_numpy(self.matrix).index_select(0, torch.from_numpy(rows))

    def on(self, device: torch.device | str) -> Column:
        if torch.device(device).type == "cpu":
            return self
        dense = self.matrix.toarray() if sparse.issparse(self.matrix) else self.matrix
        return Resident(torch.from_numpy(dense).to(torch.float32).to(device))

    @property
    def dense_bytes(self) -> int:
        return 4 * len(self) * len(self.names)


class FeatureTable(_Table, Source):
    """Feature vectors ``(n, d)`` and the names of their columns.

    The matrix is a float32 array or CSR matrix where NaN means *missing*.  Lists, arrays, sparse matrices
    and data frames are taken; names default to a data frame's columns, else to ``feature_0`` ….

    >>> table = FeatureTable([[0.5, 1.0], [2.0, 0.0]])
    >>> len(table), table.width, table.batch(np.array([1]))
    (2, 2, tensor([[2., 0.]]))
    """

    kind = "feature"
    #: the columns of the table that all rows were read from, if they were
    origin: Origin | None = None

    def _checked(self, matrix: Any) -> Any:
        x = _matrix(matrix, "x")
        with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite: reported below
            if sparse.issparse(x):
                x = _canonical(sparse.csr_array(x, dtype=np.float32, copy=not _is_canonical(x)))
            else:
                x = np.ascontiguousarray(x, dtype=np.float32)
                x = x if x.flags.writeable else x.copy()  # torch shares writable arrays only
        if np.isinf(x.data if sparse.issparse(x) else x).any():
            raise DataError("x has an infinite value; inputs must be finite, or NaN where missing")
        return x

    @property
    def width(self) -> int:
        """The number of columns, ``d``."""
        return int(self.matrix.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether the matrix is CSR."""
        return bool(sparse.issparse(self.matrix))

    @property
    def has_missing(self) -> bool:
        """Whether there are missing values, which a `Preprocessor` would fill in."""
        return bool(np.isnan(self.matrix.data if self.is_sparse else self.matrix).any())

    def pieces(self) -> Iterator[NDArray[Any] | str]:
        yield joined(self.names)
        if self.is_sparse:
            yield from (self.matrix.data, self.matrix.indices, np.diff(self.matrix.indptr))
        else:
            yield self.matrix

    def on(self, device: torch.device | str) -> Column:
        return self.sparse() if torch.device(device).type == "cpu" else super().on(device)

    def sparse(self, width: int = WIDE) -> SparseFeatures | FeatureTable:
        """Return the same rows, sparse in batches too, if they are sparse here and ``width`` or more wide.

        `lossnet.nets.MLP` reads such batches.

        >>> table = FeatureTable(sparse.eye_array(20, format="csr"))
        >>> table.sparse(width=20).batch(np.array([3])).layout
        torch.sparse_csr
        """
        return SparseFeatures(self) if self.is_sparse and self.width >= width else self


class SparseFeatures(Source):
    """A sparse table whose batches are sparse CSR tensors ``(b, d)``; see `FeatureTable.sparse`."""

    def __init__(self, table: FeatureTable) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: NDArray[np.int64]) -> SparseFeatures:
        return SparseFeatures(self.table.take(rows))

    def batch(self, indices: Rows) -> Tensor:
        rows = row_numbers(indices, len(self))
        matrix = self.table.matrix
        where, ends = _positions(matrix, rows)
        arrays = (np.append(0, ends), matrix.indices[where].astype(np.int64), matrix.data[where])
        tensors = map(torch.from_numpy, arrays)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
            size = (len(rows), matrix.shape[1])
            batch: Tensor = torch.sparse_csr_tensor(*tensors, size, check_invariants=False)  # type: ignore[call-arg, arg-type]
        return batch


class LabelTable(_Table, Target):
    """Label sets ``(n, L)`` of 0 and 1, a uint8 CSR matrix, and the names of the labels.

    NaN is what is not known: ``unknown`` is a CSR matrix that is true there, or None, and the sets are 0.

    >>> LabelTable([[1, 0, 1], [0, 0, 1]]).batch(np.array([0]))
    tensor([[1., 0., 1.]])
    >>> table = LabelTable([[1, float("nan")]])
    >>> table.batch(np.array([0])), table.known(np.array([0]))
    (tensor([[1., 0.]]), tensor([[1., 0.]]))
    """

    kind = "label"
    unknown: Any = None

    def _checked(self, matrix: Any) -> Any:
        y = _matrix(matrix, "y")
        if sparse.issparse(y):
            y = sparse.csr_array(y, copy=not _is_canonical(y))
            y.sum_duplicates()
        if np.isnan(y.data if sparse.issparse(y) else y).any():
            y, self.unknown = without_unknown(y)
        if not np.isin(y.data if sparse.issparse(y) else y, (0, 1)).all():
            raise DataError("y has a value that is neither 0 nor 1; labels must be 0 or 1")
        return _canonical(sparse.csr_array(y, dtype=np.uint8))

    def pieces(self) -> Iterator[NDArray[Any] | str]:
        yield joined(self.names)
        yield from (self.matrix.indices, np.diff(self.matrix.indptr))  # all values are 1
        if self.unknown is not None:
            yield from (self.unknown.indices, np.diff(self.unknown.indptr))

    def where_unknown(self, unknown: Any) -> LabelTable:
        """Return the same labels, but for those that are unknown where a matrix ``(n, L)`` is true."""
        new = LabelTable(self.matrix - self.matrix.multiply(unknown), self.names)
        new.unknown = sparse.csr_array(unknown, dtype=bool) if unknown.sum() else None
        return new

    def take(self, rows: NDArray[np.int64]) -> LabelTable:
        taken = super().take(rows)
        return taken if self.unknown is None else taken.where_unknown(self.unknown[rows])

    def join(self, others: Sequence[LabelTable]) -> LabelTable:
        joint, parts = super().join(others), [self, *others]
        if all(part.unknown is None for part in parts):
            return joint
        none = [sparse.csr_array(part.matrix.shape, dtype=bool) for part in parts]
        unknown = [
            gap if part.unknown is None else part.unknown for part, gap in zip(parts, none, strict=True)
        ]
        return joint.where_unknown(sparse.vstack(unknown, format="csr"))

    def known(self, indices: Rows) -> Tensor | None:
        if self.unknown is None:
            return None
        return 1 - torch.from_numpy(_dense_rows(self.unknown, row_numbers(indices, len(self))))

    def on(self, device: torch.device | str) -> Column:
        return self if self.unknown is not None else super().on(device)

    def stratify_by(self) -> Any:
        return self.matrix

    @property
    def is_empty(self) -> bool:
        return not self.matrix.nnz


class MultiLabelData(Examples):
    """Feature vectors and label sets: `Examples` of a `FeatureTable` and a `LabelTable`.

    Build one from anything array-like with `from_arrays`.

    >>> data = MultiLabelData.from_arrays([[0.5, 1.0], [2.0, 0.0]], [[1, 0, 1], [0, 0, 1]])
    >>> len(data), data.inputs, data.labels
    (2, 2, 3)
    >>> data.batch(np.array([1])).y
    tensor([[0., 0., 1.]])
    """

    source: FeatureTable
    target: LabelTable

    def __init__(
        self,
        x: Any,
        y: Any,
        feature_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        source, target = FeatureTable(x, feature_names), LabelTable(y, label_names)
        if len(source) != len(target):
            what = f"x has {len(source)} rows but y has {len(target)}"
            raise DataError(f"{what}; give one row of y per row of x")
        super().__init__(source, target)

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        feature_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> MultiLabelData:
        """Return data from lists, NumPy arrays, SciPy sparse matrices or pandas data frames.

        Names default to a data frame's columns, else to ``feature_0`` … and ``label_0`` ….
        """
        return cls(x, y, feature_names, label_names)

    x = property(attrgetter("source.matrix"), doc="The inputs ``(n, d)``: a float32 array or CSR matrix.")
    y = property(attrgetter("target.matrix"), doc="The labels ``(n, L)``: a uint8 CSR matrix.")
    feature_names = property(attrgetter("source.names"), doc="Names of the input columns.")
    label_names = property(attrgetter("target.names"), doc="Names of the labels.")
    inputs = property(attrgetter("source.width"), doc="The number of input columns, ``d``.")
    is_sparse = property(attrgetter("source.is_sparse"), doc="Whether the inputs are a CSR matrix.")
    has_missing = property(attrgetter("source.has_missing"), doc="Whether inputs are missing.")

    @property
    def labels(self) -> int:
        """The number of labels, ``L``."""
        return len(self.target.names)


def without_unknown(y: Any) -> tuple[Any, Any]:
    """Return a matrix with 0 in place of NaN, and a CSR matrix that is true there.

    >>> y, unknown = without_unknown(np.array([[1, np.nan], [0, 1]]))
    >>> y.tolist(), unknown.toarray().tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [[False, True], [False, False]])
    """
    if not sparse.issparse(y):
        return np.nan_to_num(y), sparse.csr_array(np.isnan(y))
    known, unknown = y.copy(), y.copy()
    known.data, unknown.data = np.nan_to_num(y.data), np.isnan(y.data)
    unknown.eliminate_zeros()
    return known, sparse.csr_array(unknown)


def joined(strings: Sequence[str]) -> str:
    """Return strings as one that no other list of strings gives."""
    return f"{len(strings)}\0" + "\0".join(strings)


def _dense_rows(matrix: Any, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return some rows of a CSR matrix as a dense array; SciPy's slicing is several times slower."""
    where, ends = _positions(matrix, rows)
    width = matrix.shape[1]
    dense = np.zeros(len(rows) * width, dtype=np.float32)
    # One flat index is cheaper than a pair of indices.
    flat = np.repeat(np.arange(len(rows)) * width, np.diff(ends, prepend=0)) + matrix.indices[where]
    dense[flat] = matrix.data[where]
    return dense.reshape(len(rows), width)


def _positions(matrix: Any, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where some rows' values are in the arrays of a CSR matrix, and where each row ends."""
    starts = matrix.indptr[rows].astype(np.int64)
    counts = matrix.indptr[rows + 1] - starts
    ends = np.cumsum(counts)
    # Each row's start, plus how far we are into that row.
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts), ends


def _matrix(values: Any, name: str) -> Any:
    """Return anything matrix-like as a numeric 2-D array or sparse matrix."""
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
    """Sort a CSR matrix's columns, in place, and return it without duplicates and stored zeros."""
    matrix.sum_duplicates()
    if not matrix.data.all():
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix


def _names(kind: str, names: Sequence[str] | None, columns: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"{kind}_{index}" for index in range(columns))
    if len(names) != columns:
        raise DataError(f"{len(names)} {kind} names for {columns} columns; give one name per column")
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DataError(f"the {kind} name {twice!r} is given twice; names must differ")
    return tuple(names)
