"""Which rows train, which choose the model and which test it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.text import read_lines

_PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers, from 0, of the three parts.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "split.json")
    ...     Split(np.array([0, 2]), np.array([1]), np.array([3])).write(path)
    ...     Split.read(path, rows=4).train
    array([0, 2])
    """

    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]

    @classmethod
    def consecutive(cls, counts: Sequence[int]) -> Split:
        """Return the split of rows that lie part after part, as many in each as ``counts`` says."""
        ends = np.cumsum(counts)
        return cls(*np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1]))

    @classmethod
    def read(cls, path: AnyPath, rows: int) -> Split:
        """Read ``{"train": […], "valid": […], "test": […]}`` for a data set of ``rows`` rows."""
        text = "\n".join(read_lines(path))
        try:
            return cls(*_row_numbers(json.loads(text), rows))
        except json.JSONDecodeError as error:
            what = f"not JSON ({error.msg}); write row numbers under train, valid and test"
            raise DataError(what, path, error.lineno) from None
        except DataError as error:
            raise error.at(path, 1) from None
        except (ValueError, RecursionError) as error:  # a number of thousands of digits; deep nesting
            raise DataError(f"not a split ({error})", path, 1) from None

    def write(self, path: AnyPath) -> None:
        """Write what `read` reads."""
        content = {part: getattr(self, part).tolist() for part in _PARTS}
        Path(path).write_text(json.dumps(content) + "\n", encoding="utf-8")


def _row_numbers(content: Any, rows: int) -> list[NDArray[np.int64]]:
    if not isinstance(content, dict):
        raise DataError("not a split; write row numbers under train, valid and test")
    owner: dict[int, str] = {}
    parts = []
    for part in _PARTS:
        numbers = content.get(part)
        if not isinstance(numbers, list) or not numbers:
            raise DataError(f"{part!r} is missing or empty; list its row numbers")
        for number in numbers:
            if type(number) is not int:
                raise DataError(f"{number!r} in {part!r} is not a row number; use whole numbers")
            if not 0 <= number < rows:
                raise DataError(f"row {number} in {part!r}; rows go from 0 to {rows - 1}")
            if number in owner:
                where = f"{owner[number]!r} and {part!r}" if owner[number] != part else f"{part!r}"
                raise DataError(f"row {number} is given twice, in {where}; parts must not overlap")
            owner[number] = part
        parts.append(np.array(numbers, dtype=np.int64))
    return parts


def stratified_split(y: Any, fractions: Sequence[float] = (0.6, 0.2, 0.2), seed: int = 0) -> Split:
    """Split rows so that each label keeps its share in each part.

    Iterative stratification (Sechidis et al. 2011): the rarest label's rows are dealt out first,
    each to the part that still lacks most of that label, then of rows, then at random.  Rows
    without labels fill the parts up at random.

    >>> y = np.array([[1, 0]] * 10 + [[0, 1]] * 20)
    >>> split = stratified_split(y)
    >>> len(split.train), len(split.valid), len(split.test), int(y[split.valid, 0].sum())
    (18, 6, 6, 2)
    """
    y = sparse.csr_array(y, dtype=np.uint8)
    rows = y.shape[0]
    shares = np.asarray(fractions, dtype=np.float64)
    if shares.shape != (3,) or (shares <= 0).any() or not np.isclose(shares.sum(), 1):
        raise ValueError(f"fractions must be three positive numbers that sum to 1, got {fractions}")
    if rows < 3:
        raise DataError(f"{rows} row(s) cannot be split into train, valid and test; add rows")
    return Split(*_parts(y, shares, seed))


def hold_out(y: Any, fraction: float, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return two parts of the rows, the second about this ``fraction``, split as by `stratified_split`.

    Rows without labels, such as images or sentences, are those of a ``y`` without columns.

    >>> train, valid = hold_out(np.zeros((10, 0)), 0.2)
    >>> len(train), len(valid)
    (8, 2)
    """
    y = sparse.csr_array(y, dtype=np.uint8)
    if not 0 < fraction < 1:
        raise ValueError(f"the fraction to hold out must be above 0 and below 1, not {fraction}")
    if y.shape[0] < 2:
        raise DataError(f"n_samples={y.shape[0]} cannot be split into training and validation; add rows")
    train, valid = _parts(y, np.array([1 - fraction, fraction]), seed)
    return train, valid


def _parts(y: Any, shares: NDArray[np.float64], seed: int) -> list[NDArray[np.int64]]:
    """Return the rows of each part, none of them empty."""
    random, rows = np.random.default_rng(seed), y.shape[0]
    by_label = y.tocsc()
    part_of = np.full(rows, -1, dtype=np.int64)
    left = np.diff(by_label.indptr).astype(np.int64)
    wanted_rows = shares * rows
    wanted = shares[:, None] * left
    while left.any():
        label = int(np.where(left > 0, left, rows + 1).argmin())
        members = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]
        for row in random.permutation(members[part_of[members] < 0]):
            part = _neediest(wanted[:, label], wanted_rows, random)
            part_of[row] = part
            labels = y.indices[y.indptr[row] : y.indptr[row + 1]]
            wanted[part, labels] -= 1
            wanted_rows[part] -= 1
            left[labels] -= 1
    for row in random.permutation(np.flatnonzero(part_of < 0)):
        part = _neediest(wanted_rows, wanted_rows, random)
        part_of[row] = part
        wanted_rows[part] -= 1
    for empty in np.flatnonzero(np.bincount(part_of, minlength=len(shares)) == 0):
        # Too few rows for the fractions: no part may be empty, so the fullest gives one.
        fullest = np.bincount(part_of, minlength=len(shares)).argmax()
        part_of[np.flatnonzero(part_of == fullest)[-1]] = empty
    return [np.flatnonzero(part_of == part).astype(np.int64) for part in range(len(shares))]


def _neediest(first: NDArray[np.float64], second: NDArray[np.float64], random: np.random.Generator) -> int:
    """Return the part that lacks most by the first count, ties broken by the second, then by chance."""
    best = np.flatnonzero(first > first.max() - 1e-9)
    if len(best) > 1:
        best = best[second[best] > second[best].max() - 1e-9]
    return int(best[0] if len(best) == 1 else random.choice(best))
