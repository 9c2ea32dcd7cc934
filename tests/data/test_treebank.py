"""Trees in column files: what is read, what is refused and where, and the data set of that name."""

import pytest

from lossnet.brackets import bracketed
from lossnet.data import DataError, read_treebank
from lossnet.loading import load

ROWS = """# sent_id = 1
0\tWhere\tWRB\t(TOP(SBARQ(WHADVP*)\t-
1\tam\tVBP\t(SQ*\t-
2\tI\tPRP\t(NP*))\t-
3\t?\t.\t*))\t-

0\tGo\tVB\t(TOP(S(VP*)))\tgo
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ewt_propbank").mkdir()
    for part in ("train", "dev", "test"):
        (tmp_path / "ewt_propbank" / f"ewt.{part}.conll").write_text(ROWS)
    return tmp_path


def test_words_and_their_trees_are_read(folder):
    data, split = read_treebank([folder / "ewt_propbank" / "ewt.dev.conll"] * 3)
    trees = [bracketed(*one) for one in zip(data.target.trees, data.source.tokens, strict=True)]
    assert (
        trees[:2]
        == trees[2:4]
        == trees[4:]
        == ["(TOP (SBARQ (WHADVP Where) (SQ am (NP I)) ?))", "(TOP (S (VP Go)))"]
    )
    assert data.source.columns["pos"][0] == ("WRB", "VBP", "PRP", ".")
    assert data.target.tags[0][3] == "r."
    assert [len(part) for part in (split.train, split.valid, split.test)] == [2, 2, 2]


def test_a_tree_needs_no_root_and_may_have_two(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("0\tGo\tVB\t(S(VP*))\n\n0\tGo\tVB\t(TOP(TOP*))\n\n0\tGo\tVB\t(S*\n1\ton\tRP\t(PRT*))\n")
    data, _ = read_treebank([path])
    trees = [[span.kind for span in tree] for tree in data.target.trees]
    assert trees == [["S", "VP"], ["TOP"], ["S", "PRT"]]


def test_three_hundred_words_are_read(tmp_path):
    path = tmp_path / "a.conll"
    rows = [f"{n}\tw\tNN\t(NP*\t-\n" for n in range(299)]
    path.write_text("".join([*rows, f"299\tw\tNN\t*{')' * 299}\t-\n"]))
    data, _ = read_treebank([path])
    assert len(data.source.tokens[0]) == 300
    assert len(data.target.trees[0]) == 299


@pytest.mark.parametrize(
    ("bits", "what", "line"),
    [
        (["(TOP(S*", "*"], "not closed at the end of the sentence: TOP, S", 3),
        (["(S*", "*))"], r"closes 2 brackets, and 1 are open", 3),
        (["*)", "*"], "closes 1 brackets, and 0 are open", 2),
        (["(S*)", "(NP*)"], "the tree has ended before 'w1'", 3),
        (["(S*)", "*"], "the tree has ended before 'w1'", 3),
        (["(S", "*)"], "is no bit of a tree", 2),
        (["(S(*", "*))"], "is no bit of a tree", 2),
        (["S*", "*"], "is no bit of a tree", 2),
        (["(S>VP*", "*)"], "is no bit of a tree", 2),
        (["(S*)(", "*"], "is no bit of a tree", 2),
        (["((S*", "*))"], "is no bit of a tree", 2),
    ],
)
def test_broken_trees_are_refused_with_file_and_line(tmp_path, bits, what, line):
    path = tmp_path / "a.conll"
    path.write_text("# id\n" + "".join(f"{n}\tw{n}\tNN\t{bit}\t-\n" for n, bit in enumerate(bits)))
    with pytest.raises(DataError, match=what) as refused:
        read_treebank([path])
    assert (refused.value.path, refused.value.line) == (str(path), line)


def test_lines_are_counted_over_sentences(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(ROWS + "\n\n# sent_id = 3\n0\tw\tNN\t(S*\n")
    with pytest.raises(DataError, match="not closed") as refused:
        read_treebank([path])
    assert refused.value.line == 11


def test_columns_must_be_there(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("0\tw\tNN\n")
    with pytest.raises(DataError, match="3 columns where 4 are needed") as refused:
        read_treebank([path])
    assert refused.value.line == 1


def test_the_set_is_known_by_name(folder):
    loaded = load("ewt-trees", folder, embeddings=())
    assert (loaded.split_name, len(loaded.train), len(loaded.test)) == ("files", 2, 2)
    assert loaded.task.title == "constituency trees from sentences"
    assert loaded.task.input.lexicon.columns == ()
    assert load("ewt-trees", folder, embeddings=(), features="words+pos").task.input.lexicon.columns == (
        "pos",
    )
