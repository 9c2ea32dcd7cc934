"""Imputation and standardisation of inputs, fitted on the training rows alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lossnet.data.errors import DataError
from lossnet.data.tables import FeatureTable


@dataclass(frozen=True, eq=False)
class Preprocessor:
    """Imputation and standardisation of inputs; fitted on training rows, kept with a model.

    A missing value becomes its column's training mean, which for a 0/1 column is a frequency.  With
    standardisation, columns other than 0/1 ones are shifted to mean 0 and scaled to variance 1.

    >>> train = FeatureTable([[1.0, 0], [3.0, 1], [np.nan, 1]])
    >>> Preprocessor.fit(train, standardise=False).apply(train).matrix[2]
    array([2., 1.], dtype=float32)
    """

    impute: NDArray[np.float64]
    mean: NDArray[np.float64] | None = None
    scale: NDArray[np.float64] | None = None

    @classmethod
    def fit(cls, train: FeatureTable, standardise: bool) -> Preprocessor:
        """Return a preprocessor fitted on the training rows."""
        impute = _means(train)
        if not standardise:
            return cls(impute)
        x = _filled_dense(train, impute)
        given = train.matrix.toarray() if train.is_sparse else train.matrix
        continuous = ((x != 0) & (x != 1) & ~np.isnan(given)).any(axis=0)
        mean = np.where(continuous, x.mean(axis=0) if len(x) else 0.0, 0.0)
        scale = np.ones(train.width)
        # Compare the extremes: the deviation of a constant column need not come out as zero.
        varies = continuous & (x.max(axis=0, initial=-np.inf) > x.min(axis=0, initial=np.inf))
        scale[varies] = x[:, varies].std(axis=0)
        scale[scale < np.finfo(np.float32).tiny] = 1.0
        return cls(impute, mean, scale)

    def apply(self, data: FeatureTable) -> FeatureTable:
        """Return the same rows, ready for a network; sparse inputs stay sparse unless standardised."""
        if data.width != len(self.impute):
            what = f"{data.width} input columns, but training had {len(self.impute)}"
            raise DataError(f"{what}; give the columns of training")
        if self.mean is not None and self.scale is not None:
            x: Any = (_filled_dense(data, self.impute) - self.mean) / self.scale
        elif data.has_missing:
            x = _filled(data, self.impute)
        else:
            return data
        return FeatureTable(x, data.names)

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return arrays to keep in a file, for `from_state`."""
        parts = {"impute": self.impute, "mean": self.mean, "scale": self.scale}
        return {name: values for name, values in parts.items() if values is not None}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Preprocessor:
        """Return the preprocessor whose `state` this is.

        >>> fitted = Preprocessor(np.array([0.5, 2.0]))
        >>> Preprocessor.from_state(fitted.state()).impute
        array([0.5, 2. ])
        """
        arrays = {name: np.asarray(values, dtype=np.float64) for name, values in state.items()}
        if "impute" not in arrays or ("mean" in arrays) != ("scale" in arrays):
            raise DataError(f"not the state of a preprocessor: it has {sorted(arrays)}")
        if any(values.shape != (arrays["impute"].size,) for values in arrays.values()):
            raise DataError("not the state of a preprocessor: its arrays differ in shape")
        if not all(np.isfinite(values).all() for values in arrays.values()):
            raise DataError("not the state of a preprocessor: it has a value that is not finite")
        return cls(arrays["impute"], arrays.get("mean"), arrays.get("scale"))


def _means(data: FeatureTable) -> NDArray[np.float64]:
    """Return column means over the present values; 0 for a column without any."""
    if data.is_sparse:
        missing = np.isnan(data.matrix.data)
        known = np.where(missing, 0.0, data.matrix.data.astype(np.float64))
        sums = np.bincount(data.matrix.indices, weights=known, minlength=data.width)
        absent = np.bincount(data.matrix.indices[missing], minlength=data.width)
    else:
        lost = np.isnan(data.matrix)
        sums = np.where(lost, 0.0, data.matrix).sum(axis=0, dtype=np.float64)
        absent = lost.sum(axis=0)
    return np.asarray(sums / np.maximum(len(data) - absent, 1), dtype=np.float64)


def _filled(data: FeatureTable, impute: NDArray[np.float64]) -> Any:
    if not data.is_sparse:
        return np.where(np.isnan(data.matrix), impute, data.matrix)
    values = np.where(np.isnan(data.matrix.data), impute[data.matrix.indices], data.matrix.data)
    return sparse.csr_array((values, data.matrix.indices, data.matrix.indptr), shape=data.matrix.shape)


def _filled_dense(data: FeatureTable, impute: NDArray[np.float64]) -> NDArray[np.float64]:
    x = _filled(data, impute)
    return np.asarray(x.toarray() if data.is_sparse else x, dtype=np.float64)
