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
