"""What all estimators share: parameters, fitting by `lossnet.run`, and pickling as a model's files."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor
from torch.optim import Optimizer

from lossnet.build import check_names, default_loss
from lossnet.data import Examples, Source, Weighted, hold_out
from lossnet.decoding import Decoder
from lossnet.inputs import Fitting
from lossnet.loading import Loaded
from lossnet.model import Model
from lossnet.own import Factory, OwnParts
from lossnet.run import Run, find_device, fit, new_model, trainer_of
from lossnet.settings import Settings
from lossnet.training import Trainer

__all__ = ["Estimator"]

#: what is fitted, but not kept: a pickle does without it
_TRANSIENT = ("_trainer", "_double")


class Estimator(BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators.

    Every field of `Settings` is a parameter too, None for its default: ``task_hidden=64``, ``samples=5``.
    Like all parameters they can be searched over and changed by ``set_params``.

    Args:
        method: how to train; see ``lossnet methods``.
        loss: of that method; its first by default.
        epochs: at most so many.
        batch_size: instances in a batch.
        learning_rate: of all networks that ``task_lr`` and ``energy_lr`` do not say otherwise of.
        task_net: a network of your own from inputs to logits: a module, which is copied, or a class or
            function that makes one; see `lossnet.own.OwnParts`.
        energy: an energy of your own, in the same ways: any module that maps inputs and candidates
            ``(n, K, *outputs)`` to energies ``(n, K)``.
        frozen_energy: whether that energy stays as it is, such as one that was trained elsewhere; for method
            ``seal``.
        optimizer: a class of optimizers, or a function of parameters and ``lr``; AdamW by default.
        scheduler: makes a learning rate scheduler of an optimizer; by default rates are cut on plateaus.
        callbacks: called with each epoch's entry of ``history_``; one that returns True ends training.
        decode: how outputs are chosen from probabilities: a decoder, or a name such as ``"expected-f1"``; see
            `lossnet.decoding`.
        validation_fraction: the share of instances that choose the best epoch and the threshold and are not
            trained on; 0 to choose on the training instances.  Instances given for that to ``fit``, as
            ``X_val`` and ``y_val``, take their place.
        random_state: decides everything random.
        device: cpu, cuda, or auto, which takes a GPU where there is one.
        threads: CPU threads of fitting and predicting; None to leave PyTorch's number as it is.
        progress: show progress bars.
        settings: fields of `Settings`, by name.
    """

    def __init__(
        self,
        *,
        method: str = "seal",
        loss: str | None = None,
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        task_net: Factory | None = None,
        energy: Factory | None = None,
        frozen_energy: bool = False,
        optimizer: Callable[..., Optimizer] | None = None,
        scheduler: Callable[[Optimizer], Any] | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], bool | None]] | None = None,
        decode: str | Decoder | None = None,
        validation_fraction: float = 0.1,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        threads: int | None = 1,
        progress: bool = False,
        **settings: Any,
    ) -> None:
        self.method = method
        self.loss = loss
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.task_net = task_net
        self.energy = energy
        self.frozen_energy = frozen_energy
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.callbacks = callbacks
        self.decode = decode
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.threads = threads
        self.progress = progress
        for name in _OTHER_SETTINGS:
            setattr(self, name, settings.pop(name, None))
        if settings:
            kind = type(self).__name__
            raise TypeError(f"{kind} has no parameter {next(iter(settings))!r}; see {kind}().get_params()")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            _spell_out(cls.__dict__["__init__"], inspect.signature(super(cls, cls).__init__))

    model_: Model
    history_: list[dict[str, Any]]
    n_iter_: int
    _trainer: Trainer | None
    #: the fitted model and its copy in float64, once somebody has predicted
    _double: list[Model]

    # ------------------------------------------------------------------ fitting

    def _fit(self, data: Examples, sample_weight: Any, valid: Examples | None) -> Self:
        """Train anew; where some instances are held out, labels keep their shares."""
        run = self._run()
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
            loaded = self._loaded(train, valid)
            fitted = fit(run, loaded, None if weights is None else weights / weights.mean())
        self.model_, self.history_, self.n_iter_ = fitted.model, fitted.history, len(fitted.history)
        self._trainer, self._double = None, []
        return self

    @staticmethod
    def _validates(X_val: Any, y_val: Any) -> bool:
        """Whether instances to validate on were given to ``fit``; half of them is refused."""
        if (X_val is None) != (y_val is None):
            raise ValueError("give X_val and y_val together, or neither")
        return X_val is not None

    def _partial_fit(self, data: Examples, sample_weight: Any) -> Self:
        """Pass once over some instances, from where the last pass left the networks and optimizers."""
        run = self._run()
        with self._threads():
            model = self.model_ if hasattr(self, "model_") else new_model(run, self._loaded(data, data))
            trainer = getattr(self, "_trainer", None) or trainer_of(model, run)
            rows, weights = _weighted_rows(len(data), sample_weight)
            (prepared,) = model.task.prepare([data.take(rows)])
            part: Examples | Weighted = prepared
            if weights is not None:
                part = Weighted(part, torch.as_tensor(weights / weights.mean(), dtype=torch.float32))
            losses = trainer.pass_over(part)
        # Only now: what was refused leaves no model behind that has learned nothing.
        self.model_, self._trainer, self._double = model, trainer, []
        self.history_ = getattr(self, "history_", [])
        self.history_.append({"losses": losses})
        self.n_iter_ = len(self.history_)
        return self

    def _run(self) -> Run:
        names = ("epochs", "batch_size", *_OTHER_SETTINGS)
        values: dict[str, Any] = dict.fromkeys(("task_lr", "energy_lr"), self.learning_rate)
        values |= {name: value for name in names if (value := getattr(self, name)) is not None}
        plain = {name: v.item() if isinstance(v, np.generic) else v for name, v in values.items()}
        loss = default_loss(self.method) if self.loss is None else self.loss
        check_names(self.method, loss)
        return Run(
            "arrays",
            self.method,
            loss,
            Settings.of(plain),
            seed=int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max)),
            device=find_device(self.device),
            progress=self.progress,
            own=OwnParts(self.task_net, self.energy, self.frozen_energy),
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            callbacks=self.callbacks,
        )

    def _loaded(self, train: Examples, valid: Examples) -> Loaded:
        """Training and validation data as a run wants them."""
        assert valid.target is not None
        if valid.target.is_empty:
            valid = train  # no label in the few rows held out: F1 would be undefined
        return Loaded.from_parts(train, valid, fitting=self._fitting(train.source))

    def _fitting(self, source: Source) -> Fitting:
        """What is said of reading inputs beside the data."""
        return Fitting()

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """Compute with so many threads as were asked for, in here."""
        if self.threads is not None and not self.threads > 0:
            raise ValueError(f"threads must be above 0, or None, not {self.threads}")
        before = torch.get_num_threads()
        torch.set_num_threads(before if self.threads is None else self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    # ------------------------------------------------------------------ predicting

    def _probabilities(self, data: Examples) -> Tensor:
        """Return probabilities of prepared data, ``(n, *event)``."""
        with self._threads():
            return self._predictor().probabilities(data, find_device(self.device))[0].cpu()

    def _predictor(self) -> Model:
        """The model that predicts."""
        return self.model_

    def _precise(self) -> Model:
        """The model in float64, made once: float32 rounds a row by its place among others.

        Networks of somebody's own predict in the precision that they were written for.
        """
        model = self.model_
        if set(model.method.predictors) & set(model.task.own.names):
            return model
        if not self._double or self._double[0] is not model:
            self._double[:] = model, model.double()
        return self._double[1]

    def _decoded(self, data: Examples) -> Tensor:
        """Return outputs of prepared data, 0 and 1, ``(n, *event)``."""
        return self.model_.decoder(self.decode)(self._probabilities(data))

    def _read(self, x: Any) -> Examples:
        """Return raw inputs as networks read them."""
        check_is_fitted(self, "model_")
        return self.model_.task.read(x)

    # ------------------------------------------------------------------ pickling

    def __getstate__(self) -> dict[str, Any]:
        """Return parameters and what was learned, the model as the bytes of its files: safetensors and JSON.

        Optimizers are left out: ``partial_fit`` then starts with new ones.  Parts of your own are kept as
        what was given for them, a module or the name of a class or function.
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


def _weighted_rows(count: int, sample_weight: Any) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """The rows that count, and their weights, if they differ: a weight of 0 is an instance left out."""
    if sample_weight is None:
        return np.arange(count), None
    rows = np.empty((count, 0))
    weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
    kept = np.flatnonzero(weights)
    return kept, weights[kept]


def _spell_out(init: Callable[..., None], rest: inspect.Signature) -> None:
    """Show the parameters that ``**`` stands for in a constructor's signature.

    scikit-learn reads the names of parameters there.
    """
    own = inspect.signature(init)
    several = inspect.Parameter.VAR_KEYWORD
    parameters = {name: one for name, one in own.parameters.items() if one.kind is not several}
    parameters |= {name: one for name, one in rest.parameters.items() if name not in parameters}
    init.__signature__ = own.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]


#: settings that `Estimator` does not have in its own words
_OTHER_SETTINGS = tuple(
    one.name
    for one in dataclasses.fields(Settings)
    if one.name not in inspect.signature(Estimator.__init__).parameters
)
_spell_out(
    Estimator.__init__,
    inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _OTHER_SETTINGS]
    ),
)
