"""Sets of labels from feature vectors, texts, sentences or images."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from lossnet.data import Examples, FeatureTable, LabelTable, Source, TextTable
from lossnet.data.readers import frame_columns, named_rows, read_frame
from lossnet.data.readers.text import Unknown
from lossnet.data.tables import without_unknown
from lossnet.decoding import Decoder
from lossnet.energies import Rule, exactly
from lossnet.estimators.base import WordEstimator, suggests_parameters
from lossnet.inputs import Features, Fitting, Input, Words
from lossnet.model import Model
from lossnet.scores import F1

_SETS = (list, tuple, set, frozenset)
_NUMERIC = "biuf"
_FEATURE_CHECKS = {"accept_sparse": "csr", "dtype": np.float32, "ensure_all_finite": "allow-nan"}


@suggests_parameters
@dataclass(kw_only=True, eq=False, repr=False)
class MultiLabelClassifier(ClassifierMixin, WordEstimator):  # type: ignore[misc]
    """Predict sets of labels from features, texts, sentences or images.

    Inputs ``X`` are

    - feature vectors ``(n, features)``: dense, sparse, or a data frame; NaN is a missing value, and becomes
      its column's mean in training.  A data frame may also have columns of texts, of categories, and of
      dates; `lossnet.data.readers.read_csv` says what becomes of them;
    - or texts: strings, which become TF-IDF features, or what an ``encoder`` makes of them;
    - or sentences: lists of tokens.  Strings are cut into tokens where ``inputs="words"``, or ``embeddings``
      or ``features`` are given;
    - or images ``(n, height, width)`` or ``(n, height, width, channels)``: whole grey levels from 0 to 255,
      or floats from 0 to 1.

    What an instance has is

    - a set of labels: ``y`` ``(n, labels)`` of 0 and 1, an array, sparse, or a data frame, whose columns name
      the labels, and predictions then are data frames too;
    - a set of labels by their names: a list, tuple or set of strings for each instance, or a string such as
      ``"red;sweet"``, with semicolons or bars.  Predictions are arrays of 0 and 1 with a column for each of
      ``classes_``, and ``model_.named(X)`` gives names;
      Where a label of a row is None or NaN, it is not known, and nothing is learned of it;
    - or one class: ``y`` ``(n,)``.  Each class is a label then, and the likeliest is predicted.

    The parameters are those of `lossnet.estimators.base.Estimator`, ``encoder`` and ``train_encoder`` for
    texts, ``embeddings`` for sentences (see `lossnet.estimators.base.WordEstimator`), and the following.

    Args:
        inputs: the kind of ``X``: ``"features"``, ``"text"``, ``"words"``, ``"images"``, or one of your own;
            ``"auto"`` finds it by how ``X`` looks.
        text: columns of a data frame that have texts, where the guess is wrong.
        scale: shift and scale the columns of dense feature vectors to mean 0 and variance 1 (those of 0 and 1
            stay), as in training.
        unknown: what a value that a column of text did not have in ``fit``, or a date that cannot be read, is
            in prediction: ``"missing"``, with a warning, or an ``"error"``.

    Attributes:
        classes_: names of the labels, or their numbers where ``y`` has no names; or the classes.
        multilabel_: whether rows have sets of labels.
        inputs_: the kind of ``X``.
        n_features_in_: columns of ``X``, if it has feature vectors.
        feature_names_in_: their names, if ``X`` was a data frame.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 4))
    >>> Y = (X[:, :2] > 0).astype(int)
    >>> classifier = MultiLabelClassifier(epochs=10, learning_rate=0.01, random_state=0)
    >>> classifier.fit(X, Y).predict([[2, 2, 0, 0], [2, -2, 0, 0]])
    array([[1, 1],
           [1, 0]])

    >>> texts = ["a good film", "a bad film", "good music", "bad music"] * 5
    >>> labels = [[1, 1], [0, 1], [1, 0], [0, 0]] * 5
    >>> quick = MultiLabelClassifier(method="cross-entropy", epochs=20, learning_rate=0.01, random_state=0)
    >>> quick.fit(texts, labels).predict(["a good film", "bad music"])
    array([[1, 1],
           [0, 0]])
    """

    inputs: str = "auto"
    text: Sequence[str] | None = None
    scale: bool = True
    unknown: Unknown = "missing"

    classes_: NDArray[Any] = field(init=False)
    multilabel_: bool = field(init=False)
    inputs_: str = field(init=False)
    n_features_in_: int = field(init=False)
    feature_names_in_: NDArray[Any] = field(init=False)
    _framed: bool = field(init=False)
    #: whether label sets are given by names
    _named: bool = field(init=False, default=False)
    #: the features that columns of a data frame with text or dates became; None for columns of numbers
    _encoded: tuple[str, ...] | None = field(init=False, default=None)
    #: the columns of such a data frame that have texts
    _texts: tuple[str, ...] = field(init=False, default=())

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on a batch of rows, without validation; the threshold stays 0.5.

        The first call with a ``y`` ``(n,)`` must be given all ``classes``; label sets have a column for each
        label anyway.  Words and characters of sentences are those of the first call.  Methods of several
        stages (``spen``, ``nce-energy``, ``infnet``, ``seal-static``) need all data at once, and are refused.
        """
        first = not hasattr(self, "model_")
        return self._partial_fit(self._examples(X, y, first, classes, partial=True), sample_weight)

    def predict_proba(self, X: Any, known: Any = None) -> Any:
        """Return probabilities ``(n, labels)``: of each label by itself, or of classes, which sum to 1.

        With ``conditional``, ``known`` is what is known of the sets: 1, 0, and NaN where nothing is,
        ``(n, labels)``; or labels by name, a data frame or a mapping for each row.
        """
        probabilities = self._probabilities(self._read(X), known).numpy()
        if not self.multilabel_:
            total = probabilities.sum(1, keepdims=True)
            even = 1 / probabilities.shape[1]
            probabilities = np.where(total > 0, probabilities / np.where(total > 0, total, 1), even)
        return self._like_labels(probabilities, X)

    def predict(self, X: Any, *, known: Any = None, rules: Sequence[Rule] = (), facts: Any = None) -> Any:
        """Return sets of labels ``(n, labels)`` of 0 and 1, by the tuned threshold unless ``decode`` says
        otherwise; or the likeliest classes ``(n,)``.

        ``known`` is as for `predict_proba`.  Outputs that ``rules`` penalise are changed: see
        `lossnet.Model.predict`.
        """
        data = self._read(X)
        if not self.multilabel_:
            kept = (exactly(1), *rules) if rules else ()
            decoded = self._decoded(data, known, kept, facts)
            return self.classes_[decoded.argmax(1).numpy()]
        return self._like_labels(self._decoded(data, known, rules, facts).numpy().astype(np.int64), X)

    def _known(self, known: Any, data: Examples) -> Tensor | None:
        if known is not None and not self.multilabel_:
            raise ValueError("known is for sets of labels, and rows have one class each; leave it out")
        return super()._known(known, data)

    def _decode(self) -> str | Decoder | None:
        return self.decode if self.multilabel_ else _likeliest

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the F1 of each row's set, averaged over labelled rows; or the accuracy of classes."""
        check_is_fitted(self, "model_")
        if not self.multilabel_:
            return float(super().score(X, y, sample_weight))
        (data,) = self.model_.task.prepare([self._examples(X, y)])
        assert data.target is not None
        truth = data.target.batch(np.arange(len(data)))
        labelled = (truth.sum(1) > 0).numpy()
        if not labelled.any():
            raise ValueError("no instance has a true label: F1 is undefined")
        known = data.target.known(np.arange(len(data)))
        decoded = self._decoded(data.without_target()).float()  # as `predict` decodes
        decoded = decoded if known is None else decoded * known
        f1 = F1()(decoded.unsqueeze(1), truth).squeeze(1).numpy()
        weights = None if sample_weight is None else np.asarray(sample_weight)[labelled]
        return float(np.average(f1[labelled], weights=weights))

    # ------------------------------------------------------------------ what users give and get

    def _predictor(self) -> Model:
        """Return the model in float64, made once: float32 rounds a row by its place among others.

        Networks of your own predict in their own precision.
        """
        model = self.model_
        if set(model.method.predictors) & set(model.task.own.names):
            return model
        if not self._double:
            self._double.append(model.double())
        return self._double[0]

    def _read(self, x: Any) -> Examples:
        check_is_fitted(self, "model_")
        if not issubclass(Input.kinds[self.inputs_], Features):
            return super()._read(x)
        if self._encoded is not None:
            return self.model_.task.prepare_inputs(self._table(x, first=False))
        return super()._read(validate_data(self, x, reset=False, **_FEATURE_CHECKS))

    def _examples(
        self, X: Any, y: Any, first: bool = False, classes: Any = None, partial: bool = False
    ) -> Examples:
        columns = getattr(y, "columns", None)
        if columns is not None and len(columns) == 1 and y.dtypes.iloc[0].kind not in _NUMERIC:
            columns, y = None, y.iloc[:, 0]
        sets = named_sets(y, split=first or self._named)
        if sets is not None:
            columns, y = self._binarised(sets, first)
        y, unknown = _apart(y)
        if first:
            self.inputs_, self._named, self._encoded = self._kind_of(X), sets is not None, None
        kind = Input.kinds[self.inputs_]
        if issubclass(kind, Features) and (self._encoded is not None or _has_text(X)):
            source: Source = self._table(X, first)
            y = check_array(y, accept_sparse="csr", ensure_2d=False, dtype=None, input_name="y")
            check_consistent_length(X, y)
        elif issubclass(kind, Features):
            X, y = validate_data(self, X, y, reset=first, multi_output=True, **_FEATURE_CHECKS)
            source = self._features(X)
        else:
            source = kind.collect(X)
            y = check_array(y, accept_sparse="csr", ensure_2d=False, dtype=None, input_name="y")
        if first:
            self._learn_labels(y, columns, classes, partial)
            self._framed = self._framed and not self._named
        elif self._framed and columns is not None and list(columns) != list(self.classes_):
            what = f"y has the labels {list(columns)}; they must be {list(self.classes_)}, as in fit"
            raise ValueError(what)
        target = LabelTable(self._sets(y), [str(name) for name in self.classes_])
        return Examples(source, target if unknown is None else target.where_unknown(unknown))

    def _table(self, X: Any, first: bool) -> FeatureTable:
        """Return the features of a data frame with columns of text or dates; the ``first`` decide on them."""
        if not hasattr(X, "columns"):
            what = f"X is a {type(X).__name__}; fit had a data frame with columns of text or dates"
            raise ValueError(f"{what}; give one with the same columns")
        if first:
            validate_data(self, X, skip_check_array=True)  # learns the names of the columns
            source = read_frame(X, [], self.text).source
            self._encoded = source.names
            self._texts = source.columns if isinstance(source, TextTable) else ()
            return source
        assert self._encoded is not None
        return named_rows(frame_columns(X), self._encoded, self.unknown, self._texts).source

    def _source(self, X: Any, like: Examples) -> Source:
        if not issubclass(Input.kinds[self.inputs_], Features):
            return super()._source(X, like)
        if self._encoded is not None:
            return self._table(X, first=False)
        return self._features(validate_data(self, X, reset=False, **_FEATURE_CHECKS))

    def _features(self, X: Any) -> FeatureTable:
        names = getattr(self, "feature_names_in_", [f"feature_{i}" for i in range(self.n_features_in_)])
        return FeatureTable(X, list(names))

    def _binarised(self, y: Any, first: bool) -> tuple[list[str], NDArray[np.uint8]]:
        """Return the labels' names, and label sets ``(n, labels)`` of 0 and 1, of sets given by names."""
        names = sorted({name for row in y for name in row}) if first else [str(n) for n in self.classes_]
        places = {name: index for index, name in enumerate(names)}
        matrix = np.zeros((len(y), len(names)), dtype=np.uint8)
        for number, row in enumerate(y):
            for name in row:
                if name not in places:
                    raise ValueError(f"row {number} of y has the label {name!r}, which fit did not see")
                matrix[number, places[name]] = 1
        return names, matrix

    def _kind_of(self, X: Any) -> str:
        """Return the kind of inputs that was asked for, or that these look like."""
        if self.text is not None and not hasattr(X, "columns"):
            raise ValueError("text names columns of a data frame, and X is none; leave it out")
        if self.inputs == "auto":
            if (self.embeddings is not None or self.features) and Words.accepts(X):
                return Words.kind
            # Where none fits, scikit-learn says what is wrong with X as features.
            return next((name for name, kind in Input.guesses().items() if kind.accepts(X)), Features.kind)
        if self.inputs not in Input.kinds:
            raise ValueError(f"no inputs {self.inputs!r}; choose auto, {', '.join(Input.kinds)}")
        return self.inputs

    def _fitting(self, train: Examples) -> Fitting:
        if self.embeddings is not None and self.inputs_ != Words.kind:
            raise ValueError(f"embeddings are for sentences, and X has {Input.kinds[self.inputs_].summary}")
        dense = isinstance(train.source, FeatureTable) and not train.source.is_sparse
        return replace(super()._fitting(train), standardise=self.scale and dense)

    def _learn_labels(self, y: Any, columns: Any, classes: Any, partial: bool) -> None:
        """Learn from the first ``y`` what the labels or classes are."""
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
        """Return label sets ``(n, labels)`` of 0 and 1; of one label each, where rows have classes."""
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

        return pd.DataFrame(values, index=X.index if hasattr(X, "iloc") else None, columns=self.classes_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.classifier_tags.multi_label = True
        return tags


def named_sets(y: Any, split: bool) -> list[Sequence[str]] | None:
    """Return the names of each instance's labels, where ``y`` has names; None for what else it may have.

    With ``split``, strings of which some have semicolons or bars are names that are separated by them.  Where
    there are names, None and NaN are no labels.

    >>> named_sets([["news", "sport"], []], split=True), named_sets(["red;sweet", "red"], split=True)
    ([['news', 'sport'], []], [['red', 'sweet'], ['red']])
    >>> named_sets([[0, 1]], split=True), named_sets(["news"], split=True)
    (None, None)
    """
    is_row = isinstance(y, list | tuple) or type(y).__name__ == "Series"
    if not is_row and not (isinstance(y, np.ndarray) and y.ndim == 1 and y.dtype.kind in "OU"):
        return None
    rows: list[Any] = [None if isinstance(row, float) and row != row else row for row in y]
    if all(row is None or isinstance(row, str) for row in rows):
        rows = [row or "" for row in rows]
        mark = next((mark for mark in ";|" if any(mark in row for row in rows)), None)
        if not split or mark is None:
            return None
        return [[name for part in row.split(mark) if (name := part.strip())] for row in rows]
    sets = [row for row in rows if isinstance(row, _SETS)]
    if not any(isinstance(name, str) for row in sets for name in row):
        if sets and (len(set(map(len, sets))) > 1 or isinstance(sets[0], set | frozenset)):
            what = f"y has lists of numbers, such as {reprlib.repr(max(sets, key=len))}"
            raise ValueError(
                f"{what}; give labels by names, as strings, or a column of 0 and 1 for each label"
            )
        return None
    rows = [[] if row is None else row for row in rows]
    for number, row in enumerate(rows):
        if not isinstance(row, _SETS) or not all(isinstance(name, str) for name in row):
            what = f"row {number} of y is {reprlib.repr(row)}, and others are lists of names"
            raise ValueError(f"{what}; give a list of strings, empty where an instance has no label")
    return rows


def _apart(y: Any) -> tuple[Any, Any]:
    """Return label sets with 0 where a label is None or NaN, and a matrix that is true there; or None.

    >>> y, unknown = _apart([[1, None], [0, 1]])
    >>> y.tolist(), unknown.toarray().tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [[False, True], [False, False]])
    """
    matrix = y
    if not sparse.issparse(y):
        try:
            matrix = y.to_numpy(float, na_value=np.nan) if hasattr(y, "columns") else np.asarray(y)
            matrix = matrix.astype(float) if matrix.dtype == object else matrix
        except (TypeError, ValueError):  # names
            return y, None
    values = matrix.data if sparse.issparse(y) else matrix
    if matrix.ndim != 2 or values.dtype.kind != "f" or not 0 < np.isnan(values).sum() < values.size:
        return y, None
    return without_unknown(matrix)


def _likeliest(probabilities: Tensor) -> Tensor:
    """Return the likeliest class of each row, one-hot."""
    return torch.zeros_like(probabilities).scatter_(1, probabilities.argmax(1, keepdim=True), 1)


def _has_text(X: Any) -> bool:
    """Whether a data frame has columns of text, categories or dates.

    >>> import pandas
    >>> _has_text(pandas.DataFrame({"a": [1, None], "b": [True, False]}))
    False
    """
    if not hasattr(X, "iloc") or not hasattr(X, "dtypes"):
        return False
    columns = (X.iloc[:, place] for place in range(X.shape[1]))
    return any(
        column.dtype.kind not in _NUMERIC
        and (column.dtype != object or any(isinstance(cell, str | date) for cell in column))
        for column in columns
    )
