"""Training, validation and test rows in files of their own."""

import json
import warnings

import numpy as np
import pytest

from lossnet.data import DataError
from lossnet.data.parts import holds_table, part_files
from lossnet.loading import load
from lossnet.run import Run, train
from lossnet.settings import Settings

WORDS = ("good", "bad", "long", "short")


def table(count, seed, texts=False):
    """Rows of a table with names, a number, a category or a text, and two labels."""
    random = np.random.default_rng(seed)
    lines = [f"id,length,{'said' if texts else 'country'},label_a,label_b"]
    for row in range(count):
        length, country = round(float(random.normal()), 3), ("it", "fr", "de")[random.integers(3)]
        said = " ".join(random.choice(WORDS, 3))
        labels = f"{int(length > 0)},{int('good' in said)}"
        lines.append(f"r{1000 * seed + row},{length},{said if texts else country},{labels}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def files(tmp_path):
    for name, count, seed in (("train", 60, 0), ("valid", 20, 1), ("test", 30, 2)):
        (tmp_path / f"{name}.csv").write_text(table(count, seed))
    return tmp_path


def loaded(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ids are left out
        return load(*arguments, progress=False, **options)


def sizes(data):
    return len(data.train), len(data.valid), len(data.test)


def same(one, other):
    for part in ("train", "valid", "test"):
        a, b = getattr(one, part), getattr(other, part)
        rows = np.arange(len(a))
        assert len(a) == len(b)
        np.testing.assert_array_equal(a.batch(rows).x, b.batch(rows).x)
        np.testing.assert_array_equal(a.batch(rows).y, b.batch(rows).y)


def test_a_table_with_files_beside_it_and_a_folder_are_the_same(files):
    beside = loaded(files / "train.csv", labels="label_*", valid=files / "valid.csv", test=files / "test.csv")
    assert sizes(beside) == (60, 20, 30)
    assert beside.split_name == "files"
    folder = loaded(files, labels="label_*")
    same(beside, folder)
    assert beside.digest == folder.digest


def test_what_no_file_is_for_is_a_fifth_of_the_training_rows(files):
    only_test = loaded(files / "train.csv", labels="label_*", test=files / "test.csv")
    assert sizes(only_test) == (48, 12, 30)
    assert only_test.split_name == "files, valid: stratified(seed=0)"
    only_valid = loaded(files / "train.csv", labels="label_*", valid=files / "valid.csv")
    assert sizes(only_valid) == (48, 20, 12)
    assert only_valid.split_name == "files, test: stratified(seed=0)"
    (files / "test.csv").unlink()
    same(loaded(files, labels="label_*"), only_valid)


def test_columns_go_by_name_and_what_is_fitted_comes_from_training(files):
    order = ["label_b", "country", "id", "label_a", "length"]
    rows = [line.split(",") for line in (files / "test.csv").read_text().splitlines()]
    places = [rows[0].index(name) for name in order]
    shuffled = files / "shuffled.csv"
    shuffled.write_text("".join(",".join(row[place] for place in places) + "\n" for row in rows))
    plain = loaded(files / "train.csv", labels="label_*", test=files / "test.csv")
    same(plain, loaded(files / "train.csv", labels="label_*", test=shuffled))
    x = plain.train.batch(np.arange(len(plain.train))).x
    assert abs(float(x[:, 0].mean())) < 0.3, "standardised by the training rows"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("length,country,label_a\n1,it,1\n", r"lacks the label 'label_b' of training"),
        ("length,country\n1,it\n", r"lacks the label 'label_a' of training; it has none"),
        ("country,label_a,label_b\nit,1,1\n", "lacks 1 of the model's input columns"),
        ("length,country,label_a,label_b\nlong,it,1,1\n", ":2: 'length' is text; it had numbers"),
        ("length,country,label_a,label_b\n1,it,0,0\n", "no row has a label"),
        (None, "no such file; did you mean .*test.csv"),
    ],
)
def test_files_that_do_not_fit_are_refused(files, content, message):
    other = files / "tset.csv"
    if content is not None:
        other.write_text(content)
    with pytest.raises(DataError, match=message):
        loaded(files / "train.csv", labels="label_*", test=other)


def test_files_and_other_splits_exclude_each_other(files, tmp_path):
    with pytest.raises(DataError, match=r"has test\.csv; leave test= \(--test\) out"):
        loaded(files, labels="label_*", test=files / "test.csv")
    with pytest.raises(DataError, match=r"leave split= \(--split\) out"):
        loaded(files, labels="label_*", split="split.json")
    with pytest.raises(DataError, match="read as it is; valid=, --valid are for files"):
        loaded("digits-pairs", valid=files / "valid.csv")
    with pytest.raises(DataError, match="these data are in memory"):
        loaded("mine", data=(np.eye(4), np.eye(4)), test=files / "test.csv")


def test_labels_in_one_column_may_be_fewer_in_the_test_file(tmp_path):
    genres = ["red;sweet", "sweet", "red", "dry;red", "dry"] * 4
    rows = "".join(f"{number % 7},{genre}\n" for number, genre in enumerate(genres))
    (tmp_path / "train.csv").write_text("size,genres\n" + rows)
    (tmp_path / "test.csv").write_text("size,genres\n1,red\n2,red;sweet\n")
    data = loaded(tmp_path, labels=["genres"])
    assert data.task.output.names == ("dry", "red", "sweet")
    assert data.test.batch(np.arange(2)).y.tolist() == [[0, 1, 0], [0, 1, 1]]
    (tmp_path / "test.csv").write_text("size,genres\n1,blue\n")
    with pytest.raises(DataError, match="no row has a label"):
        loaded(tmp_path, labels=["genres"])


def test_texts_of_a_table(tmp_path):
    for name, count, seed in (("train", 60, 0), ("valid", 20, 1), ("test", 30, 2)):
        (tmp_path / f"{name}.csv").write_text(table(count, seed, texts=True))
    data = loaded(tmp_path, labels="label_*", words="said")
    assert sizes(data) == (60, 20, 30)
    assert data.task.output.names == ("label_a", "label_b")


def test_sentences_in_any_number_of_files(tmp_path):
    def write(name, words):
        (tmp_path / name).write_text("".join(f"{word} N X\nruns V Y\n\n" for word in words))

    write("train.txt", ["Ann", "Bob", "Cid", "Dan", "Eve", "Flo", "Gus", "Hal", "Ida", "Jon"])
    write("test.txt", ["Ann", "Zoe"])
    assert not holds_table(tmp_path / "train.txt")
    data = loaded(tmp_path)
    assert sizes(data) == (8, 2, 2)
    assert data.split_name == "files, valid: random(seed=0)"
    write("dev.txt", ["Bob"])
    assert sizes(loaded(tmp_path)) == (10, 1, 2)
    assert loaded(tmp_path).split_name == "files"
    (tmp_path / "news.conll").write_text((tmp_path / "train.txt").read_text())
    same(
        loaded(tmp_path / "news.conll", valid=tmp_path / "dev.txt", test=tmp_path / "test.txt"),
        loaded(tmp_path),
    )
    (tmp_path / "test.txt").write_text("Ann N\n")
    with pytest.raises(DataError, match=r"2 column\(s\) where 3 are expected"):
        loaded(tmp_path)


def test_sparse_files_in_a_folder_are_tables(tmp_path):
    (tmp_path / "train.txt").write_text("10 3 2\n" + "0,1 0:0.5 2:1\n1 1:1\n" * 5)
    (tmp_path / "test.txt").write_text("2 3 2\n0 0:0.5\n1 1:1\n")
    assert holds_table(tmp_path / "train.txt")
    data = loaded(tmp_path)
    assert sizes(data) == (8, 2, 2)


def test_arff_files_in_a_folder(tmp_path):
    header = "@relation 'mine: -C 2'\n@attribute l1 {0,1}\n@attribute l2 {0,1}\n@attribute x numeric\n@data\n"
    (tmp_path / "train.arff").write_text(header + "1,0,0.5\n0,1,2\n" * 10)
    (tmp_path / "test.arff").write_text(header + "1,1,0.5\n")
    assert sizes(loaded(tmp_path)) == (16, 4, 1)


def labelled_images(folder, count, labels=("cat", "dog"), size=(4, 6)):
    image = pytest.importorskip("PIL.Image", reason="needs lossnet[images]")
    (folder / "images").mkdir(parents=True)
    lines = [",".join(("image", *labels))]
    for number in range(count):
        image.new("L", size[::-1], 10 * number).save(folder / "images" / f"{number}.png")
        lines.append(f"{number},{number % 2},{1 - number % 2}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_labelled_images_in_folders(tmp_path):
    for name, count in (("train", 10), ("val", 3), ("test", 4)):
        labelled_images(tmp_path / "set" / name, count)
    data = loaded(tmp_path / "set")
    assert sizes(data) == (10, 3, 4)
    assert data.split_name == "files"
    same(data, loaded(tmp_path / "set/train", valid=tmp_path / "set/val", test=tmp_path / "set/test"))
    other = labelled_images(tmp_path / "other", 4, size=(8, 8))
    with pytest.raises(DataError, match="make them alike"):
        loaded(tmp_path / "set/train", test=other)


def test_parts_of_a_folder(tmp_path):
    assert part_files(tmp_path) == {}
    for name in ("train.csv", "README.md", "train.xml", "other.csv"):
        (tmp_path / name).touch()
    assert part_files(tmp_path) == {}, "nothing but training"
    (tmp_path / "validation.csv").touch()
    assert part_files(tmp_path) == {
        "train": tmp_path / "train.csv",
        "valid": tmp_path / "validation.csv",
    }
    (tmp_path / "dev.tsv").touch()
    with pytest.raises(DataError, match=r"dev\.tsv and validation\.csv are both for valid"):
        part_files(tmp_path)


@pytest.mark.parametrize("name", ["mine.csv", "mine.arff", "mine.conll", "texts.csv"])
def test_files_of_other_encodings(tmp_path, name):
    content = {
        "mine.csv": "städte,l\n" + "1,0\n2,1\n" * 5,
        "mine.arff": "@relation 'm: -C 1'\n@attribute l {0,1}\n@attribute ä numeric\n@data\n"
        + "1,2\n0,1\n" * 5,
        "mine.conll": "Köln B-LOC\nschläft O\n\n" * 5,
        "texts.csv": "said,l\n" + "schön,1\nhässlich,0\n" * 5,
    }[name]
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    options = {"labels": "l"} if name.endswith("csv") else {}
    if name == "texts.csv":
        options["words"] = "said"
    with pytest.raises(DataError, match=r"not utf-8 text; .*--encoding latin-1"):
        loaded(tmp_path / name, **options)
    assert sum(sizes(loaded(tmp_path / name, encoding="latin-1", **options))) >= 5
    with pytest.raises(DataError, match="no encoding 'klingon'"):
        loaded(tmp_path / name, encoding="klingon", **options)


def test_an_encoding_is_for_text(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.eye(5), y=np.eye(5))
    with pytest.raises(DataError, match=r"\.npz files are no text; leave encoding= \(--encoding\) out"):
        loaded(tmp_path / "mine.npz", encoding="latin-1")


def test_a_result_says_where_its_rows_came_from(files):
    run = Run(
        str(files / "train.csv"), "cross-entropy", settings=Settings(epochs=1, task_hidden=4),
        labels=["label_*"], test=files / "test.csv", encoding="utf-8", progress=False, output=files / "run",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(run)
    result = json.loads((files / "run" / "result.json").read_text())
    assert result["split"] == "files, valid: stratified(seed=0)"
    assert result["source"] == {
        "data": str(files / "train.csv"),
        "split": None,
        "labels": ["label_*"],
        "test": str(files / "test.csv"),
        "encoding": "utf-8",
    }
