from __future__ import annotations

from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossnet.data import DataError
from lossnet.data.readers.clusters import read_clusters
from lossnet.data.readers.columns import read_columns


@pytest.fixture
def written(tmp_path):
    def write(content: str | bytes):
        path = tmp_path / "news.conll"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def cells(separators: str):
    characters = st.characters(exclude_characters=f"{separators}\n\r\0\ufeff", exclude_categories=["Cs"])
    text = st.text(characters, min_size=1, max_size=5)
    return text.filter(lambda cell: cell.strip() and not cell.startswith("-DOCSTART-"))


def sentences(separators: str):
    return st.lists(st.lists(st.tuples(*[cells(separators)] * 2), min_size=1), min_size=1)


@given(sentences("\t"))
def test_what_is_written_with_tabs_is_read(rows):
    assert read_back(rows, "\t") == rows


@given(sentences("\t "))
def test_what_is_written_with_spaces_is_read(rows):
    assert read_back(rows, "  ") == rows


def read_back(rows, separator):
    text = "\n\n".join("\n".join(separator.join(row) for row in sentence) for sentence in rows)
    with TemporaryDirectory() as folder:
        path = f"{folder}/sentences"
        with open(path, "wb") as file:
            file.write(text.encode())
        return read_columns(path)


def test_documents_and_blank_lines(written):
    text = "-DOCSTART- -X- O O\n\n\nEU NNP I-NP I-ORG\n\t\n \n-DOCSTART- -X- O O\nPeter NNP I-NP I-PER\n\n"
    assert read_columns(written(text)) == [
        [("EU", "NNP", "I-NP", "I-ORG")],
        [("Peter", "NNP", "I-NP", "I-PER")],
    ]
    assert read_columns(written(text.replace("\n", "\r\n"))) == read_columns(written(text))


def test_hashes(written):
    tweets = "# sent_id = 1\n# text = 2\n#cholera\t#\n# \t,\n\n# sent_id = 2\n#\t,\n"
    assert read_columns(written(tweets)) == [[("#cholera", "#"), ("# ", ",")], [("#", ",")]]
    assert read_columns(written("# # O\na D O\n")) == [[("#", "#", "O"), ("a", "D", "O")]]  # no comments here
    with pytest.raises(DataError, match=r"news\.conll:2: 1 column\(s\) where 2 are expected"):
        read_columns(written("a\tD\n#cholera\n"))
    with pytest.raises(DataError, match=r":2: 1 column\(s\)"):
        read_columns(written("a\tD\n# within a sentence\n"))


def test_tokens_of_no_break_spaces(written):
    assert read_columns(written("\xa0\tG\n\u2003Senior\tA\n")) == [[("\xa0", "G"), ("\u2003Senior", "A")]]


def test_sentences_may_differ_in_columns(written):
    text = "0\tWhere\t*\n1\tis\t*\n\n0\tFalls\n"
    assert [len(rows[0]) for rows in read_columns(written(text))] == [3, 2]
    with pytest.raises(DataError, match=r":4: 2 column\(s\) where 3 are expected, separated by tabs"):
        read_columns(written(text), 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"news\.conll:1: the file is empty"),
        ("\n\n", ":1: the file is empty"),
        ("-DOCSTART- -X- O O\n\n", ":2: no sentence"),
        ("EU NNP O\nrejects VBZ\n", r":2: 2 column\(s\) where 3 are expected, separated by spaces"),
        ("EU NNP O\nrejects VBZ O O\n", r":2: 4 column\(s\) where 3"),
        ("EU\t\tO\n", ":1: column 2 is empty"),
        ("EU\tNNP\n\tVBZ\n", ":2: column 1 is empty"),
        (b"EU O\n\nM\xfcnchen I-LOC\n", ":3: not utf-8 text.*latin-1"),
        (b"EU O\n\0\n", ":2: a NUL character"),
    ],
)
def test_bad_files(written, content, message):
    with pytest.raises(DataError, match=message):
        read_columns(written(content))


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.conll: no such file"):
        read_columns(tmp_path / "nothing.conll")


def test_other_encodings(written):
    assert read_columns(written("Köln O".encode("latin-1")), encoding="latin-1") == [[("Köln", "O")]]


def test_clusters(written):
    text = "01\tthe\t7\n10\t<URL-t.co>\t5\n11\t<URL-bit.ly>\t9\n00\t<URL-fb.me>\t2\n0\t<@MENTION>\t20\n"
    assert read_clusters(written(text)) == {"the": "01", "<url>": "11", "<user>": "0"}


@pytest.mark.parametrize(
    "line", ["01 the 7", "012\tthe\t7", "01\t\t7", "01\tthe\tmany", "01\tthe", "01\tthe\t7\t8"]
)
def test_what_is_no_file_of_clusters(written, line):
    with pytest.raises(DataError, match=":2: not bits, a word and a count"):
        read_clusters(written(f"01\tof\t7\n{line}\n"))


@pytest.mark.parametrize(
    ("file", "count", "columns"),
    [
        ("twitter_pos/oct27.train", 1000, 2),
        ("twitter_pos/daily547.conll", 547, 2),
        ("conll2003/eng.testa", 3250, 4),
        ("umass_citations/test.txt", 367, 2),
        ("ewt_propbank/ewt.dev.conll", 1967, None),
    ],
)
def test_real_files(real_data, file, count, columns):
    assert len(read_columns(real_data / file, columns)) == count
