"""HTML elements and tables, in which every string is escaped unless it is markup already."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

#: elements without content or end tag
VOID = frozenset({"img", "input", "meta", "br"})


class Markup(str):
    """Text that is HTML already; any other string is escaped where it meets one."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Markup:
    """Return an element; attributes that are None or False are left out, ``_`` in their names means ``-``.

    >>> tag("p", "a < b", tag("br"), class_="note", data_value=3)
    '<p class="note" data-value="3">a &lt; b<br></p>'
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(key if value is True else f'{key}="{escape(str(value))}"')
    start = f"<{' '.join(parts)}>"
    return Markup(start if name in VOID else f"{start}{join(*children)}</{name}>")


def join(*parts: str | None) -> Markup:
    """Return parts side by side, without those that are None.

    >>> join("<", tag("b", "x"), None)
    '&lt;<b>x</b>'
    """
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts if part))


class Cell(NamedTuple):
    """A cell's text, the value that it sorts by (None sorts last), and its class."""

    text: str
    value: float | str | None = None
    kind: str = ""


def table(heading: Sequence[str], rows: Sequence[Sequence[Cell]], kind: str | None = None) -> Markup:
    """Return a table that scrolls by itself where it is too wide for the page.

    One of the ``kind`` "texts" has its cells begin at the left, as numbers' do not.
    """
    head = [tag("th", name, scope="col") for name in heading]
    return tag("div", tag("table", *_content(head, rows), class_=kind), class_="scroll")


def sortable(
    name: str,
    heading: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    prompt: str,
    hide_on_phone: Sequence[int] = (),
) -> Markup:
    """Return a table whose columns sort at a click and whose rows are filtered by their first cell."""
    wide = ["wide" if column in hide_on_phone else "" for column in range(len(heading))]
    head = [
        tag("th", tag("button", title, type="button"), scope="col", class_=kind or None, aria_sort="none")
        for title, kind in zip(heading, wide, strict=True)
    ]
    rows = [
        [cell._replace(kind=f"{cell.kind} {kind}".strip()) for cell, kind in zip(row, wide, strict=True)]
        for row in rows
    ]
    search = tag("input", type="search", placeholder=prompt, aria_label=prompt, data_filters=name)
    count = tag("span", f"{len(rows)} of {len(rows)}", class_="note", aria_live="polite")
    content = tag("table", *_content(head, rows), id=name, class_="sortable")
    return join(tag("p", search, count, class_="filter"), tag("div", content, class_="scroll tall"))


def _content(head: Sequence[Markup], rows: Sequence[Sequence[Cell]]) -> tuple[Markup, Markup]:
    body = [
        tag("tr", *(tag("td", cell.text, data_value=cell.value, class_=cell.kind or None) for cell in row))
        for row in rows
    ]
    return tag("thead", tag("tr", *head)), tag("tbody", *body)


def missing(text: str) -> Markup:
    """Return a line in place of something that cannot be shown."""
    return tag("p", text, class_="missing")


def with_sign(value: float, form: str = ".2f") -> str:
    """Return a number with its sign, a dash for NaN.

    >>> with_sign(0.5), with_sign(-12.0, ".1f"), with_sign(123.4, ".2g"), with_sign(float("nan"))
    ('+0.50', '−12.0', '+1.2e+02', '–')
    """
    return "–" if math.isnan(value) else f"{value:+{form}}".replace("-", "−")
