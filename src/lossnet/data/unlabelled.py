"""Rows without labels: finding them in what a user gives, and batches that hold rows with and without."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from lossnet.data.errors import DataError
from lossnet.data.examples import Dataset, arranged
from lossnet.spaces import Batch


def labelled_rows(y: Any) -> NDArray[np.bool_]:
    """Return which rows of ``y`` have labels, ``(n,)``: are neither None nor NaN as a whole.

    Of rows of 0 and 1 some labels may be unknown; tags and masks are known as a whole or not at all.

    >>> labelled_rows([[1, 0], None, [0, 1]])
    array([ True, False,  True])
    >>> labelled_rows(np.array([[1.0, 0.0], [np.nan, np.nan]]))
    array([ True, False])
    """
    if sparse.issparse(y) or not hasattr(y, "__len__"):
        return np.ones(y.shape[0] if sparse.issparse(y) else 0, dtype=bool)
    try:
        array = np.asarray(y)
    except ValueError:  # rows of different lengths, or None among them
        array = np.empty(0, dtype=object)
    if array.dtype.kind == "f":
        unknown = np.isnan(array.reshape(len(array), -1))
        sets = [array.ndim == 2] * len(array)
    elif array.dtype.kind == "O":
        given = array if array.size else y
        unknown, sets = [_unknown(row) for row in given], [_is_set(row) for row in given]
    else:
        return np.ones(array.shape[:1], dtype=bool)
    rows = enumerate(zip(unknown, sets, strict=True))
    return ~np.array([_whole(number, row, is_set) for number, (row, is_set) in rows], dtype=bool)


def _unknown(row: Any) -> NDArray[np.bool_]:
    """Return which entries of a row are None or NaN; of a row that is one value, whether that is."""
    entries = row if isinstance(row, list | tuple | np.ndarray) else [row]
    return np.array([_is_missing(entry) for entry in entries], dtype=bool)


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def _is_set(row: Any) -> bool:
    """Whether a row has numbers, and what is unknown, in place of tags."""
    entries = row if isinstance(row, list | tuple | np.ndarray) else []
    return all(_is_missing(entry) or isinstance(entry, Real | np.bool_) for entry in entries)


def _whole(number: int, unknown: NDArray[np.bool_], is_set: bool) -> bool:
    """Whether all of a row's entries are unknown; raise an error where only some may not be."""
    if unknown.any() and not unknown.all() and not is_set:
        what = f"row {number} of y is known in part, which only label sets of 0 and 1 may be"
        raise DataError(f"{what}; give it whole, or None")
    return bool(unknown.size and unknown.all())


def rows_of(values: Any, rows: NDArray[np.bool_]) -> Any:
    """Return the chosen rows of an array, sparse matrix, data frame or list.

    >>> rows_of(["a", "b", "c"], np.array([True, False, True]))
    ['a', 'c']
    """
    if hasattr(values, "iloc"):
        return values.iloc[np.flatnonzero(rows)]
    if hasattr(values, "shape") and values.dtype != object:
        return values[np.flatnonzero(rows)]
    return [values[row] for row in np.flatnonzero(rows)]


class WithUnlabelled:
    """Instances with labels beside others without, for methods that learn from both.

    Half of each batch has labels, or fewer where fewer are known; the other half is its ``unlabelled``.  An
    epoch passes over the longer part once, and over the shorter again and again.

    >>> from lossnet.data import MultiLabelData
    >>> known = MultiLabelData.from_arrays([[0.5], [2.0]], [[1], [0]])
    >>> data = WithUnlabelled(known, MultiLabelData.from_arrays(np.ones((9, 1)), np.ones((9, 1))))
    >>> order = data.arranged(torch.arange(11), batch_size=6)
    >>> [(data.batch(rows).size, data.batch(rows).unlabelled.size) for rows in order.split(6)]
    [(2, 4), (2, 4), (2, 1)]
    """

    def __init__(self, labelled: Dataset, unlabelled: Dataset) -> None:
        self.labelled, self.unlabelled = labelled, unlabelled

    def __len__(self) -> int:
        return len(self.labelled) + len(self.unlabelled)

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        """Return row numbers with each batch's labelled rows in front; the others have the numbers after."""
        if batch_size < 2:
            raise ValueError("a batch needs a row with labels and one without: batch_size must be above 1")
        count = len(self.labelled)
        own = min(batch_size // 2, count)
        other = batch_size - own
        turns = -(-count // own), -(-len(self.unlabelled) // other)
        batches = max(turns)
        known = arranged(self.labelled, order[order < count], own)
        rest = count + arranged(self.unlabelled, order[order >= count] - count, other)
        if turns[1] < batches:
            rest = _cycled(rest, batches * other)
        known = _cycled(known, batches * own)
        pairs = zip(known.split(own), rest.split(other), strict=True)
        return torch.cat([torch.cat(pair) for pair in pairs])

    def batch(self, indices: Tensor) -> Batch:
        """Return the rows ``indices``, those without labels as the batch's ``unlabelled``."""
        count = len(self.labelled)
        batch = self.labelled.batch(indices[indices < count])
        other = self.unlabelled.batch(indices[indices >= count] - count)
        return batch._replace(unlabelled=other if other.size else None)


def _cycled(rows: Tensor, count: int) -> Tensor:
    """Return rows again and again until they are so many."""
    return rows.repeat(-(-count // len(rows)))[:count]
