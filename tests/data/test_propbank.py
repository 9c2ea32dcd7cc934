"""Predicates and their roles: reading, what is refused, and the named set."""

import numpy as np
import pytest
import torch

from lossnet.data import DataError
from lossnet.data.propbank import PredicateSentences, read_propbank, stream_propbank
from lossnet.energies import TokenFacts
from lossnet.loading import load

HER = """# sent_id = 1
0 She PRP (S* - - (ARG0*) *
1 has VBZ * - - * *
2 given VBN * give give.01 (V*) *
3 up RP * - - (C-V*) *
4 , , * - - * *
5 singing VBG *) sing sing.01 (ARG1* (V*)
6 songs NNS *) - - *) (ARG1*)

0 Why WRB * - -
1 ? . * - -

0 Rain NN * rain rain.01 (V*)
"""


def tabbed(text):
    return "\n".join(line if line.startswith("#") else "\t".join(line.split()) for line in text.splitlines())


@pytest.fixture
def path(tmp_path):
    (tmp_path / "her.conll").write_text(tabbed(HER))
    return tmp_path / "her.conll"


def test_each_predicate_is_an_instance(path):
    data, split = read_propbank([path, path, path])
    assert len(data) == 9
    assert [len(rows) for rows in (split.train, split.valid, split.test)] == [3, 3, 3]
    her = ("She", "has", "given", "up", ",", "singing", "songs")
    assert data.source.tokens[:3] == (her, her, ("Rain",))
    assert data.source.places[:3] == (2, 5, 0)
    assert data.source.columns["pos"][2] == ("NN",)
    assert data.source.columns["rolesets"][0] == ("-", "-", "give.01", "-", "-", "sing.01", "-")


def test_roles_are_in_bio_without_the_predicate_itself(path):
    data, _ = read_propbank([path] * 3)
    assert data.target.tags[:3] == (
        ("B-ARG0", "O", "O", "O", "O", "B-ARG1", "I-ARG1"),
        ("O", "O", "O", "O", "O", "O", "B-ARG1"),
        ("O",),  # a predicate without roles
    )


def test_predicates_are_read_without_roles(path):
    read = list(stream_propbank(path, labelled=False, every=True))
    assert [one.places for one in read] == [(2, 5), (), (0,)]
    assert all(one.tags == () for one in read)


def test_a_sentence_of_300_tokens_is_read(tmp_path):
    rows = [f"{at} word NN * - - *" for at in range(299)] + ["299 rains VBZ * rain rain.01 (V*)"]
    (tmp_path / "long.conll").write_text(tabbed("\n".join(rows)))
    data, _ = read_propbank([tmp_path / "long.conll"] * 3)
    assert data.source.places[0] == 299
    assert len(data.source.tokens[0]) == 300


@pytest.mark.parametrize(
    ("rows", "line", "what"),
    [
        (["0 a NN * a a.01 (A0*", "1 b NN * - - *"], 1, r"\(A0\* is not closed in its sentence; write \*\)"),
        (["0 a NN * a a.01 *", "1 b NN * - - *)"], 2, "column 7 closes a bracket that is not open"),
        (["0 a NN * a a.01 (A0*", "1 b NN * - - (A1*)"], 2, r"\(A1\* begins inside of \(A0\*, which line 4"),
        (["0 a NN * a a.01 A0*", "1 b NN * - - *"], 1, r"column 7 is 'A0\*'; roles are \(ARG0\*, \*, \*\)"),
        (["0 a NN * a a.01 (A0*)", "1 b NN * - - *"], 1, r"column 7 has roles, but no predicate, \(V\*\)"),
        (["0 a NN * a a.01 (V*) *", "1 b NN * - - * *"], 1, r"2 column\(s\) of roles for 1 predicate"),
        (["0 a NN * a a.01", "1 b NN * - -"], 1, r"0 column\(s\) of roles for 1 predicate"),
        (["0 a NN * - - (A0*)", "1 b NN * - - *"], 1, r"1 column\(s\) of roles for 0 predicate"),
        (["0 a NN *", "1 b NN *"], 1, r"4 column\(s\); a token has 6"),
        (["0 a NN * a a.01 (V*)", "1 b NN * - -"], 2, "6 column.s. where 7 are expected"),
    ],
)
def test_broken_files_are_refused_with_their_line(tmp_path, rows, line, what):
    whole = "# id\n0 Rain NN * rain rain.01 (V*)\n\n"  # a sentence of two lines and a gap comes first
    (tmp_path / "broken.conll").write_text(tabbed(whole + "\n".join(rows) + "\n"))
    with pytest.raises(DataError, match=what) as caught:
        read_propbank([tmp_path / "broken.conll"] * 3)
    assert caught.value.line == line + 3
    assert "broken.conll" in str(caught.value)


def test_a_file_without_predicates_is_refused(tmp_path):
    (tmp_path / "none.conll").write_text(tabbed("0 Why WRB * - -\n1 ? . * - -\n"))
    with pytest.raises(DataError, match="no predicate; the sixth column has the roleset"):
        read_propbank([tmp_path / "none.conll"] * 3)


def test_marks_stay_with_their_sentences():
    sentences = PredicateSentences.of([("a", "b"), ("c",), ("d",)], [[0, 1], [], [0]])
    assert sentences.tokens == (("a", "b"), ("a", "b"), ("c",), ("d",))
    assert sentences.places == (0, 1, None, 0)
    taken = sentences.take(np.array([3, 1]))
    assert isinstance(taken, PredicateSentences)
    assert taken.places == (0, 1)
    assert taken.join([sentences]).places == (0, 1, 0, 1, None, 0)


def test_the_named_set_brings_roles_and_rules(path, tmp_path):
    folder = tmp_path / "ewt_propbank"
    folder.mkdir()
    for part in ("train", "dev", "test"):
        (folder / f"ewt.{part}.conll").write_text(tabbed(HER))
    loaded = load("ewt-propbank", tmp_path, embeddings=[])
    assert loaded.task.title == "the roles of a predicate from sentences and their predicates"
    assert loaded.split_name == "files"
    assert len(loaded.train) == 3
    assert loaded.task.output.names == ("O", "B-ARG0", "I-ARG0", "B-ARG1", "I-ARG1")
    facts = {"tokens": TokenFacts(loaded.train.source.tokens[:1], loaded.task.output.names)}
    y = torch.eye(5)[torch.tensor([[[1, 0, 0, 0, 0, 3, 4], [1, 1, 0, 0, 0, 4, 4]]])]
    broken = {rule.name: rule.broken((None, facts), y)[0].tolist() for rule in loaded.rules}
    assert broken == {
        "bio": [0, 1],
        "unique_core_roles": [0, 1],
        "continuations": [0, 0],
        "references": [0, 0],
    }
    batch = loaded.train.batch(torch.tensor([0]))
    assert batch.x.shape[-1] == 4
    assert batch.x[0, :, 1].tolist().count(batch.x[0, 2, 1].item()) == 1
    assert "V" in loaded.task.input.lexicon.features["predicate"].strings
