"""Sentences in memory: tokens, their tags, and the numbers that networks see of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data.dataset import RESIDENT_LIMIT_BYTES, row_numbers
from lossnet.data.embeddings import Embeddings, find_spelling
from lossnet.data.errors import DataError
from lossnet.data.schemes import SCHEMES, convert, detect
from lossnet.data.stored import stored_number, stored_strings
from lossnet.spaces import Batch

__all__ = ["Lexicon", "ResidentSentences", "Sentences", "Vocabulary", "by_length", "encode_parts"]

#: strings of sentences, one per token
Texts = tuple[tuple[str, ...], ...]

CHARACTERS = "characters"
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
        """The strings that occur twice or more, the most frequent first.

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
        """The number of a string, 1 if it is unknown."""
        return self._numbers.get(string, 1)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {string: number for number, string in enumerate(self.strings, start=2)}


@dataclass(frozen=True)
class Lexicon:
    """What the numbers in a batch stand for; fitted on training sentences, kept with a model.

    A token becomes a row of numbers: its word, looked up with the back-off of
    `lossnet.data.embeddings.spellings`; its ``features``, each by its own vocabulary; and its first and last
    characters, ``word_length`` of them.  Features are

    =============  ============================================================================
    ``case``       of the first character: upper, lower, digit or other
    ``shape``      letters as ``X`` and ``x``, digits as ``d``, repeats left out: ``EU-15`` → ``X-d``
    ``brown4`` …   the first 4 (…) bits of its Brown cluster, from ``clusters``
    other names    that column of the sentences, such as ``pos``
    =============  ============================================================================

    ``scheme`` is how the files marked spans, which are BIOES inside; None if tags mark no spans.

    >>> lexicon = Lexicon.fit(Sentences((("EU", "and", "EU"),)), tags=("N", "C"), features=("case",))
    >>> lexicon.rows(Sentences((("eu", "EU"),)))
    array([[1, 1],
           [2, 2]], dtype=int32)
    """

    words: Vocabulary
    tags: tuple[str, ...]
    features: Mapping[str, Vocabulary] = field(default_factory=dict)
    characters: Vocabulary = Vocabulary()
    word_length: int = 0
    clusters: Mapping[str, str] = field(default_factory=dict)
    scheme: str | None = None

    @classmethod
    def fit(
        cls,
        train: Sentences,
        tags: Sequence[str],
        features: Sequence[str] = (),
        words: Sequence[str] = (),
        clusters: Mapping[str, str] | None = None,
        scheme: str | None = None,
        word_length: int = 20,
    ) -> Lexicon:
        """The lexicon of training sentences, with all given ``words``, such as those that have a vector.

        Training words are added where none of their spellings is among these.  The feature ``characters``
        asks for characters.
        """
        known = Vocabulary(tuple(words))
        tokens = list(chain.from_iterable(train.tokens))
        added = Vocabulary.of(token for token in tokens if find_spelling(token, known) is None)
        lexicon = cls(Vocabulary((*known.strings, *added.strings)), tuple(tags), {}, clusters=clusters or {})
        named = [name for name in features if name != CHARACTERS]
        vocabularies = {name: Vocabulary.of(lexicon._values(train, name)) for name in named}
        lexicon = replace(lexicon, features=vocabularies, scheme=scheme)
        if CHARACTERS not in features:
            return lexicon
        characters = Vocabulary.of(chain.from_iterable(tokens))
        return replace(lexicon, characters=characters, word_length=word_length)

    @property
    def columns(self) -> tuple[str, ...]:
        """The features that sentences must have as columns; the others are made from tokens."""
        return tuple(name for name in self.features if name not in _MADE and not _BROWN.fullmatch(name))

    @property
    def width(self) -> int:
        """How many numbers a token has."""
        return 1 + len(self.features) + self.word_length

    def vectors(self, tables: Sequence[Embeddings]) -> NDArray[np.float32] | None:
        """The words' vectors, ``(words, dimensions)``, those of several tables joined; None without any.

        Padding, unknown words, and words that a table does not have are zeros there.
        """
        found = [np.pad(table.matrix(self.words.strings), ((2, 0), (0, 0))) for table in tables]
        return np.concatenate(found, axis=1) if found else None

    def rows(self, sentences: Sentences) -> NDArray[np.int32]:
        """The numbers of all tokens in turn, ``(tokens, width)``."""
        absent = [name for name in self.columns if name not in sentences.columns]
        if absent:
            what = f"the sentences have no column {', '.join(absent)}"
            raise DataError(f"{what}; it is needed beside the words")
        tokens = list(chain.from_iterable(sentences.tokens))
        places = {token: place for place, token in enumerate(dict.fromkeys(tokens))}
        words = np.array([self._word(token) for token in places], dtype=np.int32)
        spelled = np.zeros((len(places), self.word_length), dtype=np.int32)
        if self.word_length:
            for place, token in enumerate(places):
                numbers = [self.characters.number(character) for character in self._ends(token)]
                spelled[place, : len(numbers)] = numbers
        which = np.array([places[token] for token in tokens], dtype=np.int64)
        parts = [words[which, None]]
        for name, vocabulary in self.features.items():
            values = [vocabulary.number(value) for value in self._values(sentences, name)]
            parts.append(np.array(values, dtype=np.int32)[:, None])
        return np.concatenate([*parts, spelled[which]], axis=1)

    def tag_numbers(self, tags: Texts) -> NDArray[np.int64]:
        """The numbers of all tags in turn, ``(tokens,)``."""
        numbers = {tag: number for number, tag in enumerate(self.tags)}
        try:
            return np.array([numbers[tag] for tag in chain.from_iterable(tags)], dtype=np.int64)
        except KeyError as error:
            known = ", ".join(self.tags)
            raise DataError(f"the tag {error.args[0]!r} is none of those known: {known}") from None

    def state(self) -> dict[str, Any]:
        """The lexicon as JSON, for `from_state`."""
        return {
            "words": list(self.words.strings),
            "tags": list(self.tags),
            "features": {name: list(vocabulary.strings) for name, vocabulary in self.features.items()},
            "characters": list(self.characters.strings),
            "word_length": self.word_length,
            "clusters": dict(self.clusters),
            "scheme": self.scheme,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Lexicon:
        """The lexicon that `state` described; `DataError` if it did not."""
        features, clusters, scheme = state["features"], state["clusters"], state["scheme"]
        if not isinstance(features, dict) or not isinstance(clusters, dict):
            raise DataError("features and clusters must be objects")
        if not all(isinstance(bits, str) for bits in clusters.values()):
            raise DataError("clusters must be strings of bits")
        if scheme is not None and scheme not in SCHEMES:
            raise DataError(f"no scheme is called {scheme!r}; known are {', '.join(SCHEMES)}")
        return cls(
            words=Vocabulary(stored_strings(state["words"], "words")),
            tags=stored_strings(state["tags"], "tags", least=1),
            features={n: Vocabulary(stored_strings(strings, n)) for n, strings in features.items()},
            characters=Vocabulary(stored_strings(state["characters"], "characters")),
            word_length=stored_number(state["word_length"], "word_length", 0, _LONGEST_WORD),
            clusters=clusters,
            scheme=scheme,
        )

    def _word(self, token: str) -> int:
        found = find_spelling(token, self.words)
        return 1 if found is None else self.words.number(found[1])

    def _values(self, sentences: Sentences, name: str) -> list[str]:
        """A feature of all tokens in turn."""
        make = _MADE.get(name)
        brown = _BROWN.fullmatch(name)
        if brown:
            make = _first_bits(self.clusters, int(brown[1]))
        if make is None:
            return list(chain.from_iterable(sentences.columns[name]))
        made: dict[str, str] = {}
        tokens = list(chain.from_iterable(sentences.tokens))
        for token in tokens:
            if token not in made:
                made[token] = make(token)
        return [made[token] for token in tokens]

    def _ends(self, token: str) -> str:
        """A token that is short enough: the middle of a long one is left out."""
        if len(token) <= self.word_length:
            return token
        last = self.word_length // 2
        return token[: self.word_length - last] + token[len(token) - last :]


@dataclass(frozen=True, eq=False)
class Sentences:
    """The ``tokens`` of sentences, their ``tags`` if known, and further ``columns`` by name, all as strings.

    With a ``lexicon``, sentences make batches: ``x`` ``(batch, length, width)`` of int64 as `Lexicon`
    describes, 0 on padding; ``y`` ``(batch, length, tags)``, one-hot, zeros on padding or where tags are not
    known; and ``mask`` ``(batch, length)``, 1 on tokens.

    >>> read = Sentences((("I", "bet"), ("I",)), (("O", "V"), ("O",)))
    >>> data = read.encoded(Lexicon.fit(read, tags=("O", "V")))
    >>> batch = data.batch(np.array([1, 0]))
    >>> batch.x.tolist(), batch.mask.tolist()
    ([[[2], [0]], [[2], [1]]], [[1.0, 0.0], [1.0, 1.0]])
    >>> batch.y.tolist()
    [[[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]]
    """

    tokens: Texts
    tags: Texts | None = None
    columns: Mapping[str, Texts] = field(default_factory=dict)
    lexicon: Lexicon | None = None

    def __post_init__(self) -> None:
        lengths = [len(sentence) for sentence in self.tokens]
        if 0 in lengths:
            raise DataError(f"sentence {lengths.index(0) + 1} has no tokens; leave it out")
        tags = self.tokens if self.tags is None else self.tags
        for name, column in {"tags": tags, **self.columns}.items():
            found = [len(sentence) for sentence in column]
            if found != lengths:
                what = f"{name!r} has {len(found)} sentences with {sum(found)} tokens"
                mine = f"{len(lengths)} sentences with {sum(lengths)} tokens"
                raise DataError(f"{what}, for {mine}; give one of {name!r} per token")

    def __len__(self) -> int:
        return len(self.tokens)

    def encoded(self, lexicon: Lexicon) -> Sentences:
        """The same sentences with a lexicon, ready for batches."""
        return replace(self, lexicon=lexicon)

    def in_scheme(self, scheme: str | None) -> Sentences:
        """The same sentences with tags in BIOES rather than in ``scheme``; as they are if that is None."""
        if scheme is None or self.tags is None:
            return self
        return replace(self, tags=tuple(convert(tags, scheme, "BIOES") for tags in self.tags))

    def take(self, indices: Any) -> Sentences:
        """The sentences ``indices``, in that order."""
        rows = row_numbers(indices, len(self)).tolist()
        columns = {name: _taken(column, rows) for name, column in self.columns.items()}
        tags = None if self.tags is None else _taken(self.tags, rows)
        return replace(self, tokens=_taken(self.tokens, rows), tags=tags, columns=columns)

    def batch(self, indices: NDArray[np.integer[Any]] | Tensor) -> Batch:
        """The sentences ``indices``, padded to the longest of them."""
        rows = row_numbers(indices, len(self))
        lengths = self._lengths[rows]
        place = np.arange(lengths.max(initial=0))
        where = np.where(place < lengths[:, None], self._starts[rows, None] + place, -1)
        numbers, tags, one_hot = self._flat
        at = torch.from_numpy(where)
        return Batch(numbers[at].long(), one_hot[tags[at]], (at >= 0).to(torch.float32))

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        """Row numbers in another order, by which batches have sentences of like length: see `by_length`."""
        return by_length(order, torch.from_numpy(self._lengths), batch_size)

    def resident(
        self, device: torch.device | str, limit_bytes: int = RESIDENT_LIMIT_BYTES
    ) -> ResidentSentences | Sentences:
        """The same sentences on ``device``.

        Data that would take more than ``limit_bytes`` stays where it is, and each batch is moved instead.

        >>> read = Sentences((("I", "bet"), ("I",)))
        >>> data = read.encoded(Lexicon.fit(read, tags=("O", "V")))
        >>> data.resident("cpu").batch(torch.tensor([1])).mask
        tensor([[1., 0., 0., 0., 0., 0., 0., 0.]])
        """
        numbers, tags, one_hot = self._flat
        longest = _rounded(int(self._lengths.max(initial=0)))
        if 4 * len(self) * longest * (numbers.shape[1] + 1) > limit_bytes:
            return self
        place = np.arange(longest)
        where = np.where(place < self._lengths[:, None], self._starts[:, None] + place, -1)
        at = torch.from_numpy(where)
        lengths = torch.from_numpy(self._lengths)
        return ResidentSentences(numbers[at].to(device), tags[at].to(device), one_hot.to(device), lengths)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.array([len(sentence) for sentence in self.tokens], dtype=np.int64)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where each sentence begins among all tokens in turn."""
        return np.cumsum(self._lengths) - self._lengths

    @cached_property
    def _flat(self) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers and tags of all tokens in turn, then one row of padding; and the tags' vectors."""
        if self.lexicon is None:
            raise DataError("sentences need a lexicon for batches; call encoded")
        rows = np.pad(self.lexicon.rows(self), ((0, 1), (0, 0)))
        none = len(self.lexicon.tags)  # the number of what has no tag
        if self.tags is None:
            tags = np.full(len(rows), none)
        else:
            tags = np.pad(self.lexicon.tag_numbers(self.tags), (0, 1), constant_values=none)
        one_hot = torch.eye(none + 1)[:, :none].contiguous()
        return torch.from_numpy(rows), torch.from_numpy(tags.astype(np.int32)), one_hot


def encode_parts(
    parts: Sequence[Sentences],
    features: Sequence[str],
    words: Sequence[str] = (),
    clusters: Mapping[str, str] | None = None,
) -> list[Sentences]:
    """Tagged sentences with one lexicon, fitted on the first part; tags that mark spans become BIOES.

    >>> train, valid = (Sentences((("Ann", "Lee", "ran"),), (("I-PER", "I-PER", "O"),)) for _ in range(2))
    >>> encode_parts([train, valid], features=("case",))[1].tags
    (('B-PER', 'E-PER', 'O'),)
    """
    scheme = detect([tags for part in parts for tags in part.tags or ()])
    parts = [part.in_scheme(scheme) for part in parts]
    lexicon = Lexicon.fit(parts[0], _tag_names(parts, scheme), features, words, clusters, scheme)
    return [part.encoded(lexicon) for part in parts]


def _tag_names(parts: Iterable[Sentences], scheme: str | None) -> list[str]:
    """The tags that occur, or all that BIOES has for the kinds of spans that occur."""
    used = sorted({tag for part in parts for tags in part.tags or () for tag in tags})
    if scheme is None:
        return used
    kinds = sorted({tag.partition("-")[2] for tag in used if tag != "O"})
    return ["O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BIES")]


@dataclass(frozen=True, eq=False)
class ResidentSentences:
    """Sentences that live on a device.

    ``numbers`` are ``(n, length, width)``, ``tags`` ``(n, length)`` and ``one_hot`` ``(tags + 1, tags)`` with
    zeros for what has no tag.  The ``lengths`` ``(n,)`` stay on the host, which then need not ask the device
    how long a batch is.
    """

    numbers: Tensor
    tags: Tensor
    one_hot: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        """As `Sentences.arranged`."""
        return by_length(order, self.lengths, batch_size)

    def batch(self, indices: Tensor) -> Batch:
        """The sentences ``indices``, padded to the longest of them, rounded up: of few different shapes."""
        longest = _rounded(int(self.lengths[indices.cpu()].max())) if len(indices) else 0
        rows = indices.to(self.numbers.device, non_blocking=True)
        x = self.numbers[:, :longest].index_select(0, rows).long()
        y = self.one_hot[self.tags[:, :longest].index_select(0, rows).long()]
        return Batch(x, y, (x[..., 0] != 0).to(torch.float32))


def _rounded(length: int, to: int = 8) -> int:
    return -(-length // to) * to


def by_length(order: Tensor, lengths: Tensor, batch_size: int, pool: int = 16) -> Tensor:
    """Row numbers ``(n,)`` in another order: batches cut from it have sentences of like length.

    Sentences are sorted within ``pool`` batches' worth of the order, and full batches then take each other's
    places, so that chance decides as before which sentences meet and which batch comes when.

    >>> by_length(torch.tensor([3, 0, 2, 1]), torch.tensor([5, 1, 9, 2]), batch_size=2)
    tensor([0, 2, 1, 3])
    """
    sorted_pools = [rows[lengths[rows].argsort(stable=True)] for rows in order.split(pool * batch_size)]
    batches = torch.cat(sorted_pools).split(batch_size)
    full = [rows for rows in batches if len(rows) == batch_size]
    rest = batches[len(full) :]
    if not full:
        return torch.cat(rest)
    # A permutation that the order itself decides: by the first row of what was cut from it.
    turns = torch.stack([rows[0] for rows in order.split(batch_size)[: len(full)]]).argsort()
    return torch.cat([*(full[turn] for turn in turns), *rest])


def _case(token: str) -> str:
    first = token[:1]
    if first.isupper():
        return "upper"
    if first.islower():
        return "lower"
    return "digit" if first.isdigit() else "other"


def _shape(token: str) -> str:
    kinds = ("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in token)
    return _REPEAT.sub(r"\1", "".join(kinds))


_MADE: dict[str, Callable[[str], str]] = {"case": _case, "shape": _shape}


def _first_bits(clusters: Mapping[str, str], bits: int) -> Callable[[str], str]:
    def make(token: str) -> str:
        found = find_spelling(token, clusters)
        return "" if found is None else clusters[found[1]][:bits]

    return make


def _taken(texts: Texts, rows: list[int]) -> Texts:
    return tuple(texts[row] for row in rows)
