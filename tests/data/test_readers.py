from __future__ import annotations

import sys

import numpy as np
import pytest

from lossnet.data import DataError, read, read_inputs
from lossnet.data.readers import read_arff, read_clus, read_frame

HIERARCHY = """@RELATION genes
@ATTRIBUTE level\tnumeric
@ATTRIBUTE level numeric
@ATTRIBUTE chip {A,B}
@ATTRIBUTE flag {no,yes}
@ATTRIBUTE class hierarchical 01,01/02,01/02/03,04/05
@DATA
0.5,1,A,no,01/02/03
?,2,?,yes,01@04/05
"""


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_labels_by_every_way(tmp_path):
    text = "@relation %s\n@attribute a {0,1}\n@attribute b {1,0}\n@attribute c real\n@data\n0,1,2\n"
    first = write(tmp_path, "first.arff", text % "'r: -C 2 -split 3'")
    assert read(first).label_names == ("a", "b")
    last = write(tmp_path, "last.arff", text % '"r: -c -1"')
    with pytest.raises(DataError, match="'c' is '2', neither 0 nor 1"):
        read(last)
    plain = write(tmp_path, "plain.arff", text % "r")
    assert read(plain, ["b", "a"]).label_names == ("b", "a")
    assert read(plain, "b,a").label_names == ("b", "a")
    assert read(plain, "[ab]").label_names == ("a", "b")
    assert read(plain, 2).y.toarray().tolist() == [[0, 1]]
    xml = write(tmp_path, "list.xml", '<labels><label name="b"><label name="a"/></label></labels>')
    assert read(plain, xml).label_names == read(plain, str(xml)).label_names == ("b", "a")
    assert read(plain, xml).y.toarray().tolist() == [[1, 0]]


def test_nominals(tmp_path):
    path = write(
        tmp_path,
        "a.arff",
        "@relation '-C 1'\n@attribute l {0,1}\n@attribute p {YES, NO}\n@attribute q {False,True}\n"
        "@attribute r {b,a,c}\n@attribute id string\n@data\n1,YES,?,a,one\n0,NO,True,?,'t w o'\n",
    )
    data = read(path, drop=["id"])
    assert data.feature_names == ("p", "q", "r=b", "r=a", "r=c")
    n = np.nan
    np.testing.assert_array_equal(data.x, [[1, n, 0, 1, 0], [0, 1, n, n, n]])


def test_sparse_rows_leave_out_the_first_value(tmp_path):
    path = write(
        tmp_path,
        "a.arff",
        "@relation '-C 2'\n@attribute k {1,0}\n@attribute l {0,1}\n@attribute p {YES,NO}\n"
        "@attribute r {b,a}\n@attribute s numeric\n@data\n"
        "{}\n{0 0, 1 1, 2 NO, 3 a, 4 2.5}\n{3 ?, 4 ?}\n",
    )
    data = read(path)
    n = np.nan
    assert data.is_sparse
    expected = [[1, 1, 0, 0], [0, 0, 1, 2.5], [1, n, n, n]]
    np.testing.assert_array_equal(data.x.toarray(), expected)
    assert data.y.toarray().tolist() == [[1, 0], [0, 1], [1, 0]]
    other = read_inputs(path, ["s", "r=a", "r=b", "p"], ["l"], drop=["k"])
    np.testing.assert_array_equal(other.x.toarray(), np.array(expected)[:, [3, 2, 1, 0]])
    with pytest.raises(DataError, match="'b' of 'r' did not occur in training"):
        read_inputs(path, ["s", "r=a", "p"], ["l"], drop=["k"], unknown="error")
    with pytest.warns(UserWarning, match=r"1 value that training did not have .* 1 of 'r' \('b'\)"):
        less = read_inputs(path, ["s", "r=a", "p"], ["l"], drop=["k"])
    np.testing.assert_array_equal(less.x.toarray(), [[0, n, 1], [2.5, 1, 0], [n, n, 1]])


def test_hierarchies(tmp_path):
    path = write(tmp_path, "a.arff", HIERARCHY)
    data = read(path)
    names = ("level", "level (2)", "chip=A", "chip=B", "flag=no", "flag=yes")
    assert data.feature_names == names
    n = np.nan
    np.testing.assert_array_equal(data.x, [[0.5, 1, 1, 0, 1, 0], [n, 2, n, n, 0, 1]])
    assert data.label_names == ("root", "01", "01/02", "01/02/03", "04", "04/05")
    assert data.y.toarray().tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 1]]
    assert read_clus(path, root=False).labels == 5
    with pytest.raises(DataError, match="0 hierarchical attributes"):
        read_clus(write(tmp_path, "b.arff", "@relation r\n@attribute a numeric\n@data\n1\n"))
    rooted = HIERARCHY.replace("04/05", "root")
    with pytest.raises(DataError, match="root=False"):
        read(write(tmp_path, "c.arff", rooted))


def test_hierarchies_at_prediction_time(tmp_path):
    data = read(write(tmp_path, "a.arff", HIERARCHY))
    rows = [line.rpartition(",")[0] for line in HIERARCHY.splitlines()[-2:]]
    head = HIERARCHY.splitlines()[:5]
    bare = write(tmp_path, "bare.arff", "\n".join([*head, "@DATA", *rows]) + "\n")
    again = read_inputs(bare, data.feature_names, data.label_names)
    np.testing.assert_array_equal(again.x, data.x)
    assert again.y.nnz == 0
    same = read_inputs(tmp_path / "a.arff", data.feature_names, data.label_names)
    np.testing.assert_array_equal(same.y.toarray(), data.y.toarray())
    with pytest.raises(DataError, match="'04' did not occur in training") as caught:
        read_inputs(tmp_path / "a.arff", data.feature_names, data.label_names[:4])
    assert caught.value.line == 9


def test_extreme_classification_and_libsvm(tmp_path):
    data = read(write(tmp_path, "a.txt", "3 2 2\n0,1 0:1 1:0.5\n 1:2\n\n"))
    assert data.x.toarray().tolist() == [[1, 0.5], [0, 2], [0, 0]]
    assert data.y.toarray().tolist() == [[1, 1], [0, 0], [0, 0]]
    new = write(tmp_path, "new.txt", "1 2 1\n 1:3\n")
    again = read_inputs(new, data.feature_names, data.label_names)
    assert again.x.toarray().tolist() == [[0, 3]]
    with pytest.raises(DataError, match="3 inputs, but the model was trained on 2"):
        read_inputs(write(tmp_path, "b.txt", "1 3 1\n 1:3\n"), data.feature_names, ["label_0"])

    data = read(write(tmp_path, "a.svm", "# note\n10,9 1:1\n9 3:2\n2:5\n\n"))
    assert data.feature_names == ("feature_1", "feature_2", "feature_3")
    assert data.label_names == ("9", "10")
    assert data.y.toarray().tolist() == [[1, 1], [1, 0], [0, 0]]
    again = read_inputs(write(tmp_path, "b.svm", "9 1:4\n"), data.feature_names, data.label_names)
    assert again.x.toarray().tolist() == [[4, 0, 0]]
    assert again.y.toarray().tolist() == [[1, 0]]
    with pytest.raises(DataError, match="unknown label '8'"):
        read_inputs(write(tmp_path, "c.svm", "8 1:4\n"), data.feature_names, data.label_names)
    with pytest.raises(DataError, match="feature 4"):
        read_inputs(write(tmp_path, "d.svm", "9 4:4\n"), data.feature_names, data.label_names)
    assert read(write(tmp_path, "e.svm", "x 0:1 2:1\n")).feature_names[0] == "feature_0"
    assert read(tmp_path / "a.svm", base=0, features=9).inputs == 9
    with pytest.raises(DataError, match="count from 1"):
        read(tmp_path / "e.svm", base=1)
    with pytest.raises(DataError, match="feature 3 occurs, but features=2"):
        read(tmp_path / "a.svm", features=2)
    with pytest.raises(ValueError, match="base must be"):
        read(tmp_path / "a.svm", base=2)


def test_tables(tmp_path):
    text = 'size,kind,code,l_a,l_b\n1,"x, y",3,0,True\n,z,4,1,no\n\n2.5,,3,1,1.0\n'
    path = write(tmp_path, "a.csv", text)
    data = read(path, labels="l_*", categories=["code"])
    assert data.feature_names == ("size", "kind=x, y", "kind=z", "code=3", "code=4")
    n = np.nan
    expected = [[1, 1, 0, 1, 0], [n, 0, 1, 0, 1], [2.5, n, n, 1, 0]]
    np.testing.assert_array_equal(data.x, expected)
    assert data.y.toarray().tolist() == [[0, 1], [1, 0], [1, 1]]
    new = write(tmp_path, "new.csv", "code,size,kind,id\n4,1,,9\n")
    again = read_inputs(new, data.feature_names, data.label_names, drop=["id"])
    np.testing.assert_array_equal(again.x, [[1, n, n, 0, 1]])
    other, trained = write(tmp_path, "b.csv", text.replace("4", "5")), (data.feature_names, ["l_a", "l_b"])
    with pytest.raises(DataError, match="'5' in 'code' did not occur in training") as caught:
        read_inputs(other, *trained, unknown="error")
    assert caught.value.line == 3
    with pytest.warns(UserWarning, match=r"b.csv: 1 value .* 1 of 'code' \('5'\)") as said:
        again = read_inputs(other, *trained)
    np.testing.assert_array_equal(again.x[:, 3:], [[1, 0], [n, n], [1, 0]])
    assert len(said) == 1
    with pytest.raises(DataError, match="--labels"):
        read(path)
    with pytest.raises(DataError, match="no column 'q'"):
        read(path, labels="l_*", drop=["q"])


def test_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(
        {"size": [1.0, None], "on": [True, False], "kind": ["x", None], "many": [3, 4], "l": [0, 1]}
    )
    frame["many"] = frame["many"].astype("category")
    path = tmp_path / "a.parquet"
    frame.to_parquet(path)
    data = read(path, labels=["l"])
    assert data.feature_names == ("size", "on", "kind=x", "many")
    np.testing.assert_array_equal(data.x, [[1, 1, 1, 3], [np.nan, 0, np.nan, 4]])
    assert data.y.toarray().tolist() == [[0], [1]]


def test_tables_without_the_extra(tmp_path, monkeypatch):
    for name in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    assert len(read(write(tmp_path, "a.csv", "a,l\n1,0\n"), labels="l")) == 1
    with pytest.raises(ImportError, match=r"lossnet\[parquet\]"):
        read(write(tmp_path, "a.parquet", "x"), labels="l")


def test_archives(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.eye(2), y=np.eye(2, dtype=int), label_names=np.array(["p", "q"]))
    data = read(path)
    assert data.label_names == ("p", "q")
    np.savez(path, x=np.eye(2))
    again = read_inputs(path, ["a", "b"], ["p"])
    assert again.feature_names == ("a", "b")
    assert again.y.shape == (2, 1)


REAL = [
    ("bibtex", {}, 7395, 1836, 159, 2.402),
    ("delicious", {}, 16105, 500, 983, 19.020),
    ("genbase", {"drop": ["protein"]}, 662, 1185, 27, 1.252),
    ("cal500", {}, 502, 68, 174, 26.044),
    ("emotions", {}, 593, 72, 6, 1.868),
]


@pytest.mark.parametrize(("name", "options", "rows", "inputs", "labels", "cardinality"), REAL)
def test_real_files(real_data, name, options, rows, inputs, labels, cardinality):
    data = read_arff(real_data / "mlc" / name / f"{name}.arff", **options)
    assert (len(data), data.inputs, data.labels) == (rows, inputs, labels)
    assert data.y.sum() / rows == pytest.approx(cardinality, abs=6e-4)
    assert not data.has_missing


@pytest.mark.parametrize(
    ("name", "rows", "inputs"),
    [("expr", (1639, 849, 1291), 561), ("spo", (1600, 837, 1266), 86)],
)
def test_real_hierarchies(real_data, name, rows, inputs):
    for part, count in zip(("train", "valid", "test"), rows, strict=True):
        data = read(real_data / "mlc" / f"{name}_fun" / f"{name}_FUN.{part}.arff")
        assert (len(data), data.inputs, data.labels) == (count, inputs, 500)
        assert data.y[:, [0]].sum() == count


def test_tables_as_spreadsheets_and_others_write_them(tmp_path):
    """Semicolons with decimal commas, NA for a missing number, and a column of names."""
    n = np.nan
    text = "\ufeffgröße;art;l_a;l_b\n1,5;NA;1;0\nNA;x, y;0;1\n-2;x, y;0;0\n"
    data = read(write(tmp_path, "a.csv", text), labels="l_*")
    assert data.feature_names == ("größe", "art=NA", "art=x, y")
    np.testing.assert_array_equal(data.x, [[1.5, 1, 0], [n, 0, 1], [-2, 0, 1]])
    for mark in ("?", "nan", "N/A", "null", "-"):
        other = write(tmp_path, "b.csv", f"size,l\n1,0\n{mark},1\n")
        np.testing.assert_array_equal(read(other, labels="l").x, [[1], [n]])
    rows = "".join(f"{i},The {i}th,{i % 3},{i % 2}\n" for i in range(60))
    with pytest.warns(UserWarning, match="'(title|id)' is left out"):
        titled = read(write(tmp_path, "c.csv", f"id,title,kind,l\n{rows}"), labels="l")
    assert titled.feature_names == ("kind",)
    new = write(tmp_path, "d.csv", ",title,id,kind\n0,never seen,1,2\n")
    assert read_inputs(new, titled.feature_names, ["l"]).x.tolist() == [[2]]
    with pytest.raises(DataError, match="'kind' is text; it had numbers in training"):
        read_inputs(write(tmp_path, "e.csv", "id,kind\n1,x\n"), titled.feature_names, ["l"])
    indexed = write(tmp_path, "f.csv", ",size,l\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(60)))
    with pytest.warns(UserWarning, match="'Unnamed: 0' is left out: it only counts the rows"):
        assert read(indexed, labels="l").feature_names == ("size",)
    with pytest.raises(DataError, match=r"there are id, title"):
        read(tmp_path / "c.csv", labels="q_*")


def test_columns_that_say_nothing_are_left_out(tmp_path):
    """Each for its reason, which is kept, and none of them in a table of few rows."""
    heading = "id,code,votes,title,when,language,empty,blank,size,l\n"

    def rows(count):
        dates = (f"{1 + i % 12:02}/{1 + i // 12:02}/{2001 + i % 2}" for i in range(count))
        cells = (
            (7 * i % 97, f"x{i}", 3 * i, f"The {i}th", d, "en", "", "NA", i % 5, i % 2)
            for i, d in enumerate(dates)
        )
        return heading + "".join(",".join(map(str, row)) + "\n" for row in cells)

    path = write(tmp_path, "a.csv", rows(60))
    with pytest.warns(UserWarning, match="is left out") as said:
        data = read(path, labels="l")
    assert data.source.origin.used == {"votes": "number", "size": "number"}
    assert data.source.origin.dropped == {
        "id": "an identifier; all 60 values are unique",
        "code": "an identifier; 60 of 60 values are unique",
        "title": "free text; 60 of 60 values are unique",
        "when": "dates such as '01/01/2001' may be read in two ways; "
        "write dates as 2001-03-04 to have them used",
        "language": "constant; all 60 values are 'en'",
        "empty": "all values are missing",
        "blank": "all values are missing",
    }
    assert len(said) == 7
    assert read_inputs(path, data.feature_names, ["l"]).x.tolist() == data.x.tolist()
    with pytest.warns(UserWarning, match="is left out: all values are missing"):
        few = read(write(tmp_path, "b.csv", rows(20)), labels="l")
    assert list(few.source.origin.used) == ["id", "code", "votes", "title", "when", "language", "size"]
    with (
        pytest.warns(UserWarning, match="'title' is left out"),
        pytest.raises(DataError, match=r"no column is left to predict from; .* --text"),
    ):
        read(write(tmp_path, "c.csv", "title,l\n" + "".join(f"The {i}th,1\n" for i in range(60))), labels="l")


def test_labels_that_are_not_named_are_guessed_in_the_advice(tmp_path):
    rows = "".join(f"{i},{'red;sweet' if i % 2 else 'sour'}\n" for i in range(20))
    with pytest.raises(DataError, match=r"'tags' looks like it: name them .* --labels 'tags'"):
        read(write(tmp_path, "a.csv", f"size,tags\n{rows}"))
    with pytest.raises(DataError, match=r"not known; name them .* --labels 'label_\*'"):
        read(write(tmp_path, "b.csv", "size,l\n1,0\n"))


def test_columns_of_lists_may_be_labels(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    lists = [["red", "sweet; sour"], [], None, ["red"]]
    parquet.write_table(pyarrow.table({"size": [1, 2, 3, 4], "tags": lists, "raw": [b"x"] * 4}), path)
    with pytest.warns(UserWarning, match="'raw' is left out: its values are of type binary"):
        data = read(path, labels="tags")
    assert data.label_names == ("red", "sweet; sour")
    assert data.y.toarray().tolist() == [[1, 1], [0, 0], [0, 0], [1, 0]]
    assert (
        read_inputs(path, ["size"], ["red", "sweet; sour"]).y.toarray().tolist() == data.y.toarray().tolist()
    )
    pandas = pytest.importorskip("pandas")
    framed = read_frame(pandas.DataFrame({"size": [1, 2, 3, 4], "tags": lists}), "tags")
    assert framed.y.toarray().tolist() == data.y.toarray().tolist()


def test_one_column_of_label_names(tmp_path):
    path = write(tmp_path, "a.csv", "size,tags\n1,sweet; red\n2,\n3,red\n")
    data = read(path, labels="tags")
    assert (data.feature_names, data.label_names) == (("size",), ("red", "sweet"))
    assert data.y.toarray().tolist() == [[1, 1], [0, 0], [1, 0]]
    again = read_inputs(path, data.feature_names, data.label_names)
    assert again.y.toarray().tolist() == data.y.toarray().tolist()
    bars = write(tmp_path, "b.csv", "size,tags\n1,a|b\n2,b\n")
    assert read(bars, labels=["tags"]).y.toarray().tolist() == [[1, 1], [0, 1]]
    with pytest.raises(DataError, match="'2', neither 0 nor 1"):
        read(write(tmp_path, "c.csv", "size,l\n1,0\n2,1\n3,2\n"), labels="l")
