from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossnet.data import DataError, Embeddings, read_embeddings
from lossnet.data.embeddings import RULES, find_spelling, spellings


@pytest.fixture
def written(tmp_path):
    def write(content: str):
        path = tmp_path / "glove.txt"
        path.write_text(content, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("word", "known", "rule", "spelling"),
    [
        ("EU", {"EU", "eu", "Eu"}, "as is", "EU"),
        ("EU", {"eu", "Eu"}, "lower case", "eu"),
        ("EU", {"Eu"}, "capitalised", "Eu"),
        ("paris", {"Paris"}, "capitalised", "Paris"),
        ("1996-08-22", {"0"}, "number", "0"),
        ("7/4", {"0"}, "number", "0"),
        ("10th", {"0"}, None, None),
        ("--", {"0"}, None, None),
        ("3.5", {"<number>"}, "kind", "<number>"),
        ("@e_one", {"<user>"}, "kind", "<user>"),
        ("@", {"<user>"}, None, None),
        ("HTTP://t.co/x", {"<url>"}, "kind", "<url>"),
        ("www.x.org", {"<url>"}, "kind", "<url>"),
        ("#fun", {"<hashtag>"}, "kind", "<hashtag>"),
        ("#fun", {"<hashtag>", "#fun"}, "as is", "#fun"),
        ("#", {"<hashtag>"}, None, None),
        ("!!!", {"!"}, "repeats", "!"),
        ("Sooo", {"so"}, "repeats", "so"),
        ("word", {"other"}, None, None),
    ],
)
def test_back_off(word, known, rule, spelling):
    found = find_spelling(word, known)
    assert found == (None if rule is None else (rule, spelling))


@given(st.text())
def test_the_order_of_rules(word):
    rules = [rule for rule, _ in spellings(word)]
    assert rules[0] == "as is"
    assert rules == sorted(rules, key=RULES.index)


def small() -> Embeddings:
    return Embeddings("small", ("eu", "0", "Paris"), np.arange(6).reshape(3, 2))


def test_matrix():
    table = small()
    assert table.vectors.dtype == np.float32
    assert table.dimensions == 2
    assert "eu" in table
    assert "EU" not in table
    matrix = table.matrix(["EU", "nowhere", "PARIS", "12"])
    np.testing.assert_array_equal(matrix, [[0, 1], [0, 0], [4, 5], [2, 3]])
    assert table.matrix([]).shape == (0, 2)


@given(st.lists(st.sampled_from(["eu", "EU", "Eu", "12", "Paris", "paris", "no", "11"])))
def test_coverage_counts_tokens_and_types(tokens):
    report = small().coverage(tokens)
    for shares, words in ((report.tokens, tokens), (report.types, sorted(set(tokens)))):
        found = Counter(rule[0] for rule in (find_spelling(word, small()) for word in words) if rule)
        assert shares == {rule: found[rule] / len(words) for rule in RULES if found[rule]}


def test_coverage_is_readable():
    report = small().coverage(["EU", "EU", "Paris", "no"])
    tokens = "75.0 % of tokens (as is 25.0, lower case 50.0)"
    assert str(report) == f"small: {tokens}, 66.7 % of types (as is 33.3, lower case 33.3)"
    assert str(small().coverage(["no"])) == "small: 0.0 % of tokens, 0.0 % of types"


def test_text_and_arrays_agree(tmp_path, written):
    vectors = np.array([[0.5, -1.25], [3, 1e-3], [7, 8]], dtype=np.float16)
    np.savez(tmp_path / "glove.npz", words=np.array(["the", "é", ". ."]), vectors=vectors)
    lines = [f"{word} {a:.12f} {b:.12f}" for word, (a, b) in zip(("the", "é", ". ."), vectors, strict=True)]
    text = written("\n".join(lines) + "\n")
    for path in (tmp_path / "glove.npz", text):
        table = read_embeddings(path)
        assert table.name == path.name
        assert table.words == ("the", "é", ". .")
        np.testing.assert_allclose(table.vectors, vectors.astype(np.float32))


def test_a_header_and_trailing_spaces(written):
    table = read_embeddings(written("2 3\nthe 1 2 3 \nof 4 5 6 \n"))
    assert table.words == ("the", "of")
    np.testing.assert_array_equal(table.vectors, [[1, 2, 3], [4, 5, 6]])


def test_the_first_of_two_vectors_counts(written):
    table = read_embeddings(written("a 1 2\nb 3 4\na 5 6\n"))
    assert table.words == ("a", "b")
    np.testing.assert_array_equal(table.vectors, [[1, 2], [3, 4]])


@pytest.mark.parametrize("end", ["of 4 5", "of", "of 4 5 -", ""])
def test_a_last_line_that_is_cut_short(written, end):
    path = written(f"the 1 2 3\n{end}\n")
    with pytest.warns(UserWarning, match=r"glove\.txt:2: not a word and 3 numbers; the file is cut short"):
        table = read_embeddings(path)
    assert table.words == ("the",)
    assert table.vectors.shape == (1, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ":1: the file is empty"),
        ("400000 100\n", ":1: no vectors"),
        ("the\nof\n", ":1: not a word and 0 numbers"),
        ("the 1 2\nof 1\nto 1 2\n", ":2: not a word and 2 numbers"),
        ("the 1 2\nof 1 x\nto 1 2\n", ":2: not a word and 2 numbers"),
        ("the 1 nan\nof 1 2\n", "vector of 'the' has a value that is not finite"),
        ("the 1 1e40\nof 1 2\n", "not finite"),
    ],
)
def test_bad_text(written, content, message):
    with pytest.raises(DataError, match=message):
        read_embeddings(written(content))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(2)}, r"has arrays \['x'\]; it must have words and vectors"),
        ({"words": np.array(["a"]), "vectors": np.zeros(1)}, r"floats \(n, dimensions\)"),
        ({"words": np.array([1]), "vectors": np.zeros((1, 2))}, "they must be strings"),
        ({"words": np.array(["a"]), "vectors": np.zeros((2, 2))}, "1 words but 2 vectors"),
        (
            {"words": np.array(["a"]), "vectors": np.full((1, 2), np.inf)},
            "'a' has a value that is not finite",
        ),
    ],
)
def test_bad_arrays(tmp_path, arrays, message):
    np.savez(tmp_path / "glove.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_embeddings(tmp_path / "glove.npz")


def test_words_and_vectors_must_match():
    with pytest.raises(DataError, match=r"1 words but vectors of the shape \(2, 2\)"):
        Embeddings("mine", ("a",), np.zeros((2, 2)))
