"""Random tables written in each format and read back."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lossnet.data.readers import read, read_inputs
from lossnet.data.readers.text import BINARY_PAIRS

ODD = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("'\"\\ ,{}%?@\t=\n"),
    min_size=1,
    max_size=6,
)
NUMBERS = st.floats(-1e6, 1e6, width=32) | st.just(0.0)
few = settings(max_examples=40, deadline=None)


@st.composite
def tables(draw, names=ODD, missing=True):
    rows, inputs, labels = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    columns = draw(st.lists(names, min_size=inputs + labels, max_size=inputs + labels, unique=True))
    cell = NUMBERS | st.just(float("nan")) if missing else NUMBERS
    x = [[draw(cell) for _ in range(inputs)] for _ in range(rows)]
    y = [[draw(st.integers(0, 1)) for _ in range(labels)] for _ in range(rows)]
    return columns, np.array(x, dtype=np.float32), np.array(y)


def quoted(name: str, mark: str = "'") -> str:
    name = name.replace("\\", "\\\\").replace(mark, "\\" + mark)
    return mark + name.replace("\n", "\\n").replace("\t", "\\t") + mark


def dense(data) -> np.ndarray:
    return data.x.toarray() if data.is_sparse else data.x


def spell(value: float) -> str:
    return "?" if np.isnan(value) else repr(float(value))


@few
@given(tables(), st.booleans(), st.sampled_from("'\""), st.randoms())
def test_arff(table, as_sparse, mark, random):
    columns, x, y = table
    inputs = x.shape[1]
    order = list(range(len(columns)))
    random.shuffle(order)  # labels may stand anywhere among the attributes
    lines = ["% a comment", "@RELATION odd", ""]
    for i in order:
        kind = "numeric" if i < inputs else "{0, 1}"
        lines.append(f"@attribute {quoted(columns[i], mark)} {kind}")
    lines.append("@data")
    for row in range(len(x)):
        cells = [spell(x[row, i]) if i < inputs else str(y[row, i - inputs]) for i in order]
        if as_sparse:
            pairs = (f"{i} {cell}" for i, cell in enumerate(cells) if cell not in ("0", "0.0"))
            lines.append("{" + ", ".join(pairs) + "}")
        else:
            lines.append(", ".join(cells))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "odd.arff")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        escaped = (quoteattr(n, {"\n": "&#10;", "\t": "&#9;"}) for n in columns[inputs:])
        labels = "\n".join(f"<label name={name}/>" for name in escaped)
        text = f'<labels xmlns="http://mulan.sourceforge.net/labels">{labels}</labels>'
        path.with_suffix(".xml").write_text(text, encoding="utf-8")
        data = read(path)
        again = read_inputs(path, data.feature_names[::-1], data.label_names)
    assert data.is_sparse == as_sparse
    assert list(data.label_names) == columns[inputs:]
    assert list(data.feature_names) == [columns[i] for i in order if i < inputs]
    place = [data.feature_names.index(name) for name in columns[:inputs]]
    np.testing.assert_array_equal(dense(data)[:, place], x)
    np.testing.assert_array_equal(data.y.toarray(), y)
    np.testing.assert_array_equal(dense(again)[:, ::-1], dense(data))


@few
@given(
    st.lists(ODD, min_size=2, max_size=4, unique_by=str.lower),
    st.lists(st.integers(-1, 3), min_size=1, max_size=5),
    st.booleans(),
)
def test_nominal_values_of_any_spelling(values, codes, as_sparse):
    values = [value if value != "?" else "'?'" for value in values]
    codes = [code if code < len(values) else 0 for code in codes]
    words = ["?" if code < 0 else quoted(values[code]) for code in codes]
    rows = [f"{{1 1, 2 {word}}}" if as_sparse else f"0,1,{word}" for word in words]
    text = "@relation 'r -C 2'\n@attribute a {0,1}\n@attribute b {0,1}\n"
    text += f"@attribute c {{{','.join(map(quoted, values))}}}\n@data\n" + "\n".join(rows) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "odd.arff")
        path.write_text(text, encoding="utf-8")
        data = read(path)
    assert data.label_names == ("a", "b")
    if data.inputs == 1:  # two words that mean no and yes
        assert {value.lower() for value in values} in BINARY_PAIRS
        return
    assert data.feature_names == tuple(f"c={value}" for value in values)
    expected = np.eye(len(values))[codes]
    expected[np.array(codes) < 0] = np.nan
    np.testing.assert_array_equal(dense(data), expected)


@few
@given(tables(missing=False))
def test_extreme_classification(table):
    _, x, y = table
    lines = [f"{len(x)} {x.shape[1]} {y.shape[1]}"]
    lines += [f"{labels_of(y[i])} {features_of(x[i], 0)}".rstrip("\n") for i in range(len(x))]
    data = written("a.txt", lines)
    np.testing.assert_array_equal(dense(data), x)
    np.testing.assert_array_equal(data.y.toarray(), y)


@few
@given(tables(missing=False), st.sampled_from([0, 1]))
def test_libsvm(table, base):
    _, x, y = table
    x[:, 0] = np.where(x[:, 0] == 0, 1, x[:, 0])  # a row needs something, and 0 must be seen
    lines = [f"{labels_of(y[i])} {features_of(x[i], base)} # note" for i in range(len(x))]
    data = written("a.svm", lines, features=x.shape[1], labels=y.shape[1])
    assert data.feature_names[0] == f"feature_{base}"
    np.testing.assert_array_equal(dense(data), x)
    np.testing.assert_array_equal(data.y.toarray(), y)


NAMES = ODD.filter(lambda name: name == name.strip())


@few
@given(tables(names=NAMES), st.sampled_from([",", "\t"]))
def test_csv(table, delimiter):
    columns, x, y = table
    inputs = x.shape[1]
    x[0] = np.where(np.isnan(x).all(0), 1, x[0])  # a column without any number is left out
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv" if delimiter == "," else "a.tsv")
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(columns)
            for numbers, labels in zip(x, y, strict=True):
                writer.writerow(["" if np.isnan(v) else repr(float(v)) for v in numbers] + list(labels))
        data = read(path, labels=columns[inputs:])
        again = read_inputs(path, columns[:inputs][::-1], columns[inputs:])
    assert list(data.feature_names) == columns[:inputs]
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y.toarray(), y)
    np.testing.assert_array_equal(again.x[:, ::-1], x)
    np.testing.assert_array_equal(again.y.toarray(), y)


def labels_of(row) -> str:
    return ",".join(str(i) for i in np.flatnonzero(row))


def features_of(row, base: int) -> str:
    return " ".join(f"{i + base}:{float(row[i])!r}" for i in np.flatnonzero(row))


def written(name: str, lines: list[str], **options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text("\n".join(lines) + "\n")
        return read(path, **options)
