"""Translate between JSON and a model: instances in, predictions out.

A model's kind of input says how an instance is asked about, its kind of output how it is answered.
"""

from __future__ import annotations

from typing import Any

from lossnet.inputs import TooLarge
from lossnet.model import Model

__all__ = ["TooLarge", "Wire"]


class Wire:
    """A model's questions and answers as JSON."""

    def __init__(self, model: Model) -> None:
        if model.task.input.question is None:
            raise ValueError(f"models of {model.task.input.summary} cannot be served")
        self.model = model
        self.question = model.task.input.question
        self._searched = "energy" in model.method.predictors

    def read_all(self, given: Any, most_instances: int) -> tuple[list[Any], int]:
        """Return the instances of a request, and what they cost."""
        if not isinstance(given, dict) or set(given) != {"instances"}:
            raise ValueError('ask as {"instances": [...]}')
        instances = given["instances"]
        if not isinstance(instances, list):
            raise ValueError("instances must be an array")
        if len(instances) > most_instances:
            raise TooLarge(f"{len(instances)} instances; a request may have {most_instances}")
        task, items, total = self.model.task, [], 0
        for place, instance in enumerate(instances):
            try:
                item = task.input.parse(instance)
                task.output.check_item(item, task.input, self.model.settings, self._searched)
            except ValueError as error:
                kind = TooLarge if isinstance(error, TooLarge) else ValueError
                raise kind(f"instances[{place}]: {error}") from None
            items.append(item)
            total += task.input.cost(item)
            if total > self.question.most:
                most = f"{self.question.most} {self.question.unit}"
                raise TooLarge(f"the instances together have more than {most}")
        return items, total

    def answers(self, items: list[Any]) -> list[Any]:
        """Return the model's predictions, in the order of items."""
        answers: list[Any] = [None] * len(items)
        task = self.model.task
        for places in task.input.groups(items):
            group = [items[place] for place in places]
            data = task.prepare_inputs(task.input.collate(group))
            relaxed, _ = self.model.probabilities(data)
            if not relaxed.isfinite().all():
                advice = "give inputs such as it was trained on, none missing"
                raise ValueError(f"the model has no finite answer; {advice}")
            predictions = task.output.answers(relaxed, self.model.decoder(), data.source, group)
            for place, answer in zip(places, predictions, strict=True):
                answers[place] = answer
        return answers
