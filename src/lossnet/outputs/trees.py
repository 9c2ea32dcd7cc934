"""The constituency tree of a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from lossnet.brackets import PLAIN, Tree, bracketed, drawn, read_tree
from lossnet.data import DataError, Sentences, Source, TagColumn, TagSet, TreeColumn
from lossnet.decoding import Decision, Decoder
from lossnet.inputs import Arrays, Schema
from lossnet.outputs.base import Output, Predicted
from lossnet.outputs.tags import Tags
from lossnet.scores import Meter, meter
from lossnet.settings import Settings
from lossnet.spaces import Trees as TreeSpace

if TYPE_CHECKING:
    from lossnet.report.evidence import Evidence, Section, Tell


class Trees(Tags):
    """The constituency tree of a sentence, spelled by a tag for every word; see `lossnet.brackets`.

    Networks, energies and methods are those of tags.  Decoding finds the likeliest tags that spell a tree.

    >>> import torch
    >>> trees = Trees.fit([TreeColumn((("l:NP L:S", "r"),))])
    >>> relaxed = trees.space(Settings()).zeros(torch.zeros(1, 2, 1))
    >>> relaxed[0, 0, trees.names.index("l:NP L:S")] = relaxed[0, 1, trees.names.index("r")] = 1
    >>> trees.named(relaxed, Sentences([["Ann", "left"]]))
    ['(TOP (S (NP Ann) left))']
    """

    kind = "trees"
    summary = "constituency trees"
    target = TreeColumn

    @classmethod
    def fit(cls, parts: Sequence[TagColumn]) -> Trees:
        tags = {tag for part in parts for row in part.tags for tag in row}
        return cls(TagSet(tuple(sorted(tags | {*PLAIN}))))

    @classmethod
    def accepts(cls, y: Any) -> bool:
        return False

    @classmethod
    def collect(cls, y: Any, source: Source) -> TagColumn:
        raise DataError("trees are not read from Python objects; give Examples with a TreeColumn")

    def preparing(self, targets: Callable[[], Iterable[TagColumn]]) -> Callable[[TagColumn], TagColumn]:
        def prepare(target: TagColumn) -> TagColumn:
            if not isinstance(target, TreeColumn):
                raise DataError("these are tags and no trees; evaluate on the data set that has the trees")
            return target.encoded(self.tag_set)

        return prepare

    @classmethod
    def describe(cls, parts: Sequence[TagColumn], frequent: int = 10) -> dict[str, Any]:
        tags = Counter(tag for part in parts for row in part.tags for tag in row)
        trees = (read_tree(row) for part in parts for row in part.tags)
        labels = Counter(span.kind for tree in trees for span in tree)
        return {
            "tags": len(tags),
            "constituents": labels.total(),
            "frequent_labels": tuple(labels.most_common(frequent)),
        }

    def space(self, settings: Settings) -> TreeSpace:
        return self._space

    @cached_property
    def _space(self) -> TreeSpace:
        return TreeSpace(len(self.names), self.names)

    def meter(self, decision: Decision) -> Meter:
        return meter(self._space)  # which decodes, and says how often there was need to

    def known(self, known: Any, source: Source) -> Tensor:
        return Output.known(self, known, source)

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Trees:
        trees = cls(TagSet.from_state(content))
        trees.space(Settings())  # a ValueError if its tags spell no trees
        return trees

    def trees(self, decoded: Tensor, source: Source) -> list[Tree]:
        """Return the constituents of each sentence."""
        assert isinstance(source, Sentences)
        rows = zip(decoded.argmax(-1).tolist(), source.tokens, strict=True)
        return [read_tree([self.names[tag] for tag in row[: len(tokens)]]) for row, tokens in rows]

    def named(self, decoded: Tensor, source: Source) -> list[Any]:
        """Return the tree of each sentence in one line, with brackets as treebanks have them."""
        assert isinstance(source, Sentences)
        return list(map(bracketed, self.trees(decoded, source), source.tokens))

    def lines(self, predicted: Iterable[Predicted], decoder: Decoder) -> Iterator[str]:
        """Yield each sentence's tree in indented lines, and an empty one after it."""
        for part in predicted:
            assert isinstance(part.source, Sentences)
            trees = self.trees(part.outputs(decoder), part.source)
            yield from (f"{drawn(*one)}\n\n" for one in zip(trees, part.source.tokens, strict=True))

    def panels(self, evidence: Evidence, tell: Tell) -> list[Section]:
        from lossnet.outputs.panels.trees import sections

        return sections(evidence, tell)

    answer: ClassVar[Schema] = {"type": "string"}

    def answers(self, relaxed: Tensor, decoder: Decoder, source: Source, items: Sequence[Any]) -> list[Any]:
        return self.named(decoder(relaxed), source)
