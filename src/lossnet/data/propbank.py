"""Sentences whose predicates have roles, as PropBank writes them: a column for each predicate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples
from lossnet.data.readers.columns import Block, stream_columns
from lossnet.data.sentences import MARK, NO_MARK, PREDICATE, Sentences, TagColumn, Texts
from lossnet.data.splits import Split
from lossnet.energies import Rule, bio, continuations, references, unique_core_roles
from lossnet.roles import is_core

#: the columns before those of roles: number, word, part of speech, piece of the tree, lemma, roleset
COLUMNS = 6
#: what a token without a roleset has in its place
_NONE = "-"

_CELL = re.compile(r"(?:\(([^()*]+))?\*(\)?)")


class PredicateSentences(Sentences):
    """Sentences with a predicate each: a sentence comes once for each of its predicates.

    The column ``predicate`` is ``V`` at the predicate's token and ``-`` elsewhere.

    >>> sentences = PredicateSentences.of([("She", "gave", "up")], [[1, 2]])
    >>> len(sentences), sentences.columns["predicate"], sentences.places
    (2, (('-', 'V', '-'), ('-', '-', 'V')), (1, 2))
    """

    @classmethod
    def of(
        cls,
        tokens: Sequence[tuple[str, ...]],
        predicates: Sequence[Sequence[int]],
        columns: Mapping[str, Texts] | None = None,
    ) -> PredicateSentences:
        """Return sentences once for each of their predicates; one without any comes once, without a mark."""
        rows = [row for row, places in enumerate(predicates) for _ in places or (0,)]
        marks = tuple(
            tuple(MARK if at == place else NO_MARK for at in range(len(words)))
            for words, places in zip(tokens, predicates, strict=True)
            for place in places or (-1,)
        )
        taken = {name: tuple(column[row] for row in rows) for name, column in (columns or {}).items()}
        return cls(tuple(tokens[row] for row in rows), {PREDICATE: marks, **taken})

    @property
    def places(self) -> tuple[int | None, ...]:
        """The place of each predicate in its sentence; None where there is no mark."""
        marks = self.columns[PREDICATE]
        return tuple(row.index(MARK) if MARK in row else None for row in marks)

    @property
    def called(self) -> Texts:
        """What each predicate is called: its sense and its lemma, where a column has senses, and its word.

        >>> PredicateSentences.of([("She", "gave")], [[1]], {"rolesets": (("-", "give.01"),)}).called
        (('give.01', 'give', 'gave'),)
        """
        senses = self.columns.get("rolesets") or [None] * len(self)
        return tuple(
            () if place is None else _names(None if row is None else row[place], words[place])
            for place, row, words in zip(self.places, senses, self.tokens, strict=True)
        )


def _names(sense: str | None, word: str) -> tuple[str, ...]:
    names = [] if sense is None or sense == _NONE else [sense, sense.rpartition(".")[0] or sense]
    return tuple(dict.fromkeys([*names, word.lower()]))


@dataclass(frozen=True, eq=False)
class RoleColumn(TagColumn):
    """The roles of sentences' tokens for one predicate each: ``B-ARG0``, ``I-ARG0``, …, and ``O``."""


def read_propbank(paths: Sequence[AnyPath]) -> tuple[Examples, Split]:
    """Read files of sentences with roles; three files train, validate and test.

    A token's line has six columns, of which the second is the word, the third its part of speech, and the
    sixth its roleset or ``-``; then a column of roles for each token with a roleset, in which ``(ARG0*``,
    ``*`` and ``*)`` are the first token of a span, one inside, and its last.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> rows = ["0 She PRP (S* - - (A0*)", "1 sang VBD * sing sing.01 (V*)", "2 it PRP *) - - (A1*)"]
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "songs.conll")
    ...     _ = path.write_text("\\n".join(rows))
    ...     data, _ = read_propbank([path] * 3)
    >>> data.source.tokens[0], data.source.places[0], data.target.tags[0]
    (('She', 'sang', 'it'), 1, ('B-A0', 'O', 'B-A1'))
    """
    parts = [list(stream_propbank(path)) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if not part:
            raise DataError("no predicate; the sixth column has the roleset of predicates, as sing.01", path)
    split = Split.consecutive([sum(len(one.places) for one in part) for part in parts])
    return propositions(list(chain.from_iterable(parts))), split


@dataclass(frozen=True)
class Annotated:
    """A sentence as a file has it: tokens, further columns, the places of predicates, and tags of each."""

    tokens: tuple[str, ...]
    pos: tuple[str, ...]
    rolesets: tuple[str, ...]
    places: tuple[int, ...]
    tags: Texts


def propositions(sentences: Sequence[Annotated], labelled: bool = True) -> Examples:
    """Return an instance for each predicate; unless ``labelled``, without roles."""
    columns = {name: tuple(getattr(one, name) for one in sentences) for name in ("pos", "rolesets")}
    source = PredicateSentences.of(
        [one.tokens for one in sentences], [one.places for one in sentences], columns
    )
    tags = tuple(tags for one in sentences for tags in one.tags)
    return Examples(source, RoleColumn(tags) if labelled else None)


def stream_propbank(
    path: AnyPath, encoding: str = "utf-8", labelled: bool = True, every: bool = False
) -> Iterator[Annotated]:
    """Yield the sentences with predicates, or ``every`` one; roles are read only if ``labelled``."""
    for rows in stream_columns(path, encoding=encoding):
        if len(rows[0]) < COLUMNS:
            what = f"{len(rows[0])} column(s); a token has {COLUMNS} (its roleset, or -, is the last) and"
            raise DataError(f"{what} one of roles for each predicate of its sentence", path, rows.line)
        places = tuple(at for at, row in enumerate(rows) if row[COLUMNS - 1] != _NONE)
        count = len(rows[0]) - COLUMNS
        if labelled and count != len(places):
            what = f"{count} column(s) of roles for {len(places)} predicate(s)"
            raise DataError(
                f"{what}; each token with a roleset needs a column, in their order", path, rows.line
            )
        if places or every:
            tokens, pos, rolesets = (tuple(row[at] for row in rows) for at in (1, 2, COLUMNS - 1))
            tags = tuple(_tags(rows, COLUMNS + number, path) for number in range(count * labelled))
            yield Annotated(tokens, pos, rolesets, places, tags)


def _tags(rows: Block, column: int, path: AnyPath) -> tuple[str, ...]:
    """Return the tags of a predicate's roles; a `DataError` names the line of a bracket that is wrong."""
    tags, opened, began, predicate = [], "", 0, False
    for number, row in enumerate(rows, start=rows.line):
        match = _CELL.fullmatch(row[column])
        if match is None:
            what = f"column {column + 1} is {row[column]!r}; roles are (ARG0*, *, *) and (ARG0*)"
            raise DataError(what, path, number)
        role, closes = match.groups()
        if role is not None and opened:
            what = f"({role}* begins inside of ({opened}*, which line {began} opens; close that first"
            raise DataError(what, path, number)
        if closes and not (role or opened):
            raise DataError(f"column {column + 1} closes a bracket that is not open", path, number)
        if role is not None:
            opened, began = role, number
        predicate |= role == "V"
        # The input says which token is the predicate, and C-V, as "up" in "give up", is no argument.
        inside = opened and opened not in ("V", "C-V")
        tags.append(f"{'B' if role is not None else 'I'}-{opened}" if inside else "O")
        opened = "" if closes else opened
    if opened:
        raise DataError(f"({opened}* is not closed in its sentence; write *) at its last token", path, began)
    if not predicate:
        raise DataError(f"column {column + 1} has roles, but no predicate, (V*)", path, rows.line)
    return tuple(tags)


def find_frames(data: Examples, least: int = 10) -> dict[str, tuple[str, ...]]:
    """Return the core roles of predicates that come ``least`` times in data, by all names of these.

    They are what `lossnet.energies.frame_roles` takes, where nobody has written frames.

    >>> source = PredicateSentences.of([("She", "sang", "it")] * 2, [[1]] * 2)
    >>> tags = ("B-A0", "O", "B-A1"), ("B-A0", "O", "O")
    >>> find_frames(Examples(source, RoleColumn(tags)), least=2)
    {'sang': ('A0', 'A1')}
    """
    source, target = data.source, data.target
    assert isinstance(source, PredicateSentences)
    assert isinstance(target, RoleColumn)
    counts, roles = Counter[str](), dict[str, set[str]]()
    for names, tags in zip(source.called, target.tags, strict=True):
        counts.update(names)
        for name in names:
            roles.setdefault(name, set()).update(tag[2:] for tag in tags if is_core(tag[2:]))
    return {name: tuple(sorted(known)) for name, known in roles.items() if counts[name] >= least}


def propbank_rules() -> tuple[Rule, ...]:
    """Return what is known of roles: tags follow each other, and what `lossnet.energies.role_rules` has.

    >>> [rule.name for rule in propbank_rules()]
    ['bio', 'unique_core_roles', 'continuations', 'references']
    """
    return bio(), unique_core_roles(weight=10.0), continuations(weight=10.0), references(weight=10.0)
