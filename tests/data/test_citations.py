"""References with marked fields: reading, what is refused, the split, and what the named sets bring."""

import numpy as np
import pytest
import torch

from lossnet.data import DataError, Sentences
from lossnet.data.citation_rules import cora
from lossnet.data.citations import read_citations, tokens_of
from lossnet.energies import TokenFacts
from lossnet.loading import load
from lossnet.run import Run, train
from lossnet.settings import Settings

REFERENCE = """<NEWREFERENCE>
<author> A. B{0}, C. Doe. </author> <title> The art of number{0}. </title>
<journal> Journal of Things, </journal> <date> 19{0}. </date>
"""
TAGS = ("author", "booktitle", "date", "editor", "institution", "journal", "location", "note", "pages",
        "publisher", "tech", "title", "volume")  # fmt: skip
EVERY_FIELD = "<NEWREFERENCE>\n" + " ".join(f"<{tag}> {tag}, </{tag}>" for tag in TAGS) + "\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "cora_citations").mkdir()
    text = EVERY_FIELD + "".join(REFERENCE.format(10 + number) for number in range(59))
    (tmp_path / "cora_citations" / "tagged_references.txt").write_text(text)
    return tmp_path


def test_words_and_signs_have_the_tag_of_their_field(folder):
    data, _ = read_citations([folder / "cora_citations" / "tagged_references.txt"])
    assert len(data) == 60
    assert data.tokens[1][:6] == ("A", ".", "B10", ",", "C", ".")
    assert data.tags[1] == ("author",) * 8 + ("title",) * 5 + ("journal",) * 4 + ("date",) * 2
    assert tokens_of("`` a-b''") == ("`", "`", "a", "-", "b", "'", "'")


def test_the_split_is_of_all_rows_and_of_no_row_twice(folder):
    _, split = read_citations([folder / "cora_citations" / "tagged_references.txt"])
    parts = split.train, split.valid, split.test
    assert sorted(np.concatenate(parts)) == list(range(60))
    assert [len(part) for part in parts] == [38, 4, 18]


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("\n", "the file is empty", 1),
        ("<title> A. </title>\n", "text before the first", 1),
        ("<NEWREFERENCE>\n<title> A </title>\n<NEWREFERENCE>\n<date> 1 </date> so\n", "'so' is in no", 3),
        ("<NEWREFERENCE>\n<title> A. </date>\n", "is in no field", 1),
        ("<NEWREFERENCE>\n\n<NEWREFERENCE>\n", "no field with words", 1),
        ("<NEWREFERENCE>\n<title>  </title>\n", "no field with words", 1),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, text, what, line):
    path = tmp_path / "references.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=what) as caught:
        read_citations([path])
    assert caught.value.line == line


def test_segments_are_counted_and_accuracy_comes_first(folder):
    loaded = load("cora-citations", folder, embeddings=[])
    assert loaded.split_name == "files"
    assert loaded.task.output.tag_set.segments
    assert list(loaded.task.output.goals) == ["accuracy", "span-f1"]
    assert len(loaded.rules) == len(cora())


def test_the_rules_name_tags_of_the_set_and_hold_for_a_plain_reference():
    fields = {
        "author": "D. Ourston and R. J. Mooney.",
        "title": "Changing the rules.",
        "journal": "Journal of Logic,",
        "volume": "12(3),",
        "pages": "pp. 159-168,",
        "date": "May 1992.",
    }
    tokens = tuple(token for text in fields.values() for token in tokens_of(text))
    truth = [TAGS.index(name) for name, text in fields.items() for _ in tokens_of(text)]
    y = torch.nn.functional.one_hot(torch.tensor(truth), 13).float()[None, None]
    facts = {"tokens": TokenFacts((tokens,), TAGS)}
    broken = [rule.name for rule in cora() if rule.at(None, facts)(y).item() > 0]
    assert broken == []
    wrong = y.clone()
    wrong[..., 0, :] = wrong[..., 2, :] = torch.nn.functional.one_hot(torch.tensor(5), 13).float()
    assert sum(rule.at(None, facts)(wrong).item() for rule in cora()) > 5


def test_a_named_set_brings_its_rules(folder, recwarn):
    settings = Settings(epochs=2, task_hidden=8, ramp_up=1)
    run = Run(
        "cora-citations", "rules", None, settings, labelled=6, data_dir=folder, embeddings=[], progress=False
    )
    result = train(run)
    assert "suggests" in result["parts"]["rules"]
    assert result["measured"]["student"]["unlabelled"] > 0
    assert set(result["metrics"]["test"]) == {"accuracy", "span_f1", "precision", "recall"}


def test_sentences_tell_rules_their_tokens(folder):
    loaded = load("cora-citations", folder, embeddings=[], labelled=6)
    told = loaded.task.for_rules(loaded.unlabelled).take([1, 0]).batch(np.array([0]))
    source = loaded.unlabelled.source
    assert isinstance(source, Sentences)
    assert told.facts["tokens"].texts == (source.tokens[1],)
    assert told.facts["tokens"].tags == loaded.task.output.names
