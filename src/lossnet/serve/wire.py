"""What travels: instances as JSON to what a model reads, and what it predicts to JSON.

How an instance is asked about is up to the model's kind of input, how it is answered to its kind of output.
"""

from __future__ import annotations

from typing import Any

from lossnet.inputs import Schema, TooLarge
from lossnet.model import Model

__all__ = ["TooLarge", "Wire"]


class Wire:
    """A model's questions and answers."""

    def __init__(self, model: Model) -> None:
        question = model.task.input.question
        if question is None:
            raise ValueError(f"models of {model.task.input.summary} cannot be served")
        self.model = model
        self._question = question
        self._searched = "energy" in model.method.predictors

    @property
    def question(self) -> Schema:
        """JSON schema of what is asked about."""
        return self._question.schema

    @property
    def answer(self) -> Schema:
        """JSON schema of the answer to it."""
        return self.model.task.output.answer

    @property
    def together(self) -> int:
        """What makes a batch large enough."""
        return self._question.together

    def read_all(self, given: Any, most_instances: int) -> tuple[list[Any], int]:
        """Return the instances of a request, and what they cost."""
        if not isinstance(given, dict) or set(given) != {"instances"}:
            raise ValueError('ask as {"instances": [...]}')
        instances = given["instances"]
        if not isinstance(instances, list):
            raise ValueError("instances must be an array")
        if len(instances) > most_instances:
            raise TooLarge(f"{len(instances)} instances; a request may have {most_instances}")
        items: list[Any] = []
        total = 0
        for place, instance in enumerate(instances):
            try:
                items.append(self._read(instance))
            except TooLarge as error:
                raise TooLarge(f"instances[{place}]: {error}") from None
            except ValueError as error:
                raise ValueError(f"instances[{place}]: {error}") from None
            total += self.model.task.input.cost(items[-1])
            if total > self._question.most:
                what = f"the instances together have more than {self._question.most} {self._question.unit}"
                raise TooLarge(what)
        return items, total

    def _read(self, instance: Any) -> Any:
        task = self.model.task
        item = task.input.parse(instance)
        task.output.check_item(item, task.input, self.model.settings, self._searched)
        return item

    def answers(self, items: list[Any]) -> list[Any]:
        """Return what the model predicts, in the order of items."""
        answers: list[Any] = [None] * len(items)
        task = self.model.task
        for places in task.input.groups(items):
            group = [items[place] for place in places]
            data = task.read_items(group)
            relaxed, _ = self.model.probabilities(data)
            if not relaxed.isfinite().all():
                advice = "give inputs such as it was trained on, none missing"
                raise ValueError(f"the model has no finite answer; {advice}")
            decoder = self.model.decoder()
            found = task.output.answers(relaxed, decoder, data.source, group)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers
