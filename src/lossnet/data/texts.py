"""Texts in memory, beside columns of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lossnet.data.errors import DataError
from lossnet.data.tables import FeatureTable, joined

#: the column of texts that have no name
TEXT = "text"


class TextTable(FeatureTable):
    """Texts in one column or several and, beside them, a table of numbers, which may have no column.

    >>> table = TextTable(["A good film.", "Too long."])
    >>> len(table), table.columns, table.width
    (2, ('text',), 0)
    >>> TextTable({"title": ["Heat"], "plot": ["A thief is hunted."]}).joined()
    ['Heat\\nA thief is hunted.']
    """

    def __init__(
        self, texts: Sequence[str] | Mapping[str, Sequence[str]], numbers: FeatureTable | None = None
    ) -> None:
        named = texts if isinstance(texts, Mapping) else {TEXT: texts}
        self.texts = {str(name): _checked(name, cells) for name, cells in named.items()}
        if not self.texts:
            raise DataError("there is no column of texts; name one")
        sizes = {len(cells) for cells in self.texts.values()}
        if numbers is None:
            numbers = FeatureTable(np.empty((max(sizes), 0), dtype=np.float32))
        if sizes != {len(numbers)}:
            raise DataError(
                f"columns have different lengths ({sizes | {len(numbers)}}); give a text for each row"
            )
        super().__init__(numbers.matrix, numbers.names)
        self.origin = numbers.origin

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of texts."""
        return tuple(self.texts)

    def joined(self) -> list[str]:
        """Return the text of each row, that of several columns with line breaks between."""
        return ["\n".join(filter(None, cells)) for cells in zip(*self.texts.values(), strict=True)]

    def numbers(self) -> FeatureTable:
        """Return the columns of numbers alone."""
        return FeatureTable(self.matrix, self.names)

    def take(self, rows: NDArray[np.int64]) -> Self:
        texts = {name: [cells[row] for row in rows] for name, cells in self.texts.items()}
        return type(self)(texts, self.numbers().take(rows))

    def join(self, others: Sequence[Self]) -> Self:
        tables = [self, *others]
        texts = {name: [text for table in tables for text in table.texts[name]] for name in self.texts}
        return type(self)(texts, self.numbers().join([other.numbers() for other in others]))

    def pieces(self) -> Iterator[NDArray[Any] | str]:
        yield from super().pieces()
        for name, cells in self.texts.items():
            yield name
            yield joined(cells)


def _checked(name: object, cells: Iterable[Any]) -> tuple[str, ...]:
    """Return cells as strings that can be written as UTF-8; None, or NaN, is an empty text."""
    if isinstance(cells, str):
        raise DataError("inputs are a list of texts, not one text; give [text]")
    texts = []
    for row, cell in enumerate(cells, start=1):
        if cell is None or (isinstance(cell, float) and cell != cell):
            cell = ""
        if not isinstance(cell, str):
            raise DataError(f"row {row} of {name!r} is a {type(cell).__name__}; give a text")
        # JSON may have halves of characters, which no file and no tokenizer takes.
        texts.append(str(cell) if cell.isascii() else cell.encode("utf-8", "replace").decode("utf-8"))
    return tuple(texts)
