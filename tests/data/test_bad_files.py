"""Every bad file gives one `DataError` that names the file and the line."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lossnet.data import DataError, Split, read, read_inputs

HEAD = "@relation 'r: -C 2'\n@attribute a {0,1}\n@attribute b {0,1}\n@attribute c numeric\n"
ARFF = HEAD + "@attribute d {x,y,z}\n@data\n"  # rows start in line 7
CLUS = "@relation r\n@attribute a numeric\n@attribute class hierarchical 01,01/02\n@data\n"

# name, content, line, words of the message
CASES = [
    ("empty.arff", "", 1, "empty"),
    ("blank.arff", "\n \n", 1, "empty"),
    ("no_data.arff", HEAD, 4, "without @data"),
    ("no_rows.arff", ARFF, 6, "no rows"),
    ("no_attributes.arff", "@relation r\n@data\n1\n", 2, "without any @attribute"),
    ("garbage.arff", "hello\n", 1, "is this an ARFF"),
    ("short_row.arff", ARFF + "0,1,2,x\n0,1,2\n", 8, "3 values for 4"),
    ("long_row.arff", ARFF + "0,1,2,x,5\n", 7, "5 values for 4"),
    ("trailing_comma.arff", ARFF + "0,1,2,'x',\n", 7, "5 values for 4"),
    ("undeclared.arff", ARFF + "0,1,2,w\n", 7, "not a declared value of 'd'"),
    ("undeclared_quoted.arff", ARFF + "0,1,2,'w'\n", 7, "not a declared value of 'd'"),
    ("label_two.arff", ARFF + "0,2,2,x\n", 7, "label 'b' is '2', neither 0 nor 1"),
    ("label_missing.arff", ARFF + "?,1,2,x\n", 7, "label 'a' is missing"),
    ("nan.arff", ARFF + "0,1,NaN,x\n", 7, "not finite; write \\?"),
    ("inf.arff", ARFF + "% note\n0,1,-inf,x\n", 8, "not finite"),
    ("huge.arff", ARFF + "0,1,1e99,x\n", 7, "too large"),
    ("word.arff", ARFF + "0,1,two,x\n", 7, "'two' in 'c' is not a number"),
    ("underscore.arff", ARFF + "0,1,1_0,x\n", 7, "not a number"),
    ("empty_cell.arff", ARFF + "0,1,,x\n", 7, "not a number"),
    ("open_quote.arff", ARFF + "0,1,2,'x\n", 7, "does not close"),
    ("twice.arff", HEAD + "@attribute c numeric\n@data\n0,1,2,3\n", 5, "declared twice"),
    ("bad_type.arff", HEAD + "@attribute e colour\n@data\n", 5, "no type we know"),
    ("string.arff", HEAD + "@attribute e string\n@data\n0,1,2,hi\n", 5, "drop=\\['e'\\]"),
    ("open_brace.arff", HEAD + "@attribute e {x,y\n@data\n", 5, "do not end"),
    ("twice_value.arff", HEAD + "@attribute e {x,x}\n@data\n", 5, "a value twice"),
    ("empty_value.arff", HEAD + "@attribute e {x,,y}\n@data\n", 5, "empty value"),
    ("after_brace.arff", HEAD + "@attribute e {x} y\n@data\n", 5, "follows the values"),
    ("name_quote.arff", HEAD + "@attribute 'e numeric\n@data\n", 5, "close its quote"),
    ("clash.arff", HEAD + "@attribute e {p,q}\n@attribute e=p real\n@data\n0,1,2,p,1\n", 7, "wice"),
    ("nominal_label.arff", "@relation '-C 1'\n@attribute a {x,y}\n@data\nx\n", 2, "other than 0"),
    ("too_many.arff", "@relation '-C 3'\n@attribute a {0,1}\n@data\n1\n", 1, "3 labels of 1"),
    ("no_labels.arff", "@relation r\n@attribute a {0,1}\n@data\n1\n", 1, "no labels named"),
    ("sparse_open.arff", ARFF + "{0 1,2 5}\n{0 1,2 5\n", 8, "without its '}'"),
    ("sparse_range.arff", ARFF + "{0 1,4 5}\n", 7, "index 4, but there are only 4"),
    ("sparse_twice.arff", ARFF + "{0 1,0 1}\n", 7, "given twice"),
    ("sparse_order.arff", ARFF + "{2 5,0 1}\n", 7, "must increase"),
    ("sparse_index.arff", ARFF + "{a 1}\n", 7, "pairs"),
    ("sparse_negative.arff", ARFF + "{-1 1}\n", 7, "pairs"),
    ("sparse_alone.arff", ARFF + "{0}\n", 7, "pairs"),
    ("sparse_comma.arff", ARFF + "{0 1,}\n", 7, "pairs"),
    ("sparse_quoted_comma.arff", ARFF + "{3 'x',}\n", 7, "pairs"),
    ("sparse_value.arff", ARFF + "{3 w}\n", 7, "not a declared"),
    ("sparse_label.arff", ARFF + "{0 3}\n", 7, "neither 0 nor 1"),
    ("sparse_nan.arff", ARFF + "{2 nan}\n", 7, "not finite"),
    ("mixed.arff", ARFF + "{0 1}\n0,1,2,x\n", 8, "dense row among sparse"),
    ("mixed_too.arff", ARFF + "0,1,2,x\n{0 1}\n", 8, "sparse row among dense"),
    ("unknown_node.arff", CLUS + "1,01\n2,01/02@03\n", 6, "unknown label '03'"),
    ("no_class.arff", CLUS + "1,?\n", 5, "class is missing"),
    ("node_twice.arff", CLUS.replace("01/02", "01") + "1,01\n", 3, "a node twice"),
    ("node_empty.arff", CLUS.replace("01/02", "01/") + "1,01\n", 3, "without a name"),
    ("clus_short.arff", CLUS + "1,01\n1\n", 6, "1 values for 2"),
    ("clus_sparse.arff", CLUS + "{0 1,1 01}\n", 5, "sparse rows in a hierarchical"),
    ("empty.txt", "", 1, "empty"),
    ("short.txt", "2 3 2\n0 0:1\n", 2, "says 2 rows but there are 1"),
    ("long.txt", "1 3 2\n0 0:1\n1 1:1\n", 3, "says 1 rows but there are 2"),
    ("label.txt", "1 3 2\n2 0:1\n", 2, "label 2, but there are only 2"),
    ("feature.txt", "1 3 2\n0 3:1\n", 2, "feature 3, but there are only 3"),
    ("order.txt", "1 3 2\n0 1:1 0:1\n", 2, "must increase"),
    ("repeat.txt", "1 3 2\n0 1:1 1:1\n", 2, "given twice"),
    ("label_repeat.txt", "1 3 2\n0,0 1:1\n", 2, "label is given twice"),
    ("cut.txt", "1 3 2\n0 1:\n", 2, "not a number"),
    ("cut_more.txt", "1 3 2\n0 1\n", 2, "not 'feature:value'"),
    ("fraction.txt", "1 3 2\n0.5 1:1\n", 2, "not a whole number"),
    ("index.txt", "1 3 2\n0 x:1\n", 2, "not a whole number"),
    ("nan.txt", "1 3 2\n0 1:nan\n", 2, "not finite"),
    ("zero.txt", "0 3 2\n", 1, "has a zero"),
    ("blank.svm", "a 1:1\n\nb 1:1\n", 2, "empty line"),
    ("comments.svm", "# only\n", 1, "no rows"),
    ("nan.svm", "a 1:1\na 2:inf\n", 2, "not finite"),
    ("order.svm", "a 2:1 1:1\n", 1, "must increase"),
    ("comma.svm", "a,,b 1:1\n", 1, "empty label"),
    ("colon.svm", "a 1:1 2\n", 1, "not 'feature:value'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "line", "message"), CASES, ids=[c[0] for c in CASES])
def test_bad_file(tmp_path, name, content, line, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert (caught.value.path, caught.value.line) == (str(path), line)


CSV = "size,kind,l_a,l_b\n"
CSV_CASES = [
    ("", 1, "empty"),
    (CSV, 1, "no rows"),
    (CSV + "1,x,0,1\n1,x,0\n", 3, "3 cells for 4"),
    (CSV + "1,x,0,1,1\n", 2, "5 cells for 4"),
    (CSV + '1,"x\ny",0,1\n1,x,0,2\n', 4, "label 'l_b' is '2', neither"),
    (CSV + "1,x,0,1\ninf,x,0,1\n", 3, "not finite; leave the cell empty"),
    (CSV + "1,x,0,1\n-Infinity,x,0,1\n", 3, "not finite"),
    (CSV + "1,x,0,1\nbig,x,0,1\n", 3, "'big' in 'size' is not a number"),
    (CSV + '1,"x,0,1\n', 2, "close its quotes"),
    ("size,size,l_a\n1,1,1\n", 1, "there twice"),
    ("size,,l_a\n1,1,1\n", 1, "without a name"),
    ("size,kind\n1,1\n", 1, "no column 'l_\\*' for labels"),
]


@pytest.mark.parametrize(("content", "line", "message"), CSV_CASES)
def test_bad_table(tmp_path, content, line, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read(path, labels="l_*")
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("name", ["a.arff", "a.csv", "a.tsv", "a.parquet", "a.txt", "a.svm", "a.npz", "a"])
def test_missing_file(tmp_path, name):
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / name)


def test_unknown_extension_and_folder(tmp_path):
    (tmp_path / "a.xyz").write_text("1")
    with pytest.raises(DataError, match=r"not known by the extension '\.xyz'"):
        read(tmp_path / "a.xyz")
    (tmp_path / "folder.arff").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "folder.arff")


@pytest.mark.parametrize("name", ["a.arff", "a.csv", "a.txt", "a.svm"])
def test_wrong_encoding(tmp_path, name):
    path = tmp_path / name
    path.write_bytes("% fine\n% café\n".encode("latin-1"))
    with pytest.raises(DataError, match="encoding='latin-1'") as caught:
        read(path)
    assert caught.value.line == 2
    path.write_bytes("a b\n".encode("utf-16-le"))
    with pytest.raises(DataError, match="NUL"):
        read(path)
    with pytest.raises(DataError, match="no encoding"):
        read(path, encoding="klingon")


def test_right_encoding(tmp_path):
    path = tmp_path / "a.arff"
    path.write_bytes("@relation '-C 1'\r\n@attribute café {0,1}\r\n@data\r\n1\r\n".encode("latin-1"))
    assert read(path, encoding="latin-1").label_names == ("café",)
    path.write_bytes(b"\xef\xbb\xbf" + "@relation '-C 1'\n@attribute café {0,1}\n@data\n1".encode())
    assert read(path).label_names == ("café",)


XML = '<labels xmlns="http://mulan.sourceforge.net/labels">\n<label name="a"/>\n%s</labels>\n'


@pytest.mark.parametrize(
    ("xml", "line", "message"),
    [
        (XML % '<label name="z"></label>', 3, "label 'z' is no attribute"),
        (XML % '<label name="a"></label>', 3, "listed twice"),
        (XML % "<label></label>", 3, "without name"),
        ("<labels></labels>", 1, "no <label>"),
        (XML.replace("</labels>", "") % "", 4, "not a readable XML"),
        ("", 1, "not a readable XML"),
    ],
)
def test_bad_label_list(tmp_path, xml, line, message):
    path = tmp_path / "a.arff"
    path.write_text(ARFF.replace("-C 2", "") + "0,1,2,x\n")
    path.with_suffix(".xml").write_text(xml)
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path.with_suffix('.xml')}:{line}: ")


@pytest.mark.parametrize("labels", [["a"], 3, None, -1])
def test_two_labels_declared_and_another_number_given(tmp_path, labels):
    path = tmp_path / "a.arff"
    path.write_text(ARFF + "0,1,2,x\n")
    path.with_suffix(".xml").write_text(XML % "")
    with pytest.raises(DataError, match="declares 2 labels") as caught:
        read(path, labels)
    assert caught.value.line == 1


def test_unknown_names(tmp_path):
    path = tmp_path / "a.arff"
    path.write_text(ARFF + "0,1,2,x\n")
    with pytest.raises(DataError, match="label 'q' is no attribute"):
        read(path, ["q"])
    with pytest.raises(DataError, match="no attribute 'q' to drop"):
        read(path, drop=["q"])
    with pytest.raises(TypeError, match="no option 'colour'"):
        read(path, colour=1)
    with pytest.raises(DataError, match="no such file"):
        read(path, "missing.xml")
    (tmp_path / "a.txt").write_text("1 1 1\n0 0:1\n")
    with pytest.raises(DataError, match="leave labels= out"):
        read(tmp_path / "a.txt", labels=["x"])


def test_bad_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    path.write_bytes(b"no parquet at all")
    with pytest.raises(DataError, match="not a readable Parquet"):
        read(path, labels="l")
    parquet.write_table(pyarrow.table({"a": [1.0, float("inf")], "l": [0, 1]}), path)
    with pytest.raises(DataError, match="not finite") as caught:
        read(path, labels="l")
    assert caught.value.line == 2
    parquet.write_table(pyarrow.table({"a": [[1], [2]], "l": [0, 1]}), path)
    with (
        pytest.warns(UserWarning, match="'a' is left out: its values are of type list<"),
        pytest.raises(DataError, match="no column is left to predict from"),
    ):
        read(path, labels="l")
    nanoseconds = pyarrow.array([2**62], pyarrow.timestamp("ms"))
    parquet.write_table(pyarrow.table({"a": nanoseconds, "l": [1]}), path)
    with pytest.raises(DataError, match="'a' has a date outside of the years 1 to 9999"):
        read(path, labels="l")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.eye(2)}, "must have x and y"),
        ({"x": np.eye(2), "y": np.array([[0], [2]])}, "neither 0 nor 1"),
        ({"x": np.array([{}]), "y": np.eye(1)}, "plain arrays"),
    ],
)
def test_bad_archive(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"text"])
def test_unreadable_archive(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"empty|not a readable \.npz"):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"train": [0],\n "valid": [1]', "not JSON"),
        ("[1]", "not a split"),
        ('{"train": [0], "valid": [1]}', "'test' is missing or empty"),
        ('{"train": [0], "valid": [], "test": [2]}', "'valid' is missing or empty"),
        ('{"train": [0], "valid": [1], "test": [4]}', "row 4 in 'test'; rows go from 0 to 3"),
        ('{"train": [0], "valid": [1], "test": [-1]}', "row -1"),
        ('{"train": [0], "valid": [1], "test": [0]}', "in 'train' and 'test'"),
        ('{"train": [0, 0], "valid": [1], "test": [2]}', "row 0 is given twice, in 'train'"),
        ('{"train": [0.0], "valid": [1], "test": [2]}', "not a row number"),
        ('{"train": [true], "valid": [1], "test": [2]}', "not a row number"),
        ("", "empty"),
    ],
)
def test_bad_split(tmp_path, content, message):
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        Split.read(path, rows=4)
    assert str(caught.value).startswith(f"{path}:")


def test_every_cut_of_a_file_is_an_error_or_whole_rows(tmp_path):
    """Wherever a file is cut, the result is a `DataError` or rows that were really there."""
    text = ARFF + "0,1,2.5,x\n1,0,?,'y'\n1,1,4,z\n"
    path = tmp_path / "a.arff"
    path.write_text(text)
    whole = read(path)
    for end in range(len(text)):
        path.write_text(text[:end])
        try:
            cut = read(path)
        except DataError:
            continue
        np.testing.assert_array_equal(cut.x, whole.x[: len(cut)])


WHOLE = {
    "a.arff": ARFF + "0,1,2.5,x\n1,0,?,'y'\n1,1,4,z\n",
    "sparse.arff": ARFF + "{0 1,2 2.5}\n{}\n{1 1,3 'y'}\n",
    "clus.arff": CLUS + "1,01\n?,01/02@01\n",
    "a.txt": "2 3 2\n0,1 0:1 2:0.5\n 1:1\n",
    "a.svm": "a,b 1:1 3:0.5\nb 2:1\n",
    "a.csv": 'size,kind,l\n1,x,0\n,"y, z",1\n',
    "dates.csv": "at,day,l\n2001-03-04 10:30:00Z,4 May 2001,0\n,05.06.2001,1\n",
    "a.tsv": "size\tkind\tl\n1\tx\t0\n2\ty\t1\n",
}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(WHOLE)), st.data())
def test_damaged_files_are_read_or_refused(name, draw):
    """No damage to a file may surface as anything but a `DataError`."""
    text = WHOLE[name]
    start = draw.draw(st.integers(0, len(text)))
    end = draw.draw(st.integers(start, min(len(text), start + 5)))
    marks = st.sampled_from("'\"\\ ,{}%?@:#\t\n-01.ex=/&<é\x85\u2028")
    damage = draw.draw(st.text(marks, max_size=4))
    options = {"labels": "l"} if name[-2:] == "sv" else {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(text[:start] + damage + text[end:], encoding="utf-8")
        outcome = read_or_error(path, **options)
    if isinstance(outcome, DataError):
        assert (outcome.path, outcome.line is not None) == (str(path), True)
    else:
        assert len(outcome) > 0


def read_or_error(path, **options):
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*is left out|.*are no dates", UserWarning)
            return read(path, **options)
    except DataError as error:
        return error


ROWS = "@relation r\n@attribute c numeric\n@attribute d {x,z}\n@data\n1,z\n"


def test_inputs_must_be_those_of_training(tmp_path):
    path = tmp_path / "new.arff"
    path.write_text(ROWS)
    features = ["d=x", "d=y", "d=z", "c"]
    data = read_inputs(path, features, ["a", "b"])
    assert data.x.tolist() == [[0, 0, 1, 1]]
    assert data.feature_names == tuple(features)
    assert data.y.toarray().tolist() == [[0, 0]]
    many = [f"e{i}" for i in range(7)]
    with pytest.raises(DataError, match=r"lacks 7 .*'e0', 'e1', 'e2', 'e3', 'e4', …"):
        read_inputs(path, [*features, *many], ["a"])
    assert read_inputs(path, features[:3], ["a"]).x.tolist() == [[0, 0, 1]]
    with pytest.raises(DataError, match="'z' of 'd' did not occur in training") as caught:
        read_inputs(path, ["c", "d=x", "d=y"], ["a"], unknown="error")
    assert caught.value.line == 5
    with pytest.warns(UserWarning, match=r"arff: 1 value that .* counts as missing: 1 of 'd' \('z'\)"):
        data = read_inputs(path, ["c", "d=x", "d=y"], ["a"])
    np.testing.assert_array_equal(data.x, [[1, np.nan, np.nan]])
