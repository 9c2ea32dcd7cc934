"""Sentences and their tags in memory, and the numbers that networks see of them."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data.embeddings import Embeddings, find_spelling
from lossnet.data.errors import DataError
from lossnet.data.examples import Column, Examples, Resident, Rows, Source, Target, row_numbers
from lossnet.data.schemes import SCHEMES, convert, detect
from lossnet.data.stored import stored_number, stored_strings
from lossnet.data.tables import joined
from lossnet.energies import TokenFacts

#: strings of sentences, one per token
Texts = tuple[tuple[str, ...], ...]

CHARACTERS, DISTANCE, PREDICATE = "characters", "distance", "predicate"
#: what marks the predicate's token in the column ``predicate``, and the others
MARK, NO_MARK = "V", "-"
#: distances from a predicate that are told apart
_FARTHEST = 8
#: Characters of a word that a stored lexicon may ask for: memory for a text grows with them.
_LONGEST_WORD = 1000
_BROWN = re.compile(r"brown(\d+)")
_REPEAT = re.compile(r"(.)\1+")


@dataclass(frozen=True)
class Vocabulary:
    """Different strings and their numbers from 2 on; 0 is padding, 1 is whatever is unknown.

    >>> vocabulary = Vocabulary(("the", "of"))
    >>> len(vocabulary), vocabulary.number("of"), vocabulary.number("xylophone")
    (4, 3, 1)
    """

    strings: tuple[str, ...] = ()

    @classmethod
    def of(cls, strings: Iterable[str]) -> Vocabulary:
        """Return the strings that occur twice or more, the most frequent first.

        Strings that occur once stay unknown, so that a network can learn what unknown ones are like.

        >>> Vocabulary.of(["the", "cat", "saw", "the", "saw", "the"]).strings
        ('the', 'saw')
        """
        return cls(tuple(string for string, count in Counter(strings).most_common() if count > 1))

    def __len__(self) -> int:
        return 2 + len(self.strings)

    def __contains__(self, string: object) -> bool:
        return string in self._numbers

    def number(self, string: str) -> int:
        """Return the number of a string, 1 if it is unknown."""
        return self._numbers.get(string, 1)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {string: number for number, string in enumerate(self.strings, start=2)}


@dataclass(frozen=True)
class Lexicon:
    """The meaning of the numbers in a batch; fitted on training sentences, kept with a model.

    A token becomes a row of numbers: its word, looked up with the back-off of
    `lossnet.data.embeddings.spellings`; its ``features``, each by its own vocabulary; and its first and last
    characters, ``word_length`` of them.  Features are

    =============  ============================================================================
    ``case``       of the first character: upper, lower, digit or other
    ``shape``      letters as ``X`` and ``x``, digits as ``d``, repeats left out: ``EU-15`` → ``X-d``
    ``brown4`` …   the first 4 (…) bits of its Brown cluster, from ``clusters``
    ``distance``   from the token that the column ``predicate`` marks with ``V``: −8 to 8
    other names    that column of the sentences, such as ``pos``
    =============  ============================================================================

    >>> lexicon = Lexicon.fit(Sentences((("EU", "and", "EU"),)), features=("case",))
    >>> lexicon.rows(Sentences((("eu", "EU"),)))
    array([[1, 1],
           [2, 2]], dtype=int32)
    """

    words: Vocabulary
    features: Mapping[str, Vocabulary] = field(default_factory=dict)
    characters: Vocabulary = Vocabulary()
    word_length: int = 0
    clusters: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        train: Sentences,
        features: Sequence[str] = (),
        words: Sequence[str] = (),
        clusters: Mapping[str, str] | None = None,
        word_length: int = 20,
    ) -> Lexicon:
        """Return the lexicon of training sentences, with all given ``words``, as those that have vectors.

        Training words are added where none of their spellings is among these.  The feature ``characters``
        asks for characters.
        """
        known = Vocabulary(tuple(words))
        tokens = list(chain.from_iterable(train.tokens))
        added = Vocabulary.of(token for token in tokens if find_spelling(token, known) is None)
        lexicon = cls(Vocabulary((*known.strings, *added.strings)), clusters=clusters or {})
        named = [name for name in features if name != CHARACTERS]
        vocabularies = {name: Vocabulary.of(lexicon._values(train, name)) for name in named}
        lexicon = replace(lexicon, features=vocabularies)
        if CHARACTERS not in features:
            return lexicon
        characters = Vocabulary.of(chain.from_iterable(tokens))
        return replace(lexicon, characters=characters, word_length=word_length)

    @property
    def columns(self) -> tuple[str, ...]:
        """The features that sentences must have as columns; the others are made from tokens."""
        made = (*_MADE, DISTANCE)
        own = tuple(name for name in self.features if name not in made and not _BROWN.fullmatch(name))
        return tuple(dict.fromkeys((PREDICATE, *own))) if DISTANCE in self.features else own

    @property
    def width(self) -> int:
        """Number of integers that describe a token."""
        return 1 + len(self.features) + self.word_length

    def vectors(self, tables: Sequence[Embeddings]) -> NDArray[np.float32] | None:
        """Return the words' vectors, ``(words, dimensions)``, of all tables side by side; None without any.

        Padding, unknown words, and words that a table does not have are zeros there.
        """
        vectors = [np.pad(table.matrix(self.words.strings), ((2, 0), (0, 0))) for table in tables]
        return np.concatenate(vectors, axis=1) if vectors else None

    def rows(self, sentences: Sentences) -> NDArray[np.int32]:
        """Return the numbers of all tokens in turn, ``(tokens, width)``."""
        absent = ", ".join(name for name in self.columns if name not in sentences.columns)
        if absent:
            raise DataError(f"the sentences have no column {absent}; it is needed beside the words")
        tokens = list(chain.from_iterable(sentences.tokens))
        places = {token: place for place, token in enumerate(dict.fromkeys(tokens))}
        known = [find_spelling(token, self.words) for token in places]
        words = np.array([1 if pair is None else self.words.number(pair[1]) for pair in known], np.int32)
        spelled = np.zeros((len(places), self.word_length), dtype=np.int32)
        last = self.word_length // 2
        for place, token in enumerate(places if self.word_length else ()):
            if len(token) > self.word_length:  # the middle is left out
                token = token[: self.word_length - last] + token[len(token) - last :]
            spelled[place, : len(token)] = [self.characters.number(character) for character in token]
        which = np.array([places[token] for token in tokens], dtype=np.int64)
        parts = [words[which, None]]
        for name, vocabulary in self.features.items():
            values = [vocabulary.number(value) for value in self._values(sentences, name)]
            parts.append(np.array(values, dtype=np.int32)[:, None])
        return np.concatenate([*parts, spelled[which]], axis=1)

    def state(self) -> dict[str, Any]:
        """Return the lexicon as JSON, for `from_state`."""
        return {
            "words": list(self.words.strings),
            "features": {name: list(vocabulary.strings) for name, vocabulary in self.features.items()},
            "characters": list(self.characters.strings),
            "word_length": self.word_length,
            "clusters": dict(self.clusters),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Lexicon:
        """Return the lexicon that `state` described; `DataError` if it did not."""
        features, clusters = state["features"], state["clusters"]
        if not isinstance(features, dict) or not isinstance(clusters, dict):
            raise DataError("features and clusters must be objects")
        if not all(isinstance(bits, str) for bits in clusters.values()):
            raise DataError("clusters must be strings of bits")
        return cls(
            words=Vocabulary(stored_strings(state["words"], "words")),
            features={n: Vocabulary(stored_strings(strings, n)) for n, strings in features.items()},
            characters=Vocabulary(stored_strings(state["characters"], "characters")),
            word_length=stored_number(state["word_length"], "word_length", 0, _LONGEST_WORD),
            clusters=clusters,
        )

    def _values(self, sentences: Sentences, name: str) -> list[str]:
        """Return a feature of all tokens in turn."""
        make = _MADE.get(name)
        if brown := _BROWN.fullmatch(name):
            make = partial(self._first_bits, int(brown[1]))
        if name == DISTANCE:
            return list(chain.from_iterable(map(_distances, sentences.columns[PREDICATE])))
        if make is None:
            return list(chain.from_iterable(sentences.columns[name]))
        tokens = list(chain.from_iterable(sentences.tokens))
        made = {token: make(token) for token in set(tokens)}
        return [made[token] for token in tokens]

    def _first_bits(self, bits: int, token: str) -> str:
        known = find_spelling(token, self.clusters)
        return "" if known is None else self.clusters[known[1]][:bits]


class _Tokens(Column):
    """One string for each token of sentences; batches are padded to the longest sentence."""

    #: vectors that batches have in place of the numbers
    _one_hot: Tensor | None = None

    @property
    @abstractmethod
    def _texts(self) -> Texts:
        """The strings."""

    @property
    @abstractmethod
    def _numbers(self) -> Tensor:
        """Numbers of all tokens in turn, then those of padding."""

    def __len__(self) -> int:
        return len(self._texts)

    @cached_property
    def lengths(self) -> Tensor:
        return torch.tensor([len(sentence) for sentence in self._texts], dtype=torch.int64)

    @cached_property
    def _starts(self) -> Tensor:
        return self.lengths.cumsum(0) - self.lengths

    def _places(self, indices: Rows) -> Tensor:
        """Return the places of some sentences' tokens among all in turn, ``(b, longest)``, −1 on padding."""
        rows = torch.from_numpy(row_numbers(indices, len(self)))
        return self._padded(rows, int(self.lengths[rows].max()) if len(rows) else 0)

    def _padded(self, rows: Tensor, longest: int) -> Tensor:
        place = torch.arange(longest)
        return torch.where(place < self.lengths[rows, None], self._starts[rows, None] + place, -1)

    @property
    def _longest(self) -> int:
        return _rounded(max(map(len, self._texts), default=0))

    def batch(self, indices: Rows) -> Tensor:
        numbers = self._numbers[self._places(indices)].long()
        return numbers if self._one_hot is None else self._one_hot[numbers]

    def on(self, device: torch.device | str) -> Column:
        if torch.device(device).type == "cpu":
            return self
        one_hot = None if self._one_hot is None else self._one_hot.to(device)
        numbers = self._numbers[self._padded(torch.arange(len(self)), self._longest)]
        return _ResidentTokens(numbers.to(device), self.lengths, one_hot)

    @property
    def dense_bytes(self) -> int:
        return 4 * len(self) * self._longest * self._numbers[0].numel()


@dataclass(frozen=True, eq=False)
class Sentences(_Tokens, Source):
    """The ``tokens`` of sentences and further ``columns`` by name, all as strings.

    With a ``lexicon``, sentences make batches ``(batch, length, width)`` of int64 as `Lexicon` describes, 0
    on padding, with a mask ``(batch, length)`` that is 1 on tokens.  ``column`` is that of their table.

    >>> read = Sentences((("I", "bet"), ("I",)))
    >>> data = read.encoded(Lexicon.fit(read))
    >>> data.batch(np.array([1, 0])).tolist(), data.mask(np.array([1, 0])).tolist()
    ([[[2], [0]], [[2], [1]]], [[1.0, 0.0], [1.0, 1.0]])
    """

    tokens: Texts
    columns: Mapping[str, Texts] = field(default_factory=dict)
    lexicon: Lexicon | None = None
    column: str | None = None

    def __post_init__(self) -> None:
        lengths = [len(sentence) for sentence in self.tokens]
        if 0 in lengths:
            raise DataError(f"sentence {lengths.index(0) + 1} has no tokens; leave it out")
        for name, column in self.columns.items():
            _check_lengths(name, column, self.tokens)

    def encoded(self, lexicon: Lexicon) -> Sentences:
        """Return the same sentences with a lexicon, ready for batches."""
        return replace(self, lexicon=lexicon)

    def take(self, rows: NDArray[np.int64]) -> Sentences:
        columns = {name: _taken(column, rows) for name, column in self.columns.items()}
        return replace(self, tokens=_taken(self.tokens, rows), columns=columns)

    def join(self, others: Sequence[Sentences]) -> Sentences:
        parts = (self, *others)
        columns = {name: tuple(chain(*(part.columns[name] for part in parts))) for name in self.columns}
        return replace(self, tokens=tuple(chain(*(part.tokens for part in parts))), columns=columns)

    def mask(self, indices: Rows) -> Tensor:
        return (self._places(indices) >= 0).to(torch.float32)

    def pieces(self) -> Iterator[NDArray[Any] | str]:
        yield self.lengths.numpy()
        for name, column in {"tokens": self.tokens, **self.columns}.items():
            yield from (name, joined(list(chain.from_iterable(column))))

    @property
    def _texts(self) -> Texts:
        return self.tokens

    @cached_property
    def _numbers(self) -> Tensor:
        if self.lexicon is None:
            raise DataError("sentences need a lexicon for batches; call encoded")
        return torch.from_numpy(np.pad(self.lexicon.rows(self), ((0, 1), (0, 0))))


class SentenceFacts(Column):
    """What rules read of sentences: the fact ``tokens``, beside other facts, which are ``facts`` if unnamed.

    ``predicates`` are the names of each sentence's predicate, where it has one; see `TokenFacts`.

    >>> from lossnet.data import Facts
    >>> facts = SentenceFacts((("Ann", "left"), ("So",)), ("N", "V"), Facts({"count": [1, 2]}))
    >>> told = facts.batch(np.array([1]))
    >>> told["tokens"].texts, told["count"]
    ((('So',),), tensor([2.]))
    """

    def __init__(
        self,
        texts: Texts,
        tags: tuple[str, ...],
        others: Column | None = None,
        predicates: Texts | None = None,
    ) -> None:
        self.texts, self.tags, self.others, self.predicates = texts, tags, others, predicates

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: NDArray[np.int64]) -> SentenceFacts:
        others = None if self.others is None else self.others.take(rows)
        return SentenceFacts(_taken(self.texts, rows), self.tags, others, self._named(rows))

    def batch(self, indices: Rows) -> Any:
        others = {} if self.others is None else self.others.batch(indices)
        named = dict(others) if isinstance(others, Mapping) else {"facts": others}
        rows = row_numbers(indices, len(self))
        return {**named, "tokens": TokenFacts(_taken(self.texts, rows), self.tags, self._named(rows))}

    def _named(self, rows: NDArray[np.int64]) -> Texts | None:
        return None if self.predicates is None else _taken(self.predicates, rows)


@dataclass(frozen=True)
class TagSet:
    """The names of tags and how they mark spans in files: a scheme of `SCHEMES`, BIOES inside; or None.

    With ``segments``, neighbours that share a tag are one segment, as the words of a title are.

    >>> TagSet.fit([(("I-PER", "I-PER", "O"),)]).names
    ('O', 'B-PER', 'I-PER', 'E-PER', 'S-PER')
    """

    names: tuple[str, ...]
    scheme: str | None = None
    segments: bool = False

    @classmethod
    def fit(cls, parts: Iterable[Texts], segments: bool = False) -> TagSet:
        """Return the tags that occur, or all that BIOES has for the kinds of spans that occur."""
        sentences = [tags for part in parts for tags in part]
        scheme = None if segments else detect(sentences)
        if scheme is None:
            return cls(tuple(sorted({tag for tags in sentences for tag in tags})), segments=segments)
        kinds = sorted({tag.partition("-")[2] for tags in sentences for tag in tags if tag != "O"})
        return cls(("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BIES")), scheme)

    def numbers(self, tags: Texts) -> NDArray[np.int64]:
        """Return the numbers of all tags in turn, ``(tokens,)``."""
        numbers = {tag: number for number, tag in enumerate(self.names)}
        try:
            return np.array([numbers[tag] for tag in chain.from_iterable(tags)], dtype=np.int64)
        except KeyError as error:
            known = ", ".join(self.names)
            raise DataError(f"the tag {error.args[0]!r} is none of those known: {known}") from None

    def state(self) -> dict[str, Any]:
        """Return the set as JSON, for `from_state`."""
        return {"tags": list(self.names), "scheme": self.scheme, "segments": self.segments}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TagSet:
        """Return the set that `state` described; `DataError` if it did not."""
        scheme = state["scheme"]
        if scheme is not None and scheme not in SCHEMES:
            raise DataError(f"no scheme is called {scheme!r}; known are {', '.join(SCHEMES)}")
        segments = state.get("segments", False)
        if not isinstance(segments, bool):
            raise DataError("segments must be true or false")
        return cls(stored_strings(state["tags"], "tags", least=1), scheme, segments)


@dataclass(frozen=True, eq=False)
class TagColumn(_Tokens, Target):
    """The ``tags`` of sentences' tokens, as strings.

    With a ``tag_set``, they make batches ``(batch, length, tags)``, one-hot, zeros on padding.  Where tags
    name ``segments``, neighbours that share one belong together.

    >>> column = TagColumn((("O", "V"), ("O",)))
    >>> column.encoded(TagSet.fit([column.tags])).batch(np.array([1, 0])).tolist()
    [[[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]]
    """

    tags: Texts
    tag_set: TagSet | None = None
    segments: bool = False

    def in_scheme(self, scheme: str | None) -> TagColumn:
        """Return the same tags in BIOES rather than in ``scheme``; as they are if that is None."""
        if scheme is None:
            return self
        return replace(self, tags=tuple(convert(tags, scheme, "BIOES") for tags in self.tags))

    def encoded(self, tag_set: TagSet) -> TagColumn:
        """Return the same tags with their numbers, ready for batches."""
        return replace(self, tag_set=tag_set)

    def take(self, rows: NDArray[np.int64]) -> TagColumn:
        return replace(self, tags=_taken(self.tags, rows))

    def join(self, others: Sequence[TagColumn]) -> TagColumn:
        return replace(self, tags=tuple(chain(self.tags, *(other.tags for other in others))))

    def pieces(self) -> Iterator[NDArray[Any] | str]:
        yield from (self.lengths.numpy(), joined(list(chain.from_iterable(self.tags))))

    @property
    def _texts(self) -> Texts:
        return self.tags

    @cached_property
    def _numbers(self) -> Tensor:
        if self.tag_set is None:
            raise DataError("tags need their numbers for batches; call encoded")
        padding = len(self.tag_set.names)
        numbers = np.pad(self.tag_set.numbers(self.tags), (0, 1), constant_values=padding)
        return torch.from_numpy(numbers.astype(np.int32))

    @cached_property
    def _one_hot(self) -> Tensor:  # type: ignore[override]
        tags = len(self.tag_set.names) if self.tag_set else 0
        return torch.eye(tags + 1)[:, :tags].contiguous()


class TaggedSentences(Examples):
    """Sentences with a tag for every token: `Examples` of `Sentences` and a `TagColumn`.

    >>> data = TaggedSentences((("I", "bet"), ("I",)), (("O", "V"), ("O",)))
    >>> len(data), data.tokens[1], data.tags[1]
    (2, ('I',), ('O',))
    """

    source: Sentences
    target: TagColumn

    def __init__(
        self, tokens: Texts, tags: Texts, columns: Mapping[str, Texts] | None = None, segments: bool = False
    ) -> None:
        _check_lengths("tags", tags, tokens)
        super().__init__(Sentences(tokens, columns or {}), TagColumn(tags, segments=segments))

    tokens = property(attrgetter("source.tokens"), doc="The tokens of each sentence.")
    tags = property(attrgetter("target.tags"), doc="The tags of each sentence's tokens.")
    columns = property(attrgetter("source.columns"), doc="Further columns by name.")


class _ResidentTokens(Resident):
    """Sentences ``(n, length, …)`` that live on a device, or tags ``(n, length)`` and a vector for each.

    The ``lengths`` ``(n,)`` stay on the host, which then need not ask the device how long a batch is; batches
    are padded to the longest sentence, rounded up, so that they have few different shapes.
    """

    def __init__(self, values: Tensor, lengths: Tensor, one_hot: Tensor | None = None) -> None:
        super().__init__(values)
        self._lengths, self._one_hot = lengths, one_hot

    def take(self, rows: NDArray[np.int64]) -> _ResidentTokens:
        chosen = torch.from_numpy(rows)
        values = self.values[chosen.to(self.values.device)]
        return _ResidentTokens(values, self._lengths[chosen], self._one_hot)

    def batch(self, indices: Rows) -> Tensor:
        numbers = self._gather(self.values, indices).long()
        return numbers if self._one_hot is None else self._one_hot[numbers]

    def mask(self, indices: Rows) -> Tensor:
        return (self._gather(self.values[..., 0], indices) != 0).to(torch.float32)

    def _gather(self, values: Tensor, indices: Rows) -> Tensor:
        """Return the chosen rows of ``values`` ``(n, length, …)``, cut to their longest sentence."""
        rows = torch.as_tensor(indices)
        longest = _rounded(int(self._lengths[rows.cpu()].max())) if len(rows) else 0
        return values[:, :longest].index_select(0, rows.to(values.device, non_blocking=True))

    @property
    def lengths(self) -> Tensor:
        return self._lengths


def _check_lengths(name: str, column: Texts, tokens: Texts) -> None:
    lengths, wanted = [len(sentence) for sentence in column], [len(sentence) for sentence in tokens]
    if lengths != wanted:
        what = f"{name!r} has {len(lengths)} sentences with {sum(lengths)} tokens"
        mine = f"{len(wanted)} sentences with {sum(wanted)} tokens"
        raise DataError(f"{what}, for {mine}; give one of {name!r} per token")


def _rounded(length: int, to: int = 8) -> int:
    return -(-length // to) * to


def _case(token: str) -> str:
    kinds = {"upper": str.isupper, "lower": str.islower, "digit": str.isdigit}
    return next((kind for kind, matches in kinds.items() if matches(token[:1])), "other")


def _shape(token: str) -> str:
    kinds = ("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in token)
    return _REPEAT.sub(r"\1", "".join(kinds))


def _distances(marks: Sequence[str]) -> list[str]:
    """Return how far each token is from the marked one; ``?`` where none is marked."""
    if MARK not in marks:
        return ["?"] * len(marks)
    place = marks.index(MARK)
    return [str(max(-_FARTHEST, min(at - place, _FARTHEST))) for at in range(len(marks))]


_MADE: dict[str, Callable[[str], str]] = {"case": _case, "shape": _shape}


def _taken(texts: Texts, rows: NDArray[np.int64]) -> Texts:
    return tuple(texts[row] for row in rows.tolist())
