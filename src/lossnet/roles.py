"""Arguments of predicates, counted as CoNLL-2005's scorer counts them, and what is odd about them.

Tags mark the arguments of one predicate as spans, whose kinds are roles: ``A0`` to ``A5`` (or ``ARG0`` …) are
*core* roles, ``C-A1`` continues an earlier ``A1``, and ``R-A1`` is a pronoun that refers to the ``A1``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lossnet.spans import Span, find_spans

__all__ = ["Argument", "count_roles", "find_arguments", "is_core", "oddities"]

_CORE = re.compile(r"A(?:RG)?[0-5]")


class Argument(NamedTuple):
    """A role and the pieces of text that have it: from each start up to, but without, its end."""

    role: str
    pieces: tuple[tuple[int, int], ...]


def is_core(role: str) -> bool:
    """Whether a role is one that a predicate has at most once, ``A0`` to ``A5``.

    >>> is_core("ARG1"), is_core("ARGM-TMP"), is_core("R-A1")
    (True, False, False)
    """
    return _CORE.fullmatch(role) is not None


def find_arguments(tags: Sequence[str]) -> list[Argument]:
    """Return the arguments that the tags of a sentence mark for its predicate.

    ``C-X`` is a further piece of the nearest ``X`` before it; without any, it is an argument of its own.

    >>> find_arguments(["B-A1", "O", "B-C-A1", "I-C-A1"])
    [Argument(role='A1', pieces=((0, 1), (2, 4)))]
    """
    found: list[Argument] = []
    for start, end, kind in find_spans(tags):
        base = kind.removeprefix("C-")
        places = [place for place, one in enumerate(found) if one.role == base and base != kind]
        if places:
            last = found[places[-1]]
            found[places[-1]] = last._replace(pieces=(*last.pieces, (start, end)))
        else:
            found.append(Argument(kind, ((start, end),)))
    return found


def oddities(spans: Sequence[Span]) -> dict[str, bool]:
    """Return what is odd about the roles of one predicate.

    ``repeated``: a core role has two spans; ``continuations``: there is a ``C-X`` without an ``X`` before it;
    ``references``: there is an ``R-X`` without any ``X``.

    >>> oddities(find_spans(["B-A1", "B-A1", "B-R-A0"]))
    {'repeated': True, 'continuations': False, 'references': True}
    """
    kinds = [span.kind for span in spans]
    core = Counter(filter(is_core, kinds))
    return {
        "repeated": any(count > 1 for count in core.values()),
        "continuations": any(
            kind.startswith("C-") and kind[2:] not in kinds[:place] for place, kind in enumerate(kinds)
        ),
        "references": any(kind.startswith("R-") and kind[2:] not in kinds for kind in kinds),
    }


def count_roles(predicted: Iterable[Sequence[str]], truth: Iterable[Sequence[str]]) -> Counter[str]:
    """Return counts of arguments and of predicates, one for each sequence of tags; those of parts add up.

    Of arguments, how many are ``right`` (role and all pieces), ``guessed`` and ``real``; of ``predicates``,
    how many are right as a ``whole``, and of how many the predicted roles are odd, see `oddities`.

    >>> counts = count_roles([["B-A0", "B-A1", "B-A1"]], [["B-A0", "O", "B-A1"]])
    >>> counts["right"], counts["guessed"], counts["real"], counts["repeated"]
    (2, 3, 2, 1)
    """
    counts = Counter[str]()
    for tags, true_tags in zip(predicted, truth, strict=True):
        if len(tags) != len(true_tags):
            raise ValueError(f"{len(tags)} predicted tags for a sentence of {len(true_tags)} tokens")
        guessed, real = set(find_arguments(tags)), set(find_arguments(true_tags))
        counts.update(right=len(guessed & real), guessed=len(guessed), real=len(real))
        counts.update(predicates=1, whole=guessed == real, **oddities(find_spans(tags)))
    return counts
