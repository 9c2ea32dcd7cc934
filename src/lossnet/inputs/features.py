"""Feature vectors: tables of numbers, dense or sparse, with missing values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from lossnet.data import DataError, FeatureTable, Preprocessor, Source, stream_inputs
from lossnet.data.readers import frame_columns, named_rows
from lossnet.data.readers.dates import date_features, date_names, read_date
from lossnet.data.readers.text import Like, Unknown, Wanted, shortened
from lossnet.data.stored import stored_strings
from lossnet.inputs.base import Arrays, FilePath, Fitting, Input, Level, Part, Question, Role, State
from lossnet.nets import MLP, MarkedMLP
from lossnet.settings import Settings

if TYPE_CHECKING:
    from lossnet.report.markup import Markup

_NUMBERS = {int, float, type(None)}
#: inputs of a sparse row that a report names, and values of a category that a page does
_SHOWN = 12
#: days from 1970-01-01 to the years 1 and 9999
_DAYS = -719162, 2932896


@dataclass(frozen=True)
class Features(Input[FeatureTable, NDArray[np.float32]]):
    """Feature vectors: the names of their columns, and the preprocessing fitted on training data, if any.

    ``unknown`` says whether a value that a column of text did not have in training, or a date that cannot be
    read, is ``"missing"``, with a warning, or an ``"error"``.  It is no part of a model folder.

    >>> features = Features(("minutes", "country=fr", "country=it"))
    >>> features.read([{"minutes": 90, "country": "it"}]).matrix
    array([[90.,  0.,  1.]], dtype=float32)
    """

    kind = "features"
    summary = "feature vectors"
    source = FeatureTable
    levels: ClassVar[tuple[Level, ...]] = ("instance",)
    # Many columns are overfitted less by one layer with much dropout.
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "": {},
        "shallow": {"task_layers": 1, "task_dropout": 0.5},
    }

    names: tuple[str, ...]
    preprocessor: Preprocessor | None = None
    unknown: Unknown = "missing"

    @classmethod
    def of_size(cls, width: int) -> Features:
        """Return vectors of that width whose columns have numbers for names."""
        return cls(tuple(f"feature_{index}" for index in range(width)))

    @classmethod
    def fit(cls, parts: Sequence[FeatureTable], fitting: Fitting) -> Features:
        return cls(parts[0].names, Preprocessor.fit(parts[0], fitting.standardise))

    def prepare(self, source: FeatureTable) -> FeatureTable:
        return source if self.preprocessor is None else self.preprocessor.apply(source)

    @classmethod
    def collect(cls, x: Any) -> FeatureTable:
        return FeatureTable(x)

    def read(self, x: Any) -> FeatureTable:
        """Return rows given as numbers in the order of our columns, as a data frame or as a list of mappings.

        Named rows may also have the text that columns such as ``country=fr`` were made of.
        """
        if isinstance(x, str | PathLike):
            raise DataError(f"inputs are rows of numbers, not {x!r}; lossnet.data.read_inputs reads a file")
        rows = self._rows(x)
        if not sparse.issparse(rows):
            try:
                rows = np.asarray(rows)
            except ValueError:
                what = f"rows have different lengths; each needs {len(self.names)} values"
                raise DataError(what) from None
        if rows.ndim != 2 or rows.shape[1] != len(self.names):
            wanted = f"(rows, {len(self.names)}), a column for each of model.feature_names"
            raise DataError(f"inputs have the shape {rows.shape}; they need {wanted}")
        return FeatureTable(rows, self.names)

    def _rows(self, x: Any) -> Any:
        names = list(self.names)
        if hasattr(x, "isna") and all(isinstance(name, str) for name in x.columns):
            if set(names) <= set(x.columns):
                return x[names].to_numpy(dtype=np.float32, na_value=np.nan)
            return named_rows(frame_columns(x), names, self.unknown).x
        if isinstance(x, Sequence) and len(x) and all(isinstance(row, Mapping) for row in x):
            keys = dict.fromkeys(key for row in x for key in row)
            columns = {key: [row.get(key) for row in x] for key in keys}
            return named_rows(columns, names, self.unknown).x
        return x

    @classmethod
    def accepts(cls, x: Any) -> bool:
        if sparse.issparse(x) or hasattr(x, "columns"):
            return True
        try:
            return bool(np.asarray(x).ndim == 2 and np.asarray(x).dtype.kind in "biuf")
        except ValueError:  # rows of different lengths
            return False

    def matches(self, source: Source) -> bool:
        return isinstance(source, FeatureTable) and source.names == self.names

    @classmethod
    def describe(cls, parts: Sequence[FeatureTable]) -> dict[str, Any]:
        return {"inputs": parts[0].width}

    @property
    def width(self) -> int:
        return len(self.names)

    def network(
        self, settings: Settings, level: Level, role: Role = "task", outputs: int | None = None
    ) -> MLP:
        hidden, layers = getattr(settings, f"{role}_hidden"), getattr(settings, f"{role}_layers")
        dropout, extra = (
            getattr(settings, f"{role}_dropout"),
            (settings.last_layer_dropout, settings.output_bias),
        )
        return MLP(len(self.names), hidden, layers, outputs, dropout, *extra)

    def marked_network(self, settings: Settings, level: Level, marks: int, outputs: int) -> MarkedMLP:
        return MarkedMLP(marks, self.network(settings, level, "task", outputs))

    def state(self) -> State:
        arrays = {} if self.preprocessor is None else self.preprocessor.state()
        return {"features": list(self.names)}, dict(arrays)

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Features:
        preprocessor = Preprocessor.from_state(arrays) if arrays else None
        names = stored_strings(content["features"], "features", least=1)
        if preprocessor is not None and len(preprocessor.impute) != len(names):
            raise ValueError("preprocessing and features differ in number")
        return cls(names, preprocessor)

    def streams(self, path: FilePath) -> bool:
        return Path(path).is_file() or Path(path).is_fifo()

    def stream(
        self,
        path: FilePath,
        names: Sequence[str] = (),
        labelled: bool = False,
        encoding: str | None = None,
    ) -> Iterator[Part]:
        parts = stream_inputs(path, self.names, names, encoding=encoding, unknown=self.unknown)
        yield from (Part(part) for part in parts)

    def treating(self, unknown: Unknown) -> Features:
        return replace(self, unknown=Like((), (), unknown).unknown)

    question = Question(
        {
            "oneOf": [
                {"type": "array", "items": {"type": ["number", "null"]}},
                {"type": "object", "additionalProperties": {"type": ["number", "string", "null"]}},
            ]
        },
        most=1 << 16,
        together=512,
        unit="rows",
    )

    def parse(self, given: Any) -> NDArray[np.float32]:
        """Return a row: an array of numbers, or an object with every input of the model.

        An object has a number for each name; for the columns ``country=fr``, ``country=it`` of a category
        also ``"country": "it"``, and for those of a date ``"released": "2001-03-04"``.  ``null`` is a missing
        value, and other names are passed over.
        """
        values = self._ordered(given) if isinstance(given, dict) else given
        if not isinstance(values, list):
            raise ValueError("a row is an array of numbers, or an object from names to values")
        if len(values) != len(self.names):
            raise ValueError(f"{len(values)} values for {len(self.names)} inputs")
        if not set(map(type, values)) <= _NUMBERS:
            odd = next(value for value in values if type(value) not in _NUMBERS)
            raise ValueError(f"{shortened(odd)} is not a number")
        try:
            with np.errstate(over="ignore"):
                row = np.array(values, dtype=np.float32)
        except OverflowError:  # an integer
            row = np.array([np.inf], dtype=np.float32)
        if np.isinf(row).any():
            raise ValueError("a number is too large for float32")
        return row

    def _ordered(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the values of an object in the order of our columns."""
        if self.unknown == "error":
            for name, value in self.unseen(given):
                raise ValueError(f"{shortened(value)} is no value of {shortened(name)} that training had")
        like, values, ignored = self._like, dict[str, Any](), set[str]()
        for name, value in given.items():
            if name in like.features:
                values[name] = value
            elif name in like.dates:
                names, (row,) = date_names(name, like.dates[name]), self._date_features(name, value)
                values |= dict(zip(names, row.tolist(), strict=True))
            elif (known := like.values(name)) is not None:
                text = _as_text(name, value)
                for other in known:
                    values[f"{name}={other}"] = float(text == other) if text in known else None
            else:
                ignored.add(name)
        if lacking := replace(like, ignored=ignored).lacks(values):
            raise ValueError(f"{lacking}; null is a missing value")
        return [values[name] for name in self.names]

    def wanted(self) -> list[tuple[str, str]]:
        return [(name, _holding(column)) for name, column in self._like.columns.items()]

    def sample(self) -> Any:
        """Return means of training for numbers and dates, and the most frequent values of categories."""
        means = np.zeros(len(self.names)) if self.preprocessor is None else self.preprocessor.impute
        typical = dict(zip(self.names, means.tolist(), strict=True))
        columns = self._like.columns
        if len(columns) > _SHOWN and len(columns) == len(self.names):
            return [_rounded(value) for value in means.tolist()]
        return {name: _typical(name, column, typical) for name, column in columns.items()}

    def _date_features(self, name: str, value: Any) -> NDArray[np.float32]:
        return date_features([read_date(_as_text(name, value))], self._like.dates[name])

    def unseen(self, given: Any) -> list[tuple[str, Any]]:
        like, found = self._like, []
        for name, value in given.items() if isinstance(given, dict) else ():
            if value is None or name in like.features:
                continue
            known = like.values(name)
            if name in like.dates:
                strange = read_date(_as_text(name, value)) is None
            else:
                strange = known is not None and _as_text(name, value) not in known
            if strange:
                found.append((name, value))
        return found

    @cached_property
    def _like(self) -> Like:
        return Like(self.names, ())

    exported_name = "features"

    def exported(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        # In float64 until the network's own arithmetic begins, as the preprocessor does it.
        arrays = {name: torch.from_numpy(array) for name, array in self.state()[1].items()}
        if "impute" in arrays:
            x = torch.where(torch.isnan(x), arrays["impute"], x.double())
        if "mean" in arrays:
            x = (x - arrays["mean"]) / arrays["scale"]
        return x.float(), None

    def examples(self, settings: Settings, level: Level, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        random, arrays = np.random.default_rng(seed), self.state()[1]
        x = random.normal(size=(batch, len(self.names)))
        if "mean" in arrays:
            x = x * arrays["scale"] + arrays["mean"]
        if "impute" in arrays:
            x[random.random(x.shape) < 0.1] = np.nan
        yield x.astype(np.float32)

    def picture(self, source: Source, row: int) -> Markup | None:
        """Return pixels of columns called ``pixel_ROW_COLUMN``, or names of a sparse row's largest inputs."""
        from lossnet.report.draw import draw_pixels, pixel_places
        from lossnet.report.markup import tag

        assert isinstance(source, FeatureTable)
        x, places = source.batch(np.array([row]))[0], pixel_places(self.names)
        if places is not None:
            return draw_pixels(places, x.tolist())
        if not source.is_sparse:
            return None
        largest = torch.argsort(x, descending=True, stable=True)[:_SHOWN].tolist()
        return tag("p", ", ".join(self.names[column] for column in largest if x[column] > 0), class_="note")


def _holding(column: Wanted) -> str:
    """Return what a column holds, in a few words."""
    if column.kind == "category":
        return ", ".join(column.values[:_SHOWN]) + ", …" * (len(column.values) > _SHOWN)
    examples = {"date": ", such as 2001-03-04", "date and time": ", such as 2001-03-04T10:30"}
    return column.kind + examples.get(column.kind, "")


def _typical(name: str, column: Wanted, means: Mapping[str, float]) -> Any:
    """Return a value of a column near the means of its features."""
    if column.kind == "number":
        return _rounded(means[name])
    if column.kind == "category":
        return max(column.values, key=lambda value: means[f"{name}={value}"])
    days = min(max(round(means[f"{name}:days"]), _DAYS[0]), _DAYS[1])
    day = (datetime(1970, 1, 1) + timedelta(days=days)).isoformat("T", "minutes")
    return day if column.kind == "date and time" else day.partition("T")[0]


def _rounded(value: float) -> float | int:
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def _as_text(name: str, value: Any) -> str | None:
    """Return a value of a category or date as a table's cell would have it."""
    if value is None or isinstance(value, str):
        return value
    if type(value) not in (int, float):
        raise ValueError(f"{shortened(value)} in {shortened(name)} is neither text nor a number")
    return f"{value:g}" if isinstance(value, float) else str(value)
