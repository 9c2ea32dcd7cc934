"""A tag for every token."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from lossnet.data import DataError, Sentences, Source, TagColumn, TaggedSentences, TagSet
from lossnet.data.schemes import detect, mark
from lossnet.decoding import Decision, Decoder, Nearest
from lossnet.energies import Chain, SelfAttention, Sum, TagLM, Term
from lossnet.inputs import Arrays, Input, Level, Schema, State, Words
from lossnet.outputs.base import Output, Predicted, Ranges
from lossnet.scores import TokenCost, meter
from lossnet.settings import Settings
from lossnet.spaces import Tags as TagSpace
from lossnet.spaces import best_path
from lossnet.spans import find_spans
from lossnet.suggest import did_you_mean

if TYPE_CHECKING:
    from lossnet.report.evidence import Evidence, Section, Tell

#: what a prefix of another scheme may be in BIOES
_BIOES_OF: Mapping[str, Mapping[str, str]] = {
    "IOB1": {"B": "BS", "I": "BIES"},
    "IOB2": {"B": "BS", "I": "IE"},
}

_TOKEN: Schema = {
    "type": "object",
    "properties": {
        "token": {"type": "string"},
        "tag": {"type": "string"},
        "probability": {"type": "number"},
    },
}


@dataclass(frozen=True)
class Tags(Output[TagColumn]):
    """A tag for every token: the tags' names, and how files mark spans with them.

    >>> tags = Tags(TagSet(("N", "V")))
    >>> tags.names, tags.space(Settings()).tags
    (('N', 'V'), 2)
    """

    kind = "tags"
    summary = "a tag for every token"
    target = TagColumn
    level: ClassVar[Level] = "position"
    score = TokenCost()

    tag_set: TagSet

    @classmethod
    def fit(cls, parts: Sequence[TagColumn]) -> Tags:
        return cls(TagSet.fit((part.tags for part in parts), parts[0].segments))

    @classmethod
    def accepts(cls, y: Any) -> bool:
        return Words.accepts(y) and not any(isinstance(tags, str) for tags in y)

    @classmethod
    def collect(cls, y: Any, source: Source) -> TagColumn:
        """Return a sequence of tags for each sentence, one for each of its tokens."""
        tags = tuple(tuple(map(str, one)) for one in y)
        target = TagColumn(tags)
        return TaggedSentences(source.tokens, tags).target if isinstance(source, Sentences) else target

    def preparing(self, targets: Callable[[], Iterable[TagColumn]]) -> Callable[[TagColumn], TagColumn]:
        """Return a function that turns tags into numbers, and those that mark spans into BIOES first.

        How these files mark spans, which training's may do otherwise, is detected from all of their tags.
        """
        scheme = detect(_AllTags(targets)) if self.tag_set.scheme else None
        return lambda target: target.in_scheme(scheme).encoded(self.tag_set)

    @property
    def names(self) -> tuple[str, ...]:
        return self.tag_set.names

    @classmethod
    def describe(cls, parts: Sequence[TagColumn], frequent: int = 10) -> dict[str, Any]:
        counts = Counter(tag for part in parts for tags in part.tags for tag in tags)
        scheme = detect([tags for part in parts for tags in part.tags])
        return {
            "tags": len(counts),
            "scheme": scheme or "no spans",
            "frequent_tags": tuple(counts.most_common(frequent)),
        }

    def space(self, settings: Settings) -> TagSpace:
        return self._space

    @cached_property
    def _space(self) -> TagSpace:
        marks = self.tag_set.scheme or self.tag_set.segments
        return TagSpace(len(self.names), self.names if marks else ())

    def energy(self, source: Input[Any, Any], settings: Settings, bounded: bool = False) -> Sum:
        tags, hidden = len(self.names), settings.energy_hidden
        encoder: Any = source.network(settings, "position", "energy")
        # InfNet+ §5: GE(a), GE(b) and GE(c)
        directions = {"none": (), "forward": (False,), "both": (False, True), "words": (False, True)}
        models: list[Term] = [
            TagLM(tags, hidden, backward) for backward in directions.get(settings.tag_models, ())
        ]
        if settings.tag_models == "words":
            models += [
                TagLM(tags, hidden, backward, encoder.words.width, settings.word_model_weight)
                for backward in (False, True)
            ]
        if settings.tag_models == "attention":  # SEAL §4.3
            models = [SelfAttention(encoder.width, tags, hidden)]
        return Sum(encoder, Chain(encoder.width, tags), *models)

    def search_ranges(self, source: Input[Any, Any], settings: Settings) -> Ranges:
        return {"word_model_weight": (0.1, 10.0)} if settings.tag_models == "words" else {}

    def known(self, known: Any, source: Source) -> Tensor:
        """Return what is known of tags: for each sentence, a tag or None for each of its tokens.

        Where tags mark spans, what they do not tell stays open: ``B-PER`` may begin a longer span or be a
        whole one.

        >>> tags = Tags(TagSet(("O", "B-X", "I-X", "E-X", "S-X"), "IOB2"))
        >>> tags.known([["B-X", None]], Sentences([["Ann", "Lee"]]))
        tensor([[[0., nan, 0., 0., nan],
                 [nan, nan, nan, nan, nan]]])
        """
        assert isinstance(source, Sentences)
        if isinstance(known, str) or not isinstance(known, Sequence) or len(known) != len(source):
            what = f"what is known of tags has to be a list of {len(source)} lists"
            raise DataError(f"{what}, with a tag or None for each token")
        lengths = [len(tokens) for tokens in source.tokens]
        values = torch.full((len(source), max(lengths, default=0), len(self.names)), torch.nan)
        for number, (row, length) in enumerate(zip(known, lengths, strict=True)):
            if row is None:
                continue
            if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != length:
                what = f"row {number}: what is known is {reprlib.repr(row)}"
                raise DataError(f"{what}; give a tag or None for each of {length} tokens")
            for place, tag in enumerate(row):
                if tag is not None:
                    values[number, place] = self._possible(tag, f"row {number}, token {place}")
        self._check_possible(values, lengths)
        return values

    def keeping(self, decoded: Tensor, known: Tensor | None) -> Tensor:
        return decoded  # probabilities of what is ruled out are 0, and best paths avoid it

    def _possible(self, tag: Any, where: str) -> Tensor:
        """Return 0 for tags that are ruled out once one is known in the scheme of the training files."""
        prefix, _, kind = str(tag).partition("-")
        names = {str(tag)}
        if self.tag_set.scheme is not None and kind:
            inside = _BIOES_OF.get(self.tag_set.scheme, {})
            names = {f"{one}-{kind}" for one in inside.get(prefix, prefix)}
        possible = [name in names for name in self.names]
        if not any(possible):
            hint = did_you_mean(str(tag), self.names, "tags are")
            raise DataError(f"{where}: the model has no tag {reprlib.repr(tag)}; {hint}")
        found = torch.where(torch.tensor(possible), torch.nan, 0.0)
        return torch.where(found.isnan() & (found.isnan().sum() == 1), 1.0, found)

    def _check_possible(self, values: Tensor, lengths: Sequence[int]) -> None:
        """Raise a DataError for a sentence whose known tags no tags of the scheme go with."""
        constraints = self._space.constraints()
        if constraints is None or not values.numel():
            return
        real = torch.arange(values.shape[1]) < torch.tensor(lengths).unsqueeze(1)
        penalties = constraints.penalties(real, torch.float64)
        ruled_out = torch.where(values == 0, 0.5 * penalties.pairs.min(), 0.0).double()
        paths = best_path(ruled_out + penalties.tags, penalties.pairs, real)
        chosen = values.gather(2, paths.unsqueeze(2)).squeeze(2)
        fine = constraints.hold(paths, real) & ~((chosen == 0) & real).any(1)
        if not bool(fine.all()):
            row = int((~fine).nonzero()[0])
            what = f"row {row}: no tags of the scheme {self.tag_set.scheme} go with what is known"
            raise DataError(f"{what}; give tags that mark whole spans")

    @property
    def goals(self) -> Mapping[str, str]:  # type: ignore[override]
        """Spans, where tags mark any, and single tags."""
        return {one.name.replace("_", "-"): one.name for one in meter(self._space).metrics if one.headline}

    @property
    def decoders(self) -> Mapping[str, Callable[[Decision], Decoder]]:  # type: ignore[override]
        """The likeliest tags, of whole spans where tags mark spans."""
        return {"best": lambda decision: Nearest(self._space)}

    def state(self) -> State:
        return self.tag_set.state(), {}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Tags:
        return cls(TagSet.from_state(content))

    def named(self, decoded: Tensor, source: Source) -> list[list[tuple[str, str]]]:
        """Return the tokens of each sentence with their tags; spans are marked as the training files did."""
        assert isinstance(source, Sentences)
        scheme, sentences = self.tag_set.scheme, []
        for tokens, row in zip(source.tokens, decoded.argmax(-1).tolist(), strict=True):
            tags = tuple(self.names[number] for number in row[: len(tokens)])
            if scheme is not None:
                tags = mark(find_spans(tags), len(tags), scheme)
            sentences.append(list(zip(tokens, tags, strict=True)))
        return sentences

    def lines(self, predicted: Iterable[Predicted], decoder: Decoder) -> Iterator[str]:
        """Yield lines of token, tab and tag, and an empty one after each sentence."""
        for part in predicted:
            for sentence in self.named(part.outputs(decoder), part.source):
                yield "".join(f"{token}\t{tag}\n" for token, tag in sentence) + "\n"

    answer: ClassVar[Schema] = {"type": "array", "items": _TOKEN}

    def answers(self, relaxed: Tensor, decoder: Decoder, source: Source, items: Sequence[Any]) -> list[Any]:
        sentences = zip(self.named(decoder(relaxed), source), relaxed.max(-1).values.tolist(), strict=True)
        return [
            [
                {"token": token, "tag": tag, "probability": round(value, 6)}
                for (token, tag), value in zip(named, values, strict=False)
            ]
            for named, values in sentences
        ]

    def panels(self, evidence: Evidence, tell: Tell) -> list[Section]:
        from lossnet.outputs.panels.tags import sections

        return sections(evidence, tell)


@dataclass(frozen=True)
class _AllTags:
    """The tags of all sentences, which can be iterated over several times."""

    targets: Callable[[], Iterable[TagColumn]]

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return (tags for target in self.targets() for tags in target.tags)
