"""HTML in which every string is escaped unless it is markup already."""

from __future__ import annotations

from html import escape

__all__ = ["Markup", "join", "tag"]

#: elements without content or end tag
VOID = frozenset({"img", "input", "meta", "br"})


class Markup(str):
    """Text that is HTML already; any other string is escaped where it meets one."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Markup:
    """An element.  None and False leave an attribute or a child out, and ``_`` in a name stands for ``-``.

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
    """Parts side by side.

    >>> join("<", tag("b", "x"), None)
    '&lt;<b>x</b>'
    """
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts if part))
