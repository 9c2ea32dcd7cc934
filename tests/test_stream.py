"""Files in parts give what they give as a whole."""

import csv
import json
import os
import threading
import tracemalloc
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from lossnet import Settings, stream
from lossnet.build import build
from lossnet.cli import main
from lossnet.data import DataError, Lexicon, Preprocessor, Sentences, TagSet, read_sentences
from lossnet.data.readers import read, read_inputs, stream_inputs
from lossnet.data.readers.columns import read_columns, stream_columns
from lossnet.data.readers.text import read_lines, stream_lines
from lossnet.decoding import Decision
from lossnet.inputs import Features, Fitting, Words, features, words
from lossnet.loading import load
from lossnet.model import Model
from lossnet.outputs import Labels, Tags
from lossnet.task import Task

ARFF = """@relation 'x: -C 2'
@attribute p {0,1}
@attribute q {0,1}
@attribute size numeric
@attribute kind {a,b,c}
@data
"""
CLUS = """@relation genes
@attribute level numeric
@attribute kind {a,b}
@attribute class hierarchical 01,01/02,03
@data
"""


def numbers(count):
    random = np.random.default_rng(0)
    return random.normal(size=(count, 2)).round(3), random.integers(0, 2, (count, 2))


def text_of(kind, count=10):
    x, y = numbers(count)
    rows = list(zip(x.tolist(), y.tolist(), strict=True))
    if kind in ("csv", "tsv"):
        mark = "," if kind == "csv" else "\t"
        cells = [[f"{a}", "bac"[i % 3], f"{b}" * (i != 4), p, q] for i, ((a, b), (p, q)) in enumerate(rows)]
        lines = [["size", "kind", "width", "is_p", "is_q"], *cells, []]
        return "\n".join(mark.join(map(str, line)) for line in lines)
    if kind == "arff":
        return (
            ARFF
            + "% so\n"
            + "\n".join(f"{p},{q},{a},{'abc?'[i % 4]}" for i, ((a, _), (p, q)) in enumerate(rows))
        )
    if kind == "sparse.arff":
        return ARFF + "\n".join(f"{{0 {p}, 2 {a}}}" for (a, _), (p, _) in rows)
    if kind == "clus.arff":
        return CLUS + "\n".join(
            f"{a},{'ab?'[i % 3]},{('01/02', '03@01', '03')[i % 3]}" for i, ((a, _), _) in enumerate(rows)
        )
    sparse_rows = [f"{','.join(str(i) for i in (0, 1) if y[i]) or '0'} 1:{x[0]} 3:{x[1]}" for x, y in rows]
    if kind == "xc.txt":
        return f"{count} 4 2\n" + "\n".join(sparse_rows) + "\n\n"
    return "# about\n" + "\n".join(f"{row} # so" for row in sparse_rows) + "\n\n"


KINDS = ["csv", "tsv", "arff", "sparse.arff", "clus.arff", "xc.txt", "svm", "parquet", "npz"]


@pytest.fixture(params=KINDS)
def file(request, tmp_path):
    """A file of each format, as training saw it."""
    path = tmp_path / f"data.{request.param}"
    if request.param == "parquet":
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        x, y = numbers(10)
        table = {"size": x[:, 0], "kind": list("abcabcabca"), "is_p": y[:, 0], "is_q": y[:, 1]}
        pandas.DataFrame(table).to_parquet(path, row_group_size=4)
    elif request.param == "npz":
        x, y = numbers(10)
        np.savez(path, x=x, y=y)
    else:
        path.write_text(text_of(request.param))
    return path


def dense(matrix):
    return matrix.toarray() if sparse.issparse(matrix) else matrix


@pytest.mark.parametrize("rows", [3, 100])
def test_parts_of_a_file_are_the_file(file, rows):
    labels = "is_*" if file.suffix in (".csv", ".tsv", ".parquet") else None
    trained = read(file, labels=labels)
    names = (
        (trained.feature_names[::-1], trained.label_names)
        if file.suffix != ".svm"
        else (
            trained.feature_names,
            trained.label_names,
        )
    )
    whole = read_inputs(file, *names)
    parts = list(stream_inputs(file, *names, rows=rows))
    if file.suffix != ".npz":
        assert [len(part) for part in parts] == ([3, 3, 3, 1] if rows == 3 else [10])
    assert all((part.feature_names, part.label_names) == names for part in parts)
    for of in ("x", "y"):
        joined = np.concatenate([dense(getattr(part, of)) for part in parts])
        np.testing.assert_array_equal(joined, dense(getattr(whole, of)))
    assert whole.y.sum() > 0


@pytest.mark.parametrize(
    ("kind", "line", "wrong", "complaint"),
    [
        ("csv", 9, "1,a,x,0,0", "width"),
        ("csv", 9, "1,a", "2 cells for 5"),
        ("arff", 14, "0,1,x,a", "'x' in 'size' is not a number"),
        ("arff", 14, "{2 0.5}", "sparse row among dense"),
        ("svm", 9, "0 9:1", "only 3"),
        ("svm", 9, "", "an empty line"),
        ("xc.txt", 9, "7 1:1", "label 7"),
    ],
)
def test_what_is_wrong_far_into_a_file_has_its_line(tmp_path, kind, line, wrong, complaint):
    path = tmp_path / f"data.{kind}"
    path.write_text(text_of(kind))
    trained = read(path, labels="is_*" if kind == "csv" else None)
    lines = path.read_text().split("\n")
    lines[line - 1] = wrong
    path.write_text("\n".join(lines))
    parts = stream_inputs(path, trained.feature_names, trained.label_names, rows=2)
    assert [len(part) for part in islice(parts, 2)] == [2, 2]
    with pytest.raises(DataError, match=complaint) as caught:
        list(parts)
    assert f":{line}:" in str(caught.value) or complaint == "width"


@pytest.mark.parametrize(("rows", "found"), [(9, 10), (12, 11)])
def test_a_header_that_counts_wrong_is_told_of_at_the_end(tmp_path, rows, found):
    path = tmp_path / "data.txt"
    path.write_text(text_of("xc.txt").replace("10 4 2", f"{rows} 4 2"))
    parts = stream_inputs(path, [f"feature_{i}" for i in range(4)], ["label_0", "label_1"], rows=4)
    assert len(next(parts)) == 4
    with pytest.raises(DataError, match=f"says {rows} rows but there are {found}"):
        list(parts)


@given(st.text(st.sampled_from("ab \t,é\r\n\u2028"), max_size=30), st.booleans())
def test_lines_are_the_same_one_at_a_time(tmp_path_factory, text, bom):
    path = tmp_path_factory.mktemp("lines") / "file.txt"
    path.write_bytes(b"\xef\xbb\xbf" * bom + text.encode())

    def attempt(reader):
        try:
            return list(reader())
        except DataError as error:
            return str(error)

    assert attempt(lambda: stream_lines(path)) == attempt(lambda: read_lines(path, "utf-8"))


@pytest.mark.parametrize("content", [b"", b" \n", b"a\n\xff\n", b"a\n\n\0b"])
def test_files_that_are_no_text_are_refused(tmp_path, content):
    path = tmp_path / "file.csv"
    path.write_bytes(content)
    with pytest.raises(DataError) as whole:
        read_lines(path, "utf-8")
    with pytest.raises(DataError) as streamed:
        list(stream_lines(path))
    assert str(streamed.value)[:60] == str(whole.value)[:60]
    with pytest.raises(DataError, match="no such file"):
        next(stream_inputs(tmp_path / "absent.csv", ["a"], ["b"]))


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "long.svm"
    path.write_text("0 1:0.5 7:1 20:3\n1 2:1\n" * 6000)
    names = [f"feature_{i}" for i in range(1, 21)], ["0", "1"]

    def peak(work):
        tracemalloc.start()
        work()
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    parts = peak(lambda: [len(part) for part in stream_inputs(path, *names, rows=500)])
    assert parts < peak(lambda: read_inputs(path, *names)) / 5


# ---------------------------------------------------------------- models over files


@pytest.fixture
def labels(tmp_path):
    """A model that was trained on nothing, and a file for it."""
    path = tmp_path / "data.csv"
    path.write_text(text_of("csv", 40))
    data = read(path, labels="is_*")
    preprocessor = Preprocessor.fit(data.source, standardise=True)
    task = Task(Features(data.feature_names, preprocessor), Labels(data.label_names))
    torch.manual_seed(0)
    settings = Settings(task_hidden=4)
    model = Model(
        build("cross-entropy", "none", settings, task),
        ("cross-entropy", "none"),
        settings,
        task,
        Decision(0.4),
    )
    return model, path


def test_labels_of_a_file_in_parts(labels, tmp_path, monkeypatch, capsys):
    model, path = labels
    data = read_inputs(path, model.feature_names, model.label_names)
    whole = model.predict_proba(data.x)
    truth = torch.from_numpy(dense(data.y)).float()
    wanted = model.task.output.meter(model.decision).measure(torch.from_numpy(whole), truth)
    monkeypatch.setattr(features, "stream_inputs", partial(stream_inputs, rows=7))
    parts = list(stream.predict(model, path))
    assert [len(part.source) for part in parts] == [7, 7, 7, 7, 7, 5]
    np.testing.assert_allclose(torch.cat([part.relaxed for part in parts]).numpy(), whole, rtol=1e-6)
    assert stream.evaluate(model, path) == pytest.approx(wanted, rel=1e-6)
    model.save(tmp_path / "run")
    out = tmp_path / "out.csv"
    assert main(["predict", str(tmp_path / "run"), str(path), "-o", str(out)]) == 0
    with out.open() as file:
        _, *rows = csv.reader(file)
    assert [int(row[0]) for row in rows] == list(range(40))
    np.testing.assert_allclose(np.array([row[2:] for row in rows], dtype=float), whole, rtol=1e-5)
    with path.open("a") as file:
        file.write("1,x\n")
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(path), "-o", str(out)]) == 2
    assert ":42: 2 cells for 5" in capsys.readouterr().err
    assert len(out.read_text().splitlines()) == 36, "what was predicted before the bad row is kept"


def test_rules_and_facts_in_parts(labels, tmp_path, monkeypatch, capsys):
    model, path = labels
    model.save(tmp_path / "run")
    totals = [(number % 5 if number % 5 < 4 else "") for number in range(40)]
    lines = path.read_text().rstrip("\n").split("\n")
    told = tmp_path / "told.csv"
    told.write_text(
        "\n".join(f"{line},{total}" for line, total in zip(lines, ["total", *totals], strict=True))
    )
    rules = tmp_path / "rules.py"
    rules.write_text("from lossnet.energies import sums_to\ntotal = sums_to({'is_p': 1, 'is_q': 2})")
    monkeypatch.setattr(features, "stream_inputs", partial(stream_inputs, rows=7))

    def predicted(*given):
        capsys.readouterr()
        assert main(["predict", str(tmp_path / "run"), str(told), *map(str, given)]) == 0
        rows = csv.DictReader(capsys.readouterr().out.splitlines())
        return [("is_p" in row["labels"]) + 2 * ("is_q" in row["labels"]) for row in rows]

    alone = predicted()
    under = predicted("--rules", rules, "--facts", "total")
    assert under == [now if total == "" else total for now, total in zip(alone, totals, strict=True)]
    assert alone != under

    def refused(*given):
        assert main(["predict", str(tmp_path / "run"), *map(str, given)]) == 2
        return capsys.readouterr().err

    assert "--facts are what rules read; give a file of rules too" in refused(told, "--facts", "total")
    assert "there are none" in refused(told, "--rules", rules)
    assert "no column 'sum'" in refused(told, "--rules", rules, "--facts", "sum")
    rules.write_text(
        "import lossnet\n@lossnet.rule\ndef odd(x, y, facts):\n"
        "    assert not (facts['number'] == 33).any(), 'no such number'\n    return y.sum(-1) * 0"
    )
    lines = zip(["number", *range(40)], told.read_text().split("\n"), strict=True)
    told.write_text("\n".join(f"{line},{number}" for number, line in lines))
    said = refused(told, "--rules", rules, "--facts", "total", "number")
    assert "rule odd raises AssertionError on row 33: no such number" in said
    told.write_text(told.read_text().replace(",30\n", ",thirty\n"))
    said = refused(told, "--rules", rules, "--facts", "number", "total")
    assert "row 31 has 'thirty' in the column of facts 'number'" in said


def test_rules_of_sentences_on_the_command_line(tmp_path, capsys):
    tagger_of().save(tmp_path / "run")
    rules = tmp_path / "rules.py"
    given = ["predict", str(tmp_path / "run"), "--text", "Ann saw Bo\n\nBo saw Ann", "--rules", str(rules)]
    rules.write_text("from lossnet.energies import suggests\nverb = suggests('saw', 'V', weight=99)\n")
    rules.write_text(rules.read_text() + "noun = suggests('Ann|Bo', 'N', weight=99)")
    assert main(given) == 0
    assert capsys.readouterr().out.split() == [
        "Ann",
        "N",
        "saw",
        "V",
        "Bo",
        "N",
        "Bo",
        "N",
        "saw",
        "V",
        "Ann",
        "N",
    ]
    rules.write_text("from lossnet.energies import suggests\nverb = suggests('saw', 'VB')")
    assert main(given) == 2
    assert "rule suggests('saw', VB) is about 'VB', which is no tag; " in capsys.readouterr().err
    assert main([*given, "--facts", "total"]) == 2
    assert "--facts and --encoding are for a file, not for --text" in capsys.readouterr().err


def test_what_is_read_is_not_written_over(labels, tmp_path, capsys):
    model, path = labels
    model.save(tmp_path / "run")
    before = path.read_bytes()
    (tmp_path / "link.csv").symlink_to(path)
    for out in (path, tmp_path / "run" / ".." / path.name, tmp_path / "link.csv"):
        assert main(["predict", str(tmp_path / "run"), str(path), "-o", str(out)]) == 2
        assert "is the input file; choose another --output" in capsys.readouterr().err
        assert path.read_bytes() == before


@pytest.mark.parametrize("scheme", ["IOB1", "none"])
def test_tags_of_a_file_in_parts(tmp_path, scheme, monkeypatch):
    spans = ["I-PER I-PER O I-LOC", "O I-PER B-PER O", "O I-LOC I-LOC O"]
    tags = [row if scheme == "IOB1" else row.replace("-", "") for row in spans] * 5
    sentences = ["Ann Lee saw Rome", "so Bo Cy ran", "in New York ."] * 5
    pairs = [list(zip(a.split(), b.split(), strict=True)) for a, b in zip(sentences, tags, strict=True)]
    path = tmp_path / "data.conll"
    path.write_text(
        "\n\n".join("\n".join(f"{word} {len(word)} {tag}" for word, tag in rows) for rows in pairs)
    )
    read_whole, _ = read_sentences([path])
    task = Task.fit([read_whole], Fitting(features=("case", "column2")))
    (data,) = task.prepare([read_whole])
    torch.manual_seed(0)
    settings = Settings(task_hidden=4)
    model = Model(build("cross-entropy", "none", settings, task), ("cross-entropy", "none"), settings, task)
    wanted = task.output.meter(Decision()).measure(*model.probabilities(data))
    monkeypatch.setattr(words, "ROWS", 4)
    for labelled in (False, True):
        parts = list(task.input.stream(path, task.output.names, labelled))
        assert [len(part.examples) for part in parts] == [4, 4, 4, 3]
        assert all((part.examples.target is not None) == labelled for part in parts)
    assert stream.evaluate(model, path) == pytest.approx(wanted, rel=1e-6)
    assert tagged(model, path) == model.tag(data.source)
    model.save(tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), str(path)]) == 0
    path.write_text("Ann N\nsaw V\n")
    with pytest.raises(DataError, match="it has 2 columns; words, column2, and tags are needed"):
        stream.evaluate(model, path)


def tagger_of(method="cross-entropy", loss="none"):
    """A model of tags that was trained on nothing."""
    lexicon = Lexicon.fit(Sentences((("Ann", "saw", "Bo"),)))
    task, settings = Task(Words(lexicon), Tags(TagSet(("N", "V")))), Settings(task_hidden=4, energy_hidden=4)
    return Model(build(method, loss, settings, task), (method, loss), settings, task)


def tagged(model, path):
    """Tokens with their tags, as `stream.predict` finds them."""
    parts = stream.predict(model, path)
    return [
        one for part in parts for one in model.task.output.named(model.decoder()(part.relaxed), part.source)
    ]


def through_pipe(pipe, text, use, write=Path.write_text):
    """What a function makes of a pipe with a text; one that opens it again does not wait for ever."""
    os.mkfifo(pipe)
    writer = threading.Thread(target=write, args=(pipe, text), daemon=True)
    writer.start()
    found = patiently(lambda: use(pipe))
    writer.join(timeout=20)
    return found


def patiently(use):
    found = []
    thread = threading.Thread(target=lambda: found.append(use()), daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert found, "it failed, or waits for a pipe"
    return found[0]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("parquet", "npz")])
def test_a_pipe_with_rows_is_read_once(tmp_path, kind, whole):
    """Its beginning tells what format it has, and is read no other time."""
    labels = "is_*" if kind in ("csv", "tsv") else None
    path, pipe, text = tmp_path / f"data.{kind}", tmp_path / f"pipe.{kind}", text_of(kind, count=5000)
    path.write_text(text)
    expected = read(path, labels=labels)
    names = expected.feature_names, expected.label_names
    if whole:
        found = [through_pipe(pipe, text, lambda path: read(path, labels=labels))]
    else:
        found = through_pipe(pipe, text, lambda path: list(stream_inputs(path, *names, rows=2000)))
    for of in ("x", "y"):
        joined = np.concatenate([dense(getattr(part, of)) for part in found])
        np.testing.assert_array_equal(joined, dense(getattr(expected, of)))


def test_a_pipe_with_sentences_is_read_once(tmp_path):
    text = "".join(f"Ann NNP N\nsaw VBD V\nBo{number} NNP N\n\n" for number in range(3000))
    data, _ = through_pipe(tmp_path / "pipe.conll", text, lambda path: read_sentences([path]))
    assert data.tokens == tuple(("Ann", "saw", f"Bo{number}") for number in range(3000))


def test_a_pipe_with_arrays_is_read_once(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.eye(3), y=np.eye(3))
    pipe = tmp_path / "pipe.npz"
    content = (tmp_path / "data.npz").read_bytes().decode("latin-1")
    writing = partial(Path.write_text, encoding="latin-1", newline="")
    found = through_pipe(pipe, content, load, writing)
    assert len(found.train) + len(found.valid) + len(found.test) == 3


def test_a_pipe_is_evaluated_whole(labels, tmp_path, capsys):
    model, path = labels
    expected = stream.evaluate(model, path)
    model.save(tmp_path / "run")
    out = tmp_path / "metrics.json"
    command = ["evaluate", str(tmp_path / "run"), str(tmp_path / f"pipe{path.suffix}"), "--output", str(out)]
    assert through_pipe(tmp_path / f"pipe{path.suffix}", path.read_text(), lambda pipe: main(command)) == 0
    assert json.loads(out.read_text())["metrics"] == {"all rows": expected}
    tagger_of().save(tmp_path / "tagger")
    os.mkfifo(tmp_path / "pipe.conll")
    command = ["evaluate", str(tmp_path / "tagger"), str(tmp_path / "pipe.conll")]
    assert patiently(lambda: main(command)) == 2
    assert "gone through more than once; give a file" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [False, True])
def test_a_pipe_is_read_to_its_end(tmp_path, columns):
    """What was looked at to tell columns from text cannot be read again."""
    count = 3000
    between, end = ("\n", "\n\n") if columns else (" ", "\n")
    text = "".join(between.join(["Ann", "saw", f"Bo{number}"]) + end for number in range(count))
    found = through_pipe(tmp_path / "pipe", text, lambda pipe: tagged(tagger_of(), pipe))
    assert [[token for token, _ in tokens] for tokens in found] == [
        ["Ann", "saw", f"Bo{number}"] for number in range(count)
    ]


@pytest.mark.parametrize("names", [("cross-entropy", "none"), ("crf", "likelihood"), ("spen", "margin")])
def test_no_sentences_are_no_tags(names, tmp_path, capsys):
    tagger = tagger_of(*names)
    assert tagger.tag([]) == []
    assert len(tagger.predict_proba([])) == 0
    tagger.save(tmp_path / "run")
    for text in ("", " \n"):
        assert main(["predict", str(tmp_path / "run"), "--text", text]) == 2
        assert "--text is empty" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "run"), "--text", "Ann saw\n\nBo"]) == 0
    assert capsys.readouterr().out.count("\n\n") == 2


def test_columns_one_sentence_at_a_time(tmp_path):
    path = tmp_path / "tweets.conll"
    path.write_text("# about\n\nhi\t!\n#fun\t#\n\n\nyou\tO\n")
    assert list(stream_columns(path)) == read_columns(path) == [[("hi", "!"), ("#fun", "#")], [("you", "O")]]
