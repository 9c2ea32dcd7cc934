"""Predictors: from raw inputs to outputs, by one model or several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data import Dataset, Examples, Facts, Sentences
from lossnet.decoding import Decision, Decoder, Threshold
from lossnet.energies import Rule
from lossnet.settings import Settings
from lossnet.task import Task
from lossnet.under_rules import UnderRules

__all__ = ["Ensemble", "Predictor"]


class Predictor(ABC):
    """Base class of predictors, which have a task, a decision and probabilities."""

    #: the kinds of its inputs and outputs
    task: Task
    #: what validation data have chosen for decoding
    decision: Decision

    @abstractmethod
    def probabilities(
        self, data: Dataset, device: torch.device | str = "cpu", known: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return probabilities and truth of prepared data, ``(instances, *event)`` each, on ``device``.

        What is ``known`` of outputs ``(instances, *event)`` is 1, 0, or NaN where nothing is.
        """

    @abstractmethod
    def confidences(
        self,
        data: Examples,
        outputs: Tensor,
        device: torch.device | str = "cpu",
        known: Tensor | None = None,
    ) -> Tensor:
        """Return the chances ``(instances,)`` that decoded outputs of prepared data are right as a whole."""

    @property
    def threshold(self) -> float:
        """The threshold tuned on validation data, for the goal or, where none was stated, for F1."""
        return self.decision.threshold

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels or tags that are predicted."""
        return self.task.output.names

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the input columns, where inputs are feature vectors."""
        names: tuple[str, ...] = getattr(self.task.input, "names", ())
        return names

    def predict_proba(self, x: Any, device: torch.device | str = "cpu", known: Any = None) -> NDArray[Any]:
        """Return probabilities of raw inputs: ``(instances, labels)`` for label sets, ``(instances, height,
        width)`` for masks, ``(instances, length, tags)`` for tags, zeros on padding.

        Feature vectors are lists or arrays of numbers, dense or sparse, in the order of `feature_names`; or
        data frames and lists of mappings, with columns by name.  Sentences are texts or lists of tokens,
        images arrays with channels last.

        ``known`` is what is known of outputs, for models that were trained with ``conditional``.  Of labels
        and masks, an array of predictions' shape with 1, 0, and NaN or None where nothing is known, or labels
        by name: a data frame, or a mapping for each row.  Of tags, a tag or None for each token.
        """
        data = self.task.read(x)
        probabilities, _ = self.probabilities(data, device, self._known(known, data))
        array: NDArray[Any] = probabilities.cpu().numpy()
        return array

    def predict(
        self,
        x: Any,
        decode: str | Decoder | None = None,
        device: torch.device | str = "cpu",
        *,
        known: Any = None,
        rules: Sequence[Rule] = (),
        facts: Any = None,
    ) -> NDArray[np.uint8]:
        """Return outputs of raw inputs, as 0 and 1 in the shape of `predict_proba`.

        ``decode`` says how they are chosen: a name of ``task.output.decoders``, such as ``"tuned"`` or
        ``"expected-f1"`` for labels, or a decoder; by default, labels and pixels by the tuned threshold, and
        the likeliest tags.  ``"likeliest"`` is the likeliest label set of an energy that was trained with
        ``conditional``.  ``known`` is as for `predict_proba`; known values are predicted as they are.

        Outputs that ``rules`` penalise are changed, see `UnderRules`; ``facts`` are what is known of each
        row, as `lossnet.data.Facts` takes them.  For each of those outputs rules then judge up to 4,096 label
        sets, or up to 20 times some 1,000 outputs of a search; without rules there is one forward pass.
        What is known comes before rules: the best of the outputs that agree with it is predicted.
        """
        data = self.task.read(x)
        _, decoded = self.outputs(data, decode, device, self._known(known, data), rules, facts)
        return decoded.cpu().numpy().astype(np.uint8)

    def confidence(
        self,
        x: Any,
        decode: str | Decoder | None = None,
        device: torch.device | str = "cpu",
        *,
        known: Any = None,
    ) -> NDArray[Any]:
        """Return the chances ``(instances,)`` that the outputs of `predict` are right as a whole.

        An output is right if each label, tag or pixel is.  Its chance is the product of theirs or, of a model
        that was trained with ``conditional`` and where validation data are for it, its probability under the
        energy; calibrated on validation data (`lossnet.decoding.Confidence`).  Leave what is below some
        chance to a person.
        """
        data = self.task.read(x)
        told = self._known(known, data)
        _, decoded = self.outputs(data, decode, device, told)
        chances: NDArray[Any] = self.confidences(data, decoded, device, told).cpu().numpy()
        return chances

    def outputs(
        self,
        data: Examples,
        decode: str | Decoder | None = None,
        device: torch.device | str = "cpu",
        known: Tensor | None = None,
        rules: Sequence[Rule] = (),
        facts: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Return probabilities and decoded outputs of prepared data, ``(instances, *event)`` each."""
        relaxed, _ = self.probabilities(data, device, known)
        decoded, threshold = self._choose(data, relaxed, decode, device, known)
        return relaxed, self._under(data, relaxed, decoded, threshold, known, rules, facts)

    def _choose(
        self,
        data: Examples,
        relaxed: Tensor,
        decode: str | Decoder | None,
        device: torch.device | str,
        known: Tensor | None,
    ) -> tuple[Tensor, float | tuple[float, ...]]:
        """Return outputs without rules, and the probability at which a unit is as likely as not."""
        decoder = self.decoder(decode)
        threshold = decoder.value if isinstance(decoder, Threshold) else self.threshold
        return self.task.output.keeping(decoder(relaxed), known), threshold

    def _under(
        self,
        data: Examples,
        relaxed: Tensor,
        outputs: Tensor,
        threshold: float | tuple[float, ...],
        known: Tensor | None,
        rules: Sequence[Rule],
        facts: Any,
    ) -> Tensor:
        """Return outputs changed where rules penalise them."""
        if not rules:
            if facts is not None:
                raise ValueError("facts are read by rules; give rules=… too, or leave facts out")
            return outputs
        under = UnderRules(self.task.resolved(rules), self.task.space(Settings()))
        if facts is not None:
            data = data.with_facts(facts if isinstance(facts, Facts) else Facts(facts))
        told = self.task.for_rules(data)
        at = torch.as_tensor(threshold, dtype=torch.float64)
        return under(told, relaxed.cpu(), outputs.cpu(), at, known)

    def _known(self, known: Any, data: Examples) -> Tensor | None:
        """Return what is known of outputs as a tensor."""
        return None if known is None else self.task.output.known(known, data.source)

    def measure(self, data: Dataset, device: torch.device | str = "cpu") -> dict[str, float]:
        """Return metrics on prepared data, decoded as validation data have chosen."""
        relaxed, truth = self.probabilities(data, device)
        if truth is None:
            raise ValueError(f"the data have no {self.task.output.kind} to compare with")
        return self.task.output.meter(self.decision).measure(relaxed, truth)

    def decoder(self, decode: str | Decoder | None = None) -> Decoder:
        """Return a decoder by its name, the default one for None."""
        if decode is None or isinstance(decode, str):
            return self.task.output.decoder(decode, self.decision)
        return decode

    def named(
        self,
        x: Any,
        decode: str | Decoder | None = None,
        *,
        known: Any = None,
        rules: Sequence[Rule] = (),
        facts: Any = None,
    ) -> list[Any]:
        """Return outputs of raw inputs in readable form: label names, tagged tokens, or masks."""
        data = self.task.read(x)
        _, decoded = self.outputs(data, decode, known=self._known(known, data), rules=rules, facts=facts)
        return self.task.output.named(decoded, data.source)

    def tag(self, sentences: Sequence[str | Sequence[str]] | Sentences) -> list[list[tuple[str, str]]]:
        """Return tokens and their tags, of texts or of sentences given as tokens."""
        if self.task.output.level != "position":
            raise TypeError(f"this model predicts {self.task.output.summary}, not tags")
        return self.named(sentences)


class Ensemble(Predictor):
    """Several models of one task, such as those of several seeds: their probabilities averaged.

    Thresholds are the means of theirs.  It costs as many forward passes as there are models.

    Args:
        models: with the same inputs and outputs, preprocessed alike.

    >>> import lossnet
    >>> from lossnet.build import build
    >>> from lossnet.inputs import Features
    >>> from lossnet.outputs import Labels
    >>> task, settings = Task(Features(("u", "v")), Labels(("a", "b"))), lossnet.Settings(task_hidden=4)
    >>> names = ("cross-entropy", "none")
    >>> decisions = Decision(0.2), Decision(0.4)
    >>> models = [lossnet.Model(build(*names, settings, task), names, settings, task, d) for d in decisions]
    >>> ensemble = Ensemble(models)
    >>> ensemble.predict_proba([[1.0, 2.0]]).shape, round(ensemble.threshold, 3)
    ((1, 2), 0.3)
    """

    def __init__(self, models: Sequence[Predictor]) -> None:
        if not models:
            raise ValueError("give at least one model")
        for place, model in enumerate(models[1:], start=2):
            if not models[0].task.is_like(model.task):
                what = f"model {place} was not trained for the same inputs and outputs as the first"
                raise ValueError(f"{what}; average models of the same data and features")
        self.models = tuple(models)
        self.task = models[0].task
        self.decision = Decision.mean([model.decision for model in models])

    def probabilities(
        self, data: Dataset, device: torch.device | str = "cpu", known: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return means over the models, and truth, ``(instances, *event)`` each, on ``device``."""
        mean, truth = self.models[0].probabilities(data, device, known)
        for model in self.models[1:]:
            mean = mean + model.probabilities(data, device, known)[0]
        return mean / len(self.models), truth

    def confidences(
        self,
        data: Examples,
        outputs: Tensor,
        device: torch.device | str = "cpu",
        known: Tensor | None = None,
    ) -> Tensor:
        """Return means over the models."""
        each = [model.confidences(data, outputs, device, known) for model in self.models]
        return torch.stack(each).mean(0)
