"""Sets of labels from rows of features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d, validate_data

from lossnet.data import Loaded, MultiLabelData, Preprocessor
from lossnet.estimators.base import Estimator
from lossnet.model import Model
from lossnet.run import find_device
from lossnet.scores import F1
from lossnet.tasks import LabelTask

__all__ = ["MultiLabelClassifier"]


class MultiLabelClassifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """Predicts sets of labels, with a network that a learned energy taught which labels belong together.

    Inputs ``X`` ``(n, features)`` are dense, sparse, or a data frame; NaN is a missing value, and becomes its
    column's mean in training.  Scale inputs first, as for any network.  What a row has is

    - a set of labels: ``y`` ``(n, labels)`` of 0 and 1, an array, sparse, or a data frame, whose columns name
      the labels, and predictions then are data frames too;
    - or one class: ``y`` ``(n,)``.  Each class is a label then, and the likeliest is predicted.

    Parameters are those of all estimators, see `lossnet.estimators.base.Estimator`.

    Attributes:
        classes_: names of the labels, or their numbers where ``y`` has no names; or the classes.
        multilabel_: whether rows have sets of labels.
        model_: the `lossnet.Model`; ``model_.save(folder)`` keeps it for `lossnet.load`.
        history_: an entry for each epoch.
        n_features_in_: columns of ``X``.
        feature_names_in_: their names, if ``X`` was a data frame.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 4))
    >>> Y = (X[:, :2] > 0).astype(int)
    >>> classifier = MultiLabelClassifier(epochs=10, learning_rate=0.01, random_state=0)
    >>> classifier.fit(X, Y).predict([[2, 2, 0, 0], [2, -2, 0, 0]])
    array([[1, 1],
           [1, 0]])
    """

    classes_: NDArray[Any]
    multilabel_: bool
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    _framed: bool

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None) -> Self:
        """Trains anew.

        ``sample_weight`` ``(n,)`` is what rows count in losses, relative to one another; where a loss is
        computed of all rows at once, a weight of 2 is a row given twice.  Rows of weight 0 are left out.
        """
        validates = self._validates(X_val, y_val)
        data = self._data(X, y, first=True)
        valid = self._data(X_val, y_val) if validates else None
        return self._fit(data, sample_weight, valid, data.y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One pass over rows that come bit by bit, without validation; the threshold stays as it is, 0.5.

        The first call with a ``y`` ``(n,)`` must be given all ``classes``; label sets have a column for each
        label anyway.  Methods of several stages (``spen``, ``nce-energy``, ``infnet``, ``seal-static``)
        train each on all data, and are refused.
        """
        first = not hasattr(self, "model_")
        return self._partial_fit(self._data(X, y, first, classes, partial=True), sample_weight)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities ``(n, labels)``: of each label by itself, or of classes, which sum to 1."""
        self._check_fitted()
        found = self._probabilities(self._inputs(X))
        if not self.multilabel_:
            total = found.sum(1, keepdims=True)
            found = np.where(total > 0, found / np.where(total > 0, total, 1), 1 / found.shape[1])
        return self._like_labels(found, X)

    def predict(self, X: Any) -> Any:
        """Sets of labels ``(n, labels)`` of 0 and 1, by the tuned threshold; or classes ``(n,)``."""
        self._check_fitted()
        if not self.multilabel_:
            return self.classes_[self.predict_proba(X).argmax(1)]
        chosen = self._probabilities(self._inputs(X)) >= self.model_.threshold
        return self._like_labels(chosen.astype(np.int64), X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The F1 of each row's set, averaged over rows that have labels; or the accuracy of classes."""
        self._check_fitted()
        if not self.multilabel_:
            return float(super().score(X, y, sample_weight))
        data = self._data(X, y)
        chosen = torch.from_numpy(np.asarray(self.predict(X), dtype=np.float32)).unsqueeze(1)
        truth = torch.from_numpy(data.y.toarray().astype(np.float32))
        labelled = (truth.sum(1) > 0).numpy()
        if not labelled.any():
            raise ValueError("no instance has a true label: F1 is undefined")
        weights = None if sample_weight is None else np.asarray(sample_weight)[labelled]
        return float(np.average(F1()(chosen, truth).squeeze(1).numpy()[labelled], weights=weights))

    # ------------------------------------------------------------------ what users give and get

    def _probabilities(self, x: Any) -> NDArray[Any]:
        """In float64: float32 products round a row by its place among others, where users may compare."""
        return self.model_.double().predict_proba(x, find_device(self.device))

    def _inputs(self, X: Any) -> Any:
        return validate_data(
            self, X, reset=False, accept_sparse="csr", dtype=np.float32, ensure_all_finite="allow-nan"
        )

    def _data(
        self, X: Any, y: Any, first: bool = False, classes: Any = None, partial: bool = False
    ) -> MultiLabelData:
        columns = getattr(y, "columns", None)
        X, y = validate_data(
            self,
            X,
            y,
            reset=first,
            accept_sparse="csr",
            dtype=np.float32,
            multi_output=True,
            ensure_all_finite="allow-nan",
        )
        if first:
            self._learn_labels(y, columns, classes, partial)
        elif self._framed and columns is not None and list(columns) != list(self.classes_):
            raise ValueError(
                f"y has the labels {list(columns)}; they must be {list(self.classes_)}, as in fit"
            )
        names = getattr(self, "feature_names_in_", [f"feature_{i}" for i in range(self.n_features_in_)])
        return MultiLabelData.from_arrays(
            X, self._sets(y), list(names), [str(name) for name in self.classes_]
        )

    def _learn_labels(self, y: Any, columns: Any, classes: Any, partial: bool) -> None:
        """What the labels are, from the first ``y``."""
        check_classification_targets(y)
        # One column of 0 and 1 is a set of at most one label; one of anything else, classes in a column.
        single = y.ndim == 2 and y.shape[1] == 1 and not (sparse.issparse(y) or np.isin(y, (0, 1)).all())
        self.multilabel_ = y.ndim == 2 and not single
        self._framed = self.multilabel_ and columns is not None
        if self.multilabel_:
            if type_of_target(y) == "multiclass-multioutput":
                raise ValueError("y has more than 0 and 1 in its columns; give one column for each label")
            self.classes_ = np.arange(y.shape[1]) if columns is None else np.asarray(columns)
        elif partial and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        else:
            self.classes_ = np.unique(column_or_1d(y, warn=True) if classes is None else classes)

    def _sets(self, y: Any) -> Any:
        """Label sets ``(n, labels)`` of 0 and 1; of one label each, where rows have classes."""
        if self.multilabel_:
            if y.ndim != 2 or y.shape[1] != len(self.classes_):
                raise ValueError(f"y has the shape {y.shape}; it needs {len(self.classes_)} columns")
            return y
        y = column_or_1d(y)
        strange = np.setdiff1d(y, self.classes_)
        if len(strange):
            raise ValueError(f"y has the class {strange[0]!r}, which is none of {list(self.classes_)}")
        rows, places = np.arange(len(y)), np.searchsorted(self.classes_, y)
        return sparse.csr_array((np.ones(len(y)), (rows, places)), shape=(len(y), len(self.classes_)))

    def _like_labels(self, values: NDArray[Any], X: Any) -> Any:
        if not self._framed:
            return values
        import pandas as pd

        return pd.DataFrame(values, index=getattr(X, "index", None), columns=self.classes_)

    def _loaded(self, train: MultiLabelData, valid: MultiLabelData) -> Loaded[MultiLabelData]:  # type: ignore[override]
        if not valid.y.nnz:
            valid = train  # no label in the few rows held out: F1 would be undefined
        preprocessor = Preprocessor.fit(train, standardise=False)
        loaded = super()._loaded(preprocessor.apply(train), preprocessor.apply(valid))
        return replace(loaded, preprocessor=preprocessor)

    def _prepared(self, data: MultiLabelData, model: Model) -> MultiLabelData:  # type: ignore[override]
        assert isinstance(model.task, LabelTask)
        assert model.task.preprocessor is not None
        return model.task.preprocessor.apply(data)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.classifier_tags.multi_label = True
        return tags
