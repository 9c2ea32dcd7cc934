"""What all estimators share: parameters, fitting by `lossnet.run`, and pickling as a model's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from lossnet.build import check_names, default_loss
from lossnet.data import Loaded, MaskData, MultiLabelData, Preprocessor, Sentences, Weighted, hold_out
from lossnet.model import Model
from lossnet.run import Run, find_device, fit, new_model, trainer_of
from lossnet.settings import Settings
from lossnet.training import Trainer

__all__ = ["Data", "Estimator"]

Data = TypeVar("Data", MultiLabelData, MaskData, Sentences)


class Estimator(BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators.

    Args:
        method: how to train; see ``lossnet methods``.
        loss: of that method; its first by default.
        epochs: at most so many.
        batch_size: instances in a batch.
        learning_rate: of all networks.
        settings: any others of `Settings`, by name; they win over the parameters here.
        validation_fraction: the share of instances that choose the best epoch and the threshold and are not
            trained on; 0 to choose on the training instances.  Instances given for that to ``fit``, as
            ``X_val`` and ``y_val``, take their place.
        random_state: decides everything random.
        device: cpu, cuda, or auto, which takes a GPU where there is one.
        progress: show progress bars.
    """

    def __init__(
        self,
        *,
        method: str = "seal",
        loss: str | None = None,
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        settings: Mapping[str, Any] | None = None,
        validation_fraction: float = 0.1,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        progress: bool = False,
    ) -> None:
        self.method = method
        self.loss = loss
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.settings = settings
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.progress = progress

    model_: Model
    history_: list[dict[str, Any]]
    n_iter_: int
    _trainer: Trainer | None

    # ------------------------------------------------------------------ fitting

    def _fit(self, data: Data, sample_weight: Any, valid: Data | None, y: Any) -> Self:
        """Trains; where some instances are held out, labels ``y`` ``(n, labels)`` keep their shares."""
        run = self._run()
        rows, weights = self._weighted_rows(data, sample_weight)
        if valid is not None:
            train = data.take(rows)
        elif self.validation_fraction == 0:
            train = valid = data.take(rows)
        else:
            trained, held = hold_out(y[rows], self.validation_fraction, run.seed)
            train, valid = data.take(rows[trained]), data.take(rows[held])
            weights = None if weights is None else weights[trained]
        fitted = fit(run, self._loaded(train, valid), None if weights is None else weights / weights.mean())
        self.model_, self.history_, self.n_iter_ = fitted.model, fitted.history, len(fitted.history)
        self._trainer = None
        return self

    @staticmethod
    def _validates(X_val: Any, y_val: Any) -> bool:
        """Whether instances to validate on were given to ``fit``; half of them is refused."""
        if (X_val is None) != (y_val is None):
            raise ValueError("give X_val and y_val together, or neither")
        return X_val is not None

    def _partial_fit(self, data: Data, sample_weight: Any) -> Self:
        """One pass over some instances, from where the last left the networks and optimizers."""
        run = self._run()
        model = self.model_ if hasattr(self, "model_") else new_model(run, self._loaded(data, data))
        trainer = getattr(self, "_trainer", None) or trainer_of(model, run)
        rows, weights = self._weighted_rows(data, sample_weight)
        part: Data | Weighted = self._prepared(data.take(rows), model)
        if weights is not None:
            part = Weighted(part, torch.as_tensor(weights / weights.mean(), dtype=torch.float32))
        losses = trainer.pass_over(part)
        # Only now: what was refused leaves no model behind that has learned nothing.
        self.model_, self._trainer = model, trainer
        self.history_ = getattr(self, "history_", [])
        self.history_.append({"losses": losses})
        self.n_iter_ = len(self.history_)
        return self

    def _run(self) -> Run:
        values: dict[str, Any] = {"epochs": self.epochs, "batch_size": self.batch_size}
        values |= dict.fromkeys(("task_lr", "energy_lr"), self.learning_rate)
        values |= self.settings or {}
        plain = {name: v.item() if isinstance(v, np.generic) else v for name, v in values.items()}
        loss = default_loss(self.method) if self.loss is None else self.loss
        check_names(self.method, loss)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        settings, device = Settings.of(plain), find_device(self.device)
        return Run("arrays", self.method, loss, settings, seed, device=device, progress=self.progress)

    def _loaded(self, train: Data, valid: Data) -> Loaded[Data]:
        """Training and validation data as a run wants them."""
        nothing = train.take(np.zeros(0, np.int64))
        return Loaded("arrays", "arrays", train, valid, nothing, Preprocessor(np.zeros(0)), "held out")

    def _prepared(self, data: Data, model: Model) -> Data:
        """Instances as a model's networks see them."""
        return data

    @staticmethod
    def _weighted_rows(
        data: Data, sample_weight: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """The rows that count, and their weights, if they differ: a weight of 0 is an instance left out."""
        if sample_weight is None:
            return np.arange(len(data)), None
        rows = np.empty((len(data), 0))
        weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
        kept = np.flatnonzero(weights)
        return kept, weights[kept]

    # ------------------------------------------------------------------ predicting

    def _probabilities(self, x: Any) -> NDArray[Any]:
        return self.model_.predict_proba(x, find_device(self.device))

    def _check_fitted(self) -> None:
        check_is_fitted(self, "model_")

    # ------------------------------------------------------------------ pickling

    def __getstate__(self) -> dict[str, Any]:
        """Parameters and what was learned, the model as the bytes of its files: safetensors and JSON.

        Optimizers are left out: ``partial_fit`` then starts with new ones.
        """
        state = {name: value for name, value in super().__getstate__().items() if name != "_trainer"}
        if "model_" in state:
            state["model_"] = state["model_"].files()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "model_" in state:
            state = {**state, "model_": Model.from_files(state["model_"])}
        super().__setstate__(state)
