"""What travels: instances as JSON to what a model reads, and what it predicts to names and probabilities.

==========  ==================================================================  ===========================
a model of  is asked about                                                      and answers
==========  ==================================================================  ===========================
labels      rows: arrays of numbers, or objects from names to values            labels and probabilities
tags        texts, arrays of tokens, or objects of tokens and further columns   tokens, tags, probabilities
masks       images: objects with a base64 PNG or JPEG, or nested arrays         the mask in the same form
==========  ==================================================================  ===========================
"""

from __future__ import annotations

import base64
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data import MaskData, Sentences, decode_picture
from lossnet.data.readers.text import Like
from lossnet.model import Model
from lossnet.tasks import LabelTask, MaskTask, TagTask
from lossnet.tasks.tags import tokenise

__all__ = ["TooLarge", "Wire", "wire_for"]

Item = TypeVar("Item")
Schema = dict[str, Any]

_NUMBER: Schema = {"type": "number"}
_TEXT: Schema = {"type": "string"}


class TooLarge(ValueError):  # noqa: N818
    """More than a request may ask for."""


class Wire(ABC, Generic[Item]):
    """How a model of one kind is asked and answers."""

    #: JSON schemas of what is asked about, and of the answer to it
    question: ClassVar[Schema]
    answer: ClassVar[Schema]
    #: what one request may cost, and what makes a batch large enough
    most: ClassVar[int]
    together: ClassVar[int]

    def __init__(self, model: Model) -> None:
        self.model = model

    @abstractmethod
    def read(self, given: Any) -> Item:
        """One instance as it came; ValueError says what is wrong with it."""

    @abstractmethod
    def cost(self, item: Item) -> int:
        """What an instance weighs: rows, tokens or pixels."""

    @abstractmethod
    def answers(self, items: list[Item]) -> list[dict[str, Any]]:
        """What the model predicts, in the order of items."""

    def read_all(self, given: Any, most_instances: int) -> tuple[list[Item], int]:
        """The instances of a request, and what they cost."""
        if not isinstance(given, dict) or set(given) != {"instances"}:
            raise ValueError('ask as {"instances": [...]}')
        instances = given["instances"]
        if not isinstance(instances, list):
            raise ValueError("instances must be an array")
        if len(instances) > most_instances:
            raise TooLarge(f"{len(instances)} instances; a request may have {most_instances}")
        items: list[Item] = []
        total = 0
        for place, instance in enumerate(instances):
            try:
                items.append(self.read(instance))
            except TooLarge as error:
                raise TooLarge(f"instances[{place}]: {error}") from None
            except ValueError as error:
                raise ValueError(f"instances[{place}]: {error}") from None
            total += self.cost(items[-1])
            if total > self.most:
                raise TooLarge(f"the instances together have more than {self.most} tokens or pixels")
        return items, total


def wire_for(model: Model) -> Wire[Any]:
    """The wire of a model's kind."""
    if isinstance(model.task, LabelTask):
        return LabelWire(model)
    return TagWire(model) if isinstance(model.task, TagTask) else MaskWire(model)


class LabelWire(Wire[NDArray[np.float32]]):
    """Rows of features in, label names out.

    An object has every input of the model: a number for each name, or for the columns ``country=fr``,
    ``country=it`` of a category also ``"country": "it"``.  ``null`` is a missing value.
    """

    question: ClassVar[Schema] = {
        "oneOf": [
            {"type": "array", "items": {"type": ["number", "null"]}},
            {"type": "object", "additionalProperties": {"type": ["number", "string", "null"]}},
        ]
    }
    answer: ClassVar[Schema] = {
        "type": "object",
        "properties": {
            "labels": {"type": "array", "items": _TEXT},
            "probabilities": {"type": "object", "additionalProperties": _NUMBER},
        },
    }
    most = 1 << 16
    together = 512

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._like = Like(model.feature_names, ())
        self._columns = {name: column for column, name in enumerate(model.feature_names)}

    def read(self, given: Any) -> NDArray[np.float32]:
        if isinstance(given, dict):
            return self._read_named(given)
        if not isinstance(given, list):
            raise ValueError("a row is an array of numbers, or an object from names to values")
        if len(given) != len(self._columns):
            raise ValueError(f"{len(given)} values for {len(self._columns)} inputs")
        return _numbers(given)

    def cost(self, item: NDArray[np.float32]) -> int:
        return 1

    def answers(self, items: list[NDArray[np.float32]]) -> list[dict[str, Any]]:
        model, names = self.model, self.model.label_names
        relaxed, _ = model.probabilities(model.task.inputs(np.stack(items)))
        _check_finite(relaxed)
        chosen = model.task.decoder(model.threshold)(relaxed).bool()
        return [
            {
                "labels": [name for name, pick in zip(names, picks, strict=True) if pick],
                "probabilities": {name: round(p, 6) for name, p in zip(names, values, strict=True)},
            }
            for picks, values in zip(chosen.tolist(), relaxed.tolist(), strict=True)
        ]

    def _read_named(self, given: dict[str, Any]) -> NDArray[np.float32]:
        values: list[Any] = [_ABSENT] * len(self._columns)
        for name, value in given.items():
            if name in self._columns:
                values[self._columns[name]] = value
                continue
            known = self._like.values(name)
            if known is None:
                raise ValueError(f"{_shown(name)} is no input of this model")
            if value is not None and (not isinstance(value, str) or value not in known):
                raise ValueError(f"{_shown(value)} is no value of {_shown(name)} that training had")
            for other in known:
                values[self._columns[f"{name}={other}"]] = None if value is None else float(value == other)
        lacking = [name for name, value in zip(self._columns, values, strict=True) if value is _ABSENT]
        if lacking:
            shown = ", ".join(map(_shown, lacking[:5])) + (", …" if len(lacking) > 5 else "")
            raise ValueError(f"lacks {len(lacking)} of the model's inputs ({shown}); null is a missing value")
        return _numbers(values)


@dataclass(frozen=True)
class _Sentence:
    tokens: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]


class TagWire(Wire[_Sentence]):
    """Texts or tokens in, a tag for each token out."""

    question: ClassVar[Schema] = {
        "oneOf": [
            _TEXT,
            {"type": "array", "items": _TEXT, "minItems": 1},
            {
                "type": "object",
                "required": ["tokens"],
                "additionalProperties": {"type": "array", "items": _TEXT, "minItems": 1},
            },
        ]
    }
    answer: ClassVar[Schema] = {
        "type": "array",
        "items": {"type": "object", "properties": {"token": _TEXT, "tag": _TEXT, "probability": _NUMBER}},
    }
    most = 1 << 14
    together = 1 << 14

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        assert isinstance(model.task, TagTask)
        self._task = model.task

    def read(self, given: Any) -> _Sentence:
        needed = self._task.lexicon.columns
        parts = given if isinstance(given, dict) else {"tokens": given}
        if isinstance(given, str):
            parts = {"tokens": list(tokenise(given))}
        if set(parts) != {"tokens", *needed}:
            raise ValueError(f"a sentence of this model is an object of {', '.join(('tokens', *needed))}")
        tokens, *columns = (_strings(name, parts[name]) for name in ("tokens", *needed))
        if any(len(column) != len(tokens) for column in columns):
            raise ValueError(f"give one of {', '.join(needed)} for each token")
        return _Sentence(tokens, tuple(columns))

    def cost(self, item: _Sentence) -> int:
        return len(item.tokens)

    def answers(self, items: list[_Sentence]) -> list[dict[str, Any]]:
        answers: list[Any] = [None] * len(items)
        # Short sentences together: a batch is padded to the longest in it.
        order = sorted(range(len(items)), key=lambda place: len(items[place].tokens))
        for places in _groups(order, lambda place: len(items[place].tokens), self.together, padded=True):
            for place, answer in zip(places, self._tagged([items[place] for place in places]), strict=True):
                answers[place] = answer
        return answers

    def _tagged(self, items: list[_Sentence]) -> Iterator[list[dict[str, Any]]]:
        names = self._task.lexicon.columns
        columns = {name: tuple(item.columns[at] for item in items) for at, name in enumerate(names)}
        data = self._task.inputs(Sentences(tuple(item.tokens for item in items), None, columns))
        relaxed, _ = self.model.probabilities(data)
        _check_finite(relaxed)
        best = relaxed.max(-1).values.tolist()
        for named, values in zip(self._task.named(relaxed, data), best, strict=True):
            yield [
                {"token": token, "tag": tag, "probability": round(p, 6)}
                for (token, tag), p in zip(named, values, strict=False)
            ]


@dataclass(frozen=True)
class _Picture:
    pixels: NDArray[np.float32]  # (1, channels, height, width), in [0, 1]
    encoded: bool


class MaskWire(Wire[_Picture]):
    """Images in, masks out: nested arrays for nested arrays, base64 PNG for base64 files."""

    question: ClassVar[Schema] = {
        "oneOf": [
            {
                "type": "object",
                "properties": {"image": {"type": "string", "contentEncoding": "base64"}},
                "required": ["image"],
                "additionalProperties": False,
            },
            {"type": "array", "items": {"type": "array"}, "minItems": 1},
        ]
    }
    answer: ClassVar[Schema] = {
        "type": "object",
        "properties": {
            "mask": {"description": "0 and 1 in arrays; black and white in a base64 PNG"},
            "probabilities": {"description": "from 0 to 1 in arrays; grey levels in a base64 PNG"},
        },
    }
    most = 1 << 22
    together = 1 << 18

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        assert isinstance(model.task, MaskTask)
        self._task = model.task
        self._views = model.task.crops(model.settings)

    def read(self, given: Any) -> _Picture:
        encoded = isinstance(given, dict)
        pixels = self._decoded(given) if isinstance(given, dict) else _nested(given)
        data = MaskData.from_arrays(pixels[None], np.zeros((1, *pixels.shape[:2]), np.uint8))
        if data.channels != self._task.channels:
            raise ValueError(f"{data.channels} channel(s); this model wants {self._task.channels}")
        size = f"the image is {data.size[0]}×{data.size[1]} (height × width)"
        if self._views is not None and any(a < b for a, b in zip(data.size, self._views.shape, strict=True)):
            raise ValueError(f"{size}; this model wants at least {'×'.join(map(str, self._views.shape))}")
        if self._views is None and "energy" in self.model.method.predictors and data.size != self._task.size:
            raise ValueError(f"{size}; this model wants {'×'.join(map(str, self._task.size))}")
        return _Picture(data.images, encoded)

    def cost(self, item: _Picture) -> int:
        return int(item.pixels[0, 0].size)

    def answers(self, items: list[_Picture]) -> list[dict[str, Any]]:
        answers: list[Any] = [None] * len(items)
        shapes: dict[tuple[int, ...], list[int]] = {}
        for place, item in enumerate(items):
            shapes.setdefault(item.pixels.shape, []).append(place)
        for alike in shapes.values():
            for places in _groups(alike, lambda place: self.cost(items[place]), self.together):
                images = np.concatenate([items[place].pixels for place in places])
                relaxed, _ = self.model.probabilities(MaskData(images, np.zeros_like(images[:, 0], np.uint8)))
                _check_finite(relaxed)
                for place, values in zip(places, relaxed.numpy(), strict=True):
                    answers[place] = self._answer(values, items[place].encoded)
        return answers

    def _answer(self, values: NDArray[np.float32], encoded: bool) -> dict[str, Any]:
        mask = (values >= self.model.threshold).astype(np.uint8)
        if encoded:
            return {"mask": _png(mask * 255), "probabilities": _png(np.rint(values * 255).astype(np.uint8))}
        return {
            "mask": mask.tolist(),
            "probabilities": [[round(p, 6) for p in row] for row in values.tolist()],
        }

    def _decoded(self, given: dict[str, Any]) -> NDArray[np.uint8]:
        if set(given) != {"image"} or not isinstance(given["image"], str):
            raise ValueError('an image is {"image": "base64 of a PNG or JPEG file"}, or nested arrays')
        try:
            content = base64.b64decode(given["image"], validate=True)
        except ValueError:
            raise ValueError("the image is not base64") from None
        return decode_picture(content, self._task.channels, self.most)


_ABSENT = object()


def _shown(value: object) -> str:
    """Something a client sent, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _numbers(values: Sequence[Any]) -> NDArray[np.float32]:
    """Numbers that fit float32, NaN for None."""
    if not set(map(type, values)) <= {int, float, type(None)}:
        odd = next(value for value in values if type(value) not in (int, float, type(None)))
        raise ValueError(f"{_shown(odd)} is not a number")
    try:
        with np.errstate(over="ignore"):
            row = np.array(values, dtype=np.float32)
    except OverflowError:
        row = np.array([np.inf], dtype=np.float32)
    if np.isinf(row).any():
        raise ValueError("a number is too large for float32")
    return row


def _strings(name: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(one, str) and one for one in given):
        raise ValueError(f"{name} must be an array of strings that are not empty")
    if not given:
        raise ValueError("a sentence needs at least one token")
    return tuple(given)


def _nested(given: Any) -> NDArray[Any]:
    try:
        pixels = np.array(given)
    except (ValueError, OverflowError):  # rows that differ in length
        pixels = np.array(None)
    if pixels.dtype.kind not in "iuf" or pixels.ndim not in (2, 3) or not pixels.size:
        raise ValueError("an image is an array of rows of pixels, numbers or arrays of channels")
    return pixels


def _groups(places: Iterable[int], cost: Any, most: int, padded: bool = False) -> Iterator[list[int]]:
    """Runs of places that together cost at most so much, or a single one that costs more.

    With ``padded``, every one costs as much as the last.
    """
    group: list[int] = []
    total = 0
    for place in places:
        grown = cost(place) * (len(group) + 1) if padded else total + cost(place)
        if group and grown > most:
            yield group
            group, grown = [], cost(place)
        group.append(place)
        total = grown
    if group:
        yield group


def _check_finite(relaxed: Tensor) -> None:
    if not relaxed.isfinite().all():
        raise ValueError(
            "the model has no finite answer; give inputs such as it was trained on, none missing"
        )


def _png(levels: NDArray[np.uint8]) -> str:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(levels).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode("ascii")
