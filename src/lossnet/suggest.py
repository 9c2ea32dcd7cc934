"""What to say of a name that does not exist: the ones that are like it, and those there are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["close_names", "did_you_mean"]

#: known names that an error lists, at most
SHOWN = 60


def close_names(name: object, known: Iterable[str], most: int = 2) -> list[str]:
    """Return the known names that are most like a name; case, ``-``, ``_`` and spaces do not count.

    >>> close_names("Soft_F1", ["none", "soft-f1", "dice"])
    ['soft-f1']
    >>> close_names("cross", ["seal", "cross-entropy"])
    ['cross-entropy']
    >>> close_names("lr", ["task_lr", "energy_lr", "samples"])
    ['task_lr', 'energy_lr']
    >>> close_names("banana", ["seal", "cross-entropy"])
    []
    """
    # What is no string, or a very long one, is like nothing.
    wanted = _plain(name[:80]) if isinstance(name, str) else ""
    plain = {one: _plain(one) for one in known}
    same = [one for one, text in plain.items() if text == wanted]
    begun = [one for one, text in plain.items() if len(wanted) > 2 and text.startswith(wanted)]
    begun += [one for one in plain if wanted in _WORDS.split(one.lower())]
    close = difflib.get_close_matches(wanted, list(plain.values()), n=most)
    near = [one for text in close for one in plain if plain[one] == text]
    return list(dict.fromkeys(same or [*near, *begun]))[:most]


def did_you_mean(name: object, known: Iterable[str], there_are: str = "there are") -> str:
    """Return what an error says after "there is no X": names that are close, then all that there are.

    >>> did_you_mean("margni", ["nce", "margin"])
    'did you mean margin? there are nce, margin'
    >>> did_you_mean("banana", ["nce", "margin"], "it takes")
    'it takes nce, margin'
    """
    known = list(known)
    close = close_names(name, known)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    if not known:
        return f"{there_are} none"
    return f"{hint}{there_are} {', '.join(known[:SHOWN])}{', …' if len(known) > SHOWN else ''}"


_WORDS = re.compile(r"[-_ ]+")


def _plain(name: str) -> str:
    return _WORDS.sub("", name.lower())
