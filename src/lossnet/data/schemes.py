"""Schemes by which tags mark spans: IOB1, IOB2 and BIOES, and conversion between them.

==========  ===============================================================  =====================
scheme      prefixes                                                         ``[Ann Lee] [Bo] ran``
==========  ===============================================================  =====================
``IOB1``    ``I``; ``B`` only right after another span of the same kind       ``I I B O``
``IOB2``    ``B`` on a span's first token, ``I`` on the others                ``B I B O``
``BIOES``   ``B``, ``I`` … and ``E`` on the last; ``S`` on a single token     ``B E S O``
==========  ===============================================================  =====================

Each scheme writes given spans in one way only, so tags are valid if their spans are written just so.  IOB1
is read more freely, as ``conlleval`` does: any ``B`` begins a span, even where ``I`` would do, as twice in
CoNLL-2003.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from lossnet.data.errors import DataError
from lossnet.spans import Span, find_spans
from lossnet.suggest import did_you_mean

_LIKE_SPANS = re.compile(r"O|[BIES]-.+")


def mark(spans: Iterable[Span], length: int, scheme: str) -> tuple[str, ...]:
    """Return the tags of a sentence of ``length`` tokens with these spans.

    >>> mark([Span(0, 2, "PER"), Span(2, 3, "PER")], 4, "IOB1")
    ('I-PER', 'I-PER', 'B-PER', 'O')
    """
    if scheme not in _PREFIXES:
        raise ValueError(f"no scheme is called {scheme!r}; {did_you_mean(scheme, _PREFIXES, 'known are')}")
    tags = ["O"] * length
    for start, end, kind in sorted(spans):
        follows = start > 0 and tags[start - 1].partition("-")[2] == kind
        for place in range(start, end):
            prefix = _PREFIXES[scheme](place == start, place == end - 1, follows)
            tags[place] = f"{prefix}-{kind}"
    return tuple(tags)


def read_spans(tags: Sequence[str], scheme: str) -> list[Span]:
    """Return the spans of a sentence that is tagged by a scheme; `DataError` if it is not.

    >>> read_spans(["O", "B-LOC", "E-LOC"], "BIOES")
    [Span(start=1, end=3, kind='LOC')]
    """
    spans = find_spans(tags)
    proper = mark(spans, len(tags), scheme)
    for place, (tag, right) in enumerate(zip(tags, proper, strict=True)):
        if tag != right and not (scheme == "IOB1" and tag[0] == "B"):
            around = " ".join(tags[max(place - 1, 0) : place + 2])
            what = f"{tag!r} of token {place + 1} is wrong in {scheme} (… {around} …)"
            raise DataError(f"{what}; a span like that would have {right!r} there")
    return spans


def convert(tags: Sequence[str], source: str, target: str) -> tuple[str, ...]:
    """Return the same spans in another scheme; nothing is lost.

    >>> convert(["I-PER", "I-PER", "B-PER", "O"], "IOB1", "BIOES")
    ('B-PER', 'E-PER', 'S-PER', 'O')
    """
    return mark(read_spans(tags, source), len(tags), target)


def detect(sentences: Iterable[Sequence[str]]) -> str | None:
    """Return the scheme by which sentences are tagged, None if their tags mark no spans.

    Sentences are iterated twice.

    >>> detect([["O", "B-LOC", "I-LOC"], ["B-PER"]]), detect([["O", "I-PER"]]), detect([["D", "N", "V"]])
    ('IOB2', 'IOB1', None)
    """
    used = {tag for tags in sentences for tag in tags}
    if used <= {"O"} or not all(map(_LIKE_SPANS.fullmatch, used)):
        return None
    scheme = "BIOES" if any(tag[0] in "ES" for tag in used) else "IOB2"
    for number, tags in enumerate(sentences, start=1):
        try:
            read_spans(tags, scheme)
        except DataError as error:
            if scheme == "IOB2":
                return "IOB1"  # which can read any B and I
            raise DataError(f"sentence {number}: {error.message}") from None
    return scheme


#: a tag's prefix: whether it is the first and the last of its span, and whether a span of that kind is before
_PREFIXES: dict[str, Callable[[bool, bool, bool], str]] = {
    "IOB1": lambda first, last, follows: "B" if first and follows else "I",
    "IOB2": lambda first, last, follows: "B" if first else "I",
    "BIOES": lambda first, last, follows: ("S" if last else "B") if first else ("E" if last else "I"),
}
#: the schemes by name
SCHEMES = tuple(_PREFIXES)
