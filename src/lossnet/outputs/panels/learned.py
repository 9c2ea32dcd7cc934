"""What an energy learned of pairs, beside what the data have: of labels, or of neighbouring tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from lossnet.analysis import Pair
from lossnet.report.draw import heat_map
from lossnet.report.markup import Markup, join, tag
from lossnet.report.tables import Cell, table, two_digits, with_sign

__all__ = ["heat_maps", "pair_table"]


def heat_maps(maps: Mapping[str, NDArray[Any]], names: Sequence[str], note: str) -> Markup:
    """Return matrices ``(n, n)`` side by side under their titles; no names if there are too many."""
    figures = [
        tag("figure", tag("figcaption", title), heat_map(matrix, title, names))
        for title, matrix in maps.items()
    ]
    return join(tag("div", *figures, class_="charts"), tag("p", note, class_="note"))


def pair_table(
    title: str, pairs: Sequence[Pair], names: Sequence[str], between: str, heading: Sequence[str]
) -> Markup:
    """Return pairs by their names, what was learned of them, and what the data have, under a title."""
    rows = [
        [
            Cell(f"{names[pair.first]} {between} {names[pair.second]}"),
            Cell(two_digits(pair.learned)),
            Cell(with_sign(pair.association)),
            Cell(str(pair.together)),
        ]
        for pair in pairs
    ]
    return tag("div", tag("h3", title), table(heading, rows) if rows else tag("p", "No pair."))
