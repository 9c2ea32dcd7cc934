"""Data in memory: the inputs of instances beside their outputs, of any kinds.

A `Source` holds inputs, a `Target` holds outputs, and `Examples` pairs them and makes batches.  Neither knows
the other, so that any inputs go with any outputs.

===================  =========================================  ==========================================
inputs               `FeatureTable`, `Sentences`, `Pictures`    ``lossnet.inputs`` has a kind for each
outputs              `LabelTable`, `TagColumn`, `MaskStack`     ``lossnet.outputs`` has a kind for each
===================  =========================================  ==========================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data.errors import DataError
from lossnet.spaces import Batch, Weights
from lossnet.trees import first_leaf, tree_map

#: dense tensors up to this size may live on a device for the whole run
RESIDENT_LIMIT_BYTES = 4 << 30
#: row numbers, as an array or a tensor
Rows = NDArray[np.integer[Any]] | Tensor


class Dataset(Protocol):
    """Anything with a length that assembles batches from row numbers."""

    def __len__(self) -> int:
        """Return the number of instances."""

    def batch(self, indices: Tensor) -> Batch:
        """Return the instances at these rows."""


def arranged(data: Dataset, order: Tensor, batch_size: int) -> Tensor:
    """Return row numbers ``(n,)`` in the order of the data set's own method ``arranged``, if it has one."""
    own = getattr(data, "arranged", None)
    return order if own is None else own(order, batch_size)


class Column(ABC):
    """One side of a data set: the inputs, or the outputs, of some instances."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of instances."""

    @abstractmethod
    def take(self, rows: NDArray[np.int64]) -> Self:
        """Return the rows given, in that order."""

    def join(self, others: Sequence[Self]) -> Self:
        """Return these rows and those of others after them."""
        raise DataError(f"{type(self).__name__} cannot be joined; read the file as a whole")

    @abstractmethod
    def batch(self, indices: Rows) -> Any:
        """Return some rows as a tensor, or a tree of tensors, with a leading batch axis."""

    def pieces(self) -> Iterator[NDArray[Any] | str]:
        """Yield arrays and strings that together say all there is, for a content hash."""
        name = type(self).__name__
        raise DataError(f"{name} has no content hash; define `pieces` to resume and compare runs")

    def on(self, device: torch.device | str) -> Column:
        """Return the same rows as training on a device reads them fastest."""
        return self

    @property
    def dense_bytes(self) -> int:
        """Memory that all rows take as dense tensors."""
        return 0


class Source(Column):
    """The inputs of some instances."""

    def mask(self, indices: Rows) -> Tensor | None:
        """Return 1 for real units and 0 for padding, ``(batch, *units)``; None where nothing is padded."""
        return None

    @property
    def lengths(self) -> Tensor | None:
        """Number of units of each instance ``(n,)``, where they differ."""
        return None


class Target(Column):
    """The outputs of some instances."""

    def stratify_by(self) -> Any:
        """Return a matrix ``(n, labels)`` whose columns a split should share out evenly."""
        return np.zeros((len(self), 0))

    def known(self, indices: Rows) -> Tensor | None:
        """Return 1 where an output is known and 0 elsewhere, ``(batch, *event)``; None where all are."""
        return None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of any instance, so that a metric would be undefined."""
        return False


class Facts(Column):
    """What is known of each instance beside its inputs, for rules: a total, what is allowed, a date.

    Numbers ``(n,)`` or ``(n, …)``, or several of those by name: a mapping, or a data frame.  NaN is what is
    not known.

    >>> Facts({"total": [3, 5], "allowed": [[1, 0], [1, 1]]}).batch(torch.tensor([1]))
    {'total': tensor([5.]), 'allowed': tensor([[1., 1.]])}
    """

    def __init__(self, values: Any) -> None:
        named = isinstance(values, Mapping) or hasattr(values, "columns")  # a data frame; no series
        parts = {str(name): values[name] for name in values} if named else {"": values}
        try:
            self.arrays = {name: np.asarray(part, dtype=np.float32) for name, part in parts.items()}
        except (TypeError, ValueError) as error:
            raise DataError(f"facts are not numbers ({error}); give an entry for each instance") from error
        lengths = {part.shape[:1] for part in self.arrays.values()}
        if len(lengths) != 1 or () in lengths:
            shapes = {name: part.shape for name, part in self.arrays.items()}
            raise DataError(f"facts have the shapes {shapes}; each needs an entry for each instance")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def of_each(self, count: int) -> Facts:
        """Return the facts; a DataError if there are not so many, one for each input."""
        if len(self) != count:
            raise DataError(f"there are {count} inputs but {len(self)} facts; give one fact for each input")
        return self

    def _mapped(self, function: Callable[[NDArray[np.float32]], Any]) -> Any:
        mapped = {name: function(part) for name, part in self.arrays.items()}
        return mapped.get("", mapped)

    def take(self, rows: NDArray[np.int64]) -> Facts:
        return Facts(self._mapped(lambda part: part[rows]))

    def join(self, others: Sequence[Facts]) -> Facts:
        parts = [self.arrays, *(other.arrays for other in others)]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in self.arrays}
        return Facts(joined.get("", joined))

    def batch(self, indices: Rows) -> Any:
        """Return some rows as a tensor, or as tensors by name."""
        rows = row_numbers(indices, len(self))
        return self._mapped(lambda part: torch.from_numpy(part[rows]))

    def pieces(self) -> Iterator[NDArray[Any] | str]:
        for name, part in self.arrays.items():
            yield from (name, part)


class Examples:
    """Inputs of instances and, where they are known, their outputs and facts.

    Args:
        source: the inputs.
        target: the outputs; None for inputs without labels.
        masked: whether outputs have the inputs' units, such as tokens, so that batches say which are padding.
        facts: what else is known of each instance, for rules.

    >>> from lossnet.data import FeatureTable, LabelTable
    >>> examples = Examples(FeatureTable([[0.5], [2.0]]), LabelTable([[1, 0], [0, 1]]))
    >>> examples.batch(torch.tensor([1])).y
    tensor([[0., 1.]])
    >>> Examples(FeatureTable([[0.5], [2.0]])).batch(torch.tensor([1])).y is None
    True
    """

    def __init__(
        self, source: Source, target: Target | None = None, masked: bool = True, facts: Column | None = None
    ) -> None:
        for column, what in ((target, "output"), (facts, "fact")):
            if column is not None and len(source) != len(column):
                have = f"there are {len(source)} inputs but {len(column)} {what}s"
                raise DataError(f"{have}; give one {what} for each input")
        self.source = source
        self.target = target
        self.masked = masked
        self.facts = facts
        #: the numbers that instances have where they come from, ``(n,)``, if that is known
        self.numbers: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def replace(
        self, source: Source | None = None, target: Target | None = None, masked: bool | None = None
    ) -> Self:
        """Return the same instances with another source or target."""
        new = object.__new__(type(self))
        source = self.source if source is None else source  # which may be empty, and then is false
        target = self.target if target is None else target
        Examples.__init__(new, source, target, self.masked if masked is None else masked, self.facts)
        new.numbers = self.numbers
        return new

    def with_facts(self, facts: Column | None) -> Self:
        """Return the same instances with other facts."""
        new = copy(self)
        Examples.__init__(new, self.source, self.target, self.masked, facts)
        new.numbers = self.numbers
        return new

    def numbered(self, numbers: NDArray[np.int64] | None) -> Self:
        """Return the same instances with the numbers that they have where they come from, for messages."""
        new = copy(self)
        new.numbers = numbers
        return new

    def without_target(self) -> Examples:
        """Return the same instances without their outputs."""
        return Examples(self.source, None, self.masked, self.facts).numbered(self.numbers)

    def take(self, indices: Any) -> Self:
        """Return the rows ``indices``, in that order."""
        rows = row_numbers(indices, len(self))
        new = copy(self)
        columns = (None if one is None else one.take(rows) for one in (self.source, self.target, self.facts))
        new.source, new.target, new.facts = columns  # type: ignore[assignment]
        new.numbers = None if self.numbers is None else self.numbers[rows]
        return new

    def batch(self, indices: Rows) -> Batch:
        """Return the rows ``indices`` as a batch."""
        y = None if self.target is None else self.target.batch(indices)
        mask = self.source.mask(indices) if self.masked else None
        facts = None if self.facts is None else self.facts.batch(indices)
        known = None if self.target is None else self.target.known(indices)
        rows = torch.as_tensor(indices)
        return Batch(self.source.batch(indices), y, mask, rows=rows, facts=facts, known=known)

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        """Return row numbers in an order by which batches have instances of like length: `by_length`."""
        lengths = self.source.lengths
        return order if lengths is None else by_length(order, lengths, batch_size)

    def on(self, device: torch.device | str, limit_bytes: int = RESIDENT_LIMIT_BYTES) -> Examples:
        """Return the same rows as training on ``device`` reads them fastest.

        On a GPU their tensors live there for the whole run, unless that takes more than ``limit_bytes``:
        then they stay where they are, and each batch is moved.

        >>> from lossnet.data import MultiLabelData
        >>> data = MultiLabelData.from_arrays([[0.5], [2.0]], [[1], [0]])
        >>> type(data.on("meta").source).__name__, type(data.on("meta", limit_bytes=1).source).__name__
        ('Resident', 'FeatureTable')
        """
        columns = [column for column in (self.source, self.target) if column is not None]
        if torch.device(device).type != "cpu" and sum(one.dense_bytes for one in columns) > limit_bytes:
            return self
        target = None if self.target is None else self.target.on(device)
        source: Any = self.source.on(device)
        return Examples(source, target, self.masked, self.facts)  # type: ignore[arg-type]


class Resident(Source, Target):
    """A tensor with one row per instance that lives on a device.

    >>> Resident(torch.eye(2)).batch(torch.tensor([0]))
    tensor([[1., 0.]])
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.int64]) -> Resident:
        return Resident(self.batch(rows))

    def batch(self, indices: Rows) -> Tensor:
        rows = torch.as_tensor(indices).to(self.values.device, non_blocking=True)
        return self.values.index_select(0, rows)


class Weighted:
    """Any data set with the weights ``(n,)`` of its instances in losses; they should average 1.

    A mapping has weights for each term of the task loss; see `lossnet.spaces.Batch`.

    >>> from lossnet.data import MultiLabelData
    >>> data = MultiLabelData.from_arrays([[0.5], [2.0]], [[1], [0]])
    >>> Weighted(data, torch.tensor([0.5, 1.5])).batch(torch.tensor([1])).weight
    tensor([1.5000])
    """

    def __init__(self, data: Dataset, weights: Weights) -> None:
        self.data, self.weights = data, weights

    def __len__(self) -> int:
        return len(self.data)

    @property
    def target(self) -> Target | None:
        """The outputs, where the data set can tell them apart from inputs."""
        return getattr(self.data, "target", None)

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        """Return row numbers as the data set would have them."""
        return arranged(self.data, order, batch_size)

    def batch(self, indices: Tensor) -> Batch:
        """Return the rows ``indices`` with their weights."""
        batch = self.data.batch(indices)
        device = first_leaf(batch.x).device

        def chosen(weights: Tensor) -> Tensor:
            own = weights.to(indices.device).index_select(0, indices)
            return own.to(device, non_blocking=True)

        return batch._replace(weight=tree_map(chosen, self.weights))


def concatenated(parts: Sequence[Examples]) -> Examples:
    """Return instances of several parts as one data set.

    >>> from lossnet.data import MultiLabelData
    >>> data = MultiLabelData.from_arrays([[0.5], [2.0]], [[1], [0]])
    >>> len(concatenated([data, data]))
    4
    """
    first, *others = parts
    if not others:
        return first
    source = first.source.join([part.source for part in others])
    targets = [part.target for part in parts if part.target is not None]
    facts = [part.facts for part in parts if part.facts is not None]
    known = facts[0].join(facts[1:]) if len(facts) == len(parts) else None
    if len(targets) < len(parts):
        return Examples(source, None, first.masked, known)
    bare = first.with_facts(None)
    return bare.replace(source, targets[0].join(targets[1:])).with_facts(known)


def row_numbers(indices: Any, count: int) -> NDArray[np.int64]:
    """Return indices of any kind as row numbers ``(b,)`` of data with ``count`` rows, checked."""
    if isinstance(indices, Tensor):
        indices = indices.detach().cpu().numpy()
    rows = np.asarray(indices)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise TypeError(f"row indices must be a list of whole numbers, got {indices!r}")
    rows = rows.astype(np.int64, copy=not rows.flags.writeable)
    # A negative number would silently pick the wrong slice of the CSR arrays.
    if rows.size and (rows.min() < 0 or rows.max() >= count):
        raise IndexError(f"row indices must be from 0 to {count - 1}")
    return rows


def by_length(order: Tensor, lengths: Tensor, batch_size: int, pool: int = 16) -> Tensor:
    """Return row numbers ``(n,)`` in an order by which batches have instances of like length.

    Instances are sorted within ``pool`` batches' worth of the order, and full batches then take each other's
    places, so that chance decides as before which instances meet and which batch comes when.

    >>> by_length(torch.tensor([3, 0, 2, 1]), torch.tensor([5, 1, 9, 2]), batch_size=2)
    tensor([0, 2, 1, 3])
    """
    sorted_pools = [rows[lengths[rows].argsort(stable=True)] for rows in order.split(pool * batch_size)]
    batches = torch.cat(sorted_pools).split(batch_size)
    full = [rows for rows in batches if len(rows) == batch_size]
    rest = batches[len(full) :]
    if not full:
        return torch.cat(rest)
    # A permutation that the order itself decides: by the first row of what was cut from it.
    turns = torch.stack([rows[0] for rows in order.split(batch_size)[: len(full)]]).argsort()
    return torch.cat([*(full[turn] for turn in turns), *rest])
