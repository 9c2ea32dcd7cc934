"""Collections of texts in their published formats, written small: what is read, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lossnet.data import DataError, TextTable, find
from lossnet.data.readers.blurbs import read_blurbs
from lossnet.data.readers.documents import read_arxiv, read_reuters
from lossnet.data.readers.goemotions import read_goemotions
from lossnet.data.readers.lyrl import read_lyrl
from lossnet.data.readers.nitf import read_article, read_nitf
from lossnet.data.readers.parallel import read_parallel
from lossnet.data.registry import entry, read_raw

ODD = "naïve 😀 שלום " + "word " * 10_000


def texts(data):
    assert isinstance(data.source, TextTable)
    return data.source.joined()


def topics(data):
    names = np.array(data.target.names)
    return [tuple(names[row > 0]) for row in data.target.matrix.toarray()]


def written(folder, files):
    paths = []
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        paths.append(path)
    return paths


def refused(reads, path, what, line):
    with pytest.raises(DataError, match=what) as caught:
        reads()
    assert (caught.value.path, caught.value.line) == (str(path), line)


# ---------------------------------------------------------------- AAPD

AAPD = {
    "text_train": f"the motion of a loaded string\n{ODD}\n",
    "text_val": "we show that\n",
    "text_test": "a model of growth\n",
    "label_train": "math-ph math.mp\ncs.cl\n",
    "label_val": "cs.cl\n",
    "label_test": "math.mp cs.cl\n",
}


def test_aapd(tmp_path):
    data, split = read_parallel(written(tmp_path / "aapd", AAPD))
    assert texts(data)[:2] == ["the motion of a loaded string", ODD.strip()]
    assert topics(data) == [("math-ph", "math.mp"), ("cs.cl",), ("cs.cl",), ("cs.cl", "math.mp")]
    assert [part.tolist() for part in (split.train, split.valid, split.test)] == [[0, 1], [2], [3]]
    raw = read_raw("aapd", tmp_path)
    assert ([len(part) for part in raw.parts], raw.split_name) == ([2, 1, 1], "files")


@pytest.mark.parametrize(
    ("file", "content", "what", "line"),
    [
        ("label_val", "cs.cl\ncs.cl\n", "2 line.s. of labels for 1 line.s. of texts", 2),
        ("label_train", "math-ph\n \n", "the line has no label", 2),
        ("text_train", "a text\n\n", "the line has no text", 2),
        ("text_test", b"caf\xe9\n", "not utf-8 text", 1),
        ("text_train", b"a\nb\0\n", "NUL", 2),
        ("text_val", "", "empty", 1),
    ],
)
def test_what_aapd_cannot_be(tmp_path, file, content, what, line):
    paths = written(tmp_path, AAPD | {file: content})
    refused(lambda: read_parallel(paths), tmp_path / file, what, line)


# ---------------------------------------------------------------- RCV1-v2

FILES = entry("rcv1-v2").files
RCV1 = {
    **{name: f".I {9 + number}\n.W\noil pric\n\n" for number, name in enumerate(FILES[1:5])},
    FILES[0]: "".join(f".I {number}\n.W\nrecov recov excit\nbring\n\n" for number in range(1, 7)),
    FILES[5]: "".join(f"E11 {n} 1\nECAT {n} 1\n" for n in range(1, 7))
    + "".join(f"M14 {n} 1\n" for n in range(9, 12)) + "C15 99 1\n",
}  # fmt: skip
RCV1 = {name: RCV1[name] for name in FILES}


def test_rcv1(tmp_path):
    written(tmp_path / "rcv1", RCV1)
    assert find("rcv1-v2", tmp_path) == tmp_path / "rcv1"
    raw = read_raw("rcv1-v2", tmp_path)
    train, valid, test = raw.parts
    assert texts(test) == ["oil pric"] * 3, "document 12 has no topic"
    assert topics(test) == [("M14",)] * 3
    assert texts(train)[0] == "recov recov excit bring"
    assert set(topics(train)) == {("E11", "ECAT")}
    assert (len(train), len(valid)) == (5, 1)


@pytest.mark.parametrize(
    ("file", "content", "what", "line"),
    [
        (0, "recov\n", "a document is .I NUMBER", 1),
        (0, ".I x\n.W\na\n", "has no number", 1),
        (0, ".I 1\n.W\na\n.I 2\n.W\n\n", "document 2 has no tokens", 4),
        (0, ".I 1\nrecov\n", "a document is .I NUMBER", 2),
        (0, ".I 1\n.W\na\n.W\n", "a document is .I NUMBER", 4),
        (1, ".I 1\n.W\na\n", "document 1 is in .*train.dat already", 1),
        (5, "E11 1 1\nE11 1\n", "'E11 1' is no judgement", 2),
        (5, "E11 1 1\nE11 -1 1\n", "is no judgement", 2),
        (5, "E11 1 0\n", "is no judgement", 1),
        (5, "C15 99 1\n", "no document with a topic", None),
    ],
)
def test_what_rcv1_cannot_be(tmp_path, file, content, what, line):
    paths = written(tmp_path, RCV1 | {FILES[file]: content})
    refused(lambda: read_lyrl(paths), paths[file], what, line)


# ---------------------------------------------------------------- the Blurb Genre Collection

BOOK = """<book date="2018-08-18" xml:lang="en">
<title>{title}</title>
<body>{body}</body>
<copyright>(c) Penguin Random House</copyright>
<metadata>
<author>A. Writer</author>
<topics>
<d0>Fiction</d0><d1>Mystery &amp; Suspense</d1><d1>Women's Fiction</d1>
</topics>
</metadata>
</book>
"""
BLURB = BOOK.format(title="Salt & Sand", body="She leaves < he stays &amp; waits.\nThen she writes.")


def test_blurbs(tmp_path):
    other = BLURB.replace("<d1>Women's Fiction</d1>", "<d2> </d2>")
    paths = written(
        tmp_path / "bgc", dict(zip(entry("bgc").files, (BLURB + other, BLURB, other), strict=True))
    )
    data, split = read_blurbs(paths)
    assert texts(data)[0] == "Salt & Sand\nShe leaves < he stays & waits.\nThen she writes."
    assert topics(data)[:2] == [
        ("Fiction", "Mystery & Suspense", "Women's Fiction"),
        ("Fiction", "Mystery & Suspense"),
    ]
    assert (len(split.train), len(split.valid), len(split.test)) == (2, 1, 1)
    assert read_raw("bgc", tmp_path).parts[0].source.columns == ("title", "body")


@pytest.mark.parametrize(
    ("content", "what", "line"),
    [
        (BLURB + "so\n" + BLURB, "text outside of a book", 13),
        (BLURB + BLURB.replace("<body>", ""), "without a <body>", 13),
        (BLURB.replace("topics", "genres"), "without <topics>", 1),
        (BLURB.replace("<d0>Fiction", "<d0>Fict<i>ion"), "is no genre", 1),
        (BLURB + "\n<book>\n<title>", "a book is not closed", 14),
    ],
)
def test_what_blurbs_cannot_be(tmp_path, content, what, line):
    first, *others = written(tmp_path, {"a": content, "b": BLURB, "c": BLURB})
    refused(lambda: read_blurbs([first, *others]), first, what, line)


# ---------------------------------------------------------------- The New York Times

ARTICLE = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE nitf SYSTEM "http://www.nitf.org/IPTC/NITF/3.3/specification/dtd/nitf-3-3.dtd">
<nitf>
<head><docdata><identified-content>
<classifier class="online_producer" type="taxonomic_classifier">Top/News/Science</classifier>
<classifier class="online_producer" type="taxonomic_classifier">Top/Features</classifier>
<classifier class="online_producer" type="general_descriptor">Snow</classifier>
</identified-content></docdata></head>
<body>
<body.head><hedline><hl1>A Late &amp; Heavy Snow</hl1></hedline></body.head>
<body.content>
<block class="lead_paragraph"><p>LEAD: It snowed.</p></block>
<block class="full_text"><p>It snowed.</p>
<p>It   melted.</p></block>
<block class="correction"><p>It did not.</p></block>
</body.content></body></nitf>
"""
PLACES = [f"Nytimes/2001/135470{number}.xml" for number in range(4)]
NYT = {
    "idnewnyt_train.json": "\n".join(PLACES[:2]) + "\n\n",
    "idnewnyt_val.json": PLACES[2] + "\n",
    "idnewnyt_test.json": PLACES[3] + "\n",
    **dict.fromkeys(PLACES, ARTICLE),
}


def test_articles(tmp_path):
    bare = ARTICLE.replace("taxonomic_classifier", "descriptor")
    written(tmp_path / "nyt", NYT | {PLACES[1]: bare})
    raw = read_raw("nyt", tmp_path)
    assert [len(part) for part in raw.parts] == [1, 1, 1], "one article has no label"
    assert texts(raw.parts[0]) == ["A Late & Heavy Snow\nIt snowed.\nIt melted."]
    assert topics(raw.parts[2]) == [("Features", "News", "News/Science")]


def test_an_article_without_text_is_left_out(tmp_path):
    files = written(tmp_path, NYT | {PLACES[0]: ARTICLE.replace("full_text", "other")})
    data, _ = read_nitf(files[:3])
    assert len(data) == 3


@pytest.mark.parametrize(
    ("files", "where", "what", "line"),
    [
        ({PLACES[1]: ARTICLE.replace("</head>", "")}, PLACES[1], "not readable XML .mismatched tag", 16),
        ({PLACES[1]: ARTICLE[:300]}, PLACES[1], "not readable XML", 6),
        (
            {PLACES[1]: ARTICLE.replace(' SYSTEM "', ' [<!ENTITY a "b">] SYSTEM "')},
            PLACES[1],
            "declares an entity, 'a'|not readable XML",
            2,
        ),
        ({PLACES[1]: ARTICLE.replace("UTF-8", "UTF-77")}, PLACES[1], "not readable XML", 1),
        ({"idnewnyt_val.json": "\n../../etc/passwd\n"}, "idnewnyt_val.json", "no place below the list", 2),
        ({"idnewnyt_val.json": "/etc/passwd\n"}, "idnewnyt_val.json", "no place below the list", 1),
        ({"idnewnyt_val.json": "Nytimes/2001/7.xml\n"}, "idnewnyt_val.json", "there is no article", 1),
    ],
)  # fmt: skip
def test_what_articles_cannot_be(tmp_path, files, where, what, line):
    paths = written(tmp_path, NYT | files)[:3]
    refused(lambda: read_nitf(paths), tmp_path / where, what, line)


def test_no_entity_is_expanded_and_no_address_is_opened(tmp_path):
    bomb = '<!DOCTYPE nitf [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><nitf><hl1>&b;</hl1></nitf>'
    (path,) = written(tmp_path, {"bomb.xml": bomb})
    refused(lambda: read_article(path), path, "declares an entity, 'a'", 1)
    outside = '<!DOCTYPE nitf [<!ENTITY a SYSTEM "file:///etc/passwd">]><nitf><hl1>&a;</hl1></nitf>'
    (path,) = written(tmp_path, {"outside.xml": outside})
    refused(lambda: read_article(path), path, "declares an entity, 'a'", 1)


# ---------------------------------------------------------------- GoEmotions

GOEMOTIONS = {
    "train.tsv": 'So good 😀!\t0,2\ted1\n"no closing quote\t3\ted4\n',
    "dev.tsv": "meh\t3\ted2\n",
    "test.tsv": "no\t1\ted3\n",
    "labels.txt": "joy\nanger\nlove\nneutral\n",
}


def test_goemotions(tmp_path):
    written(tmp_path / "goemotions", GOEMOTIONS)
    raw = read_raw("goemotions", tmp_path)
    assert texts(raw.parts[0]) == ["So good 😀!", '"no closing quote']
    assert topics(raw.parts[0]) == [("joy", "love"), ("neutral",)]
    assert topics(raw.parts[2]) == [("anger",)]


@pytest.mark.parametrize(
    ("file", "content", "what", "line"),
    [
        ("dev.tsv", "meh\t3\n", "2 cell.s.", 1),
        ("dev.tsv", "meh\t3\ta\n \t3\ta\n", "no text", 2),
        ("dev.tsv", "meh\t4\ta\n", "'4' is no emotion; they have numbers from 0 to 3", 1),
        ("dev.tsv", "meh\t1,\ta\n", "'' is no emotion", 1),
        ("labels.txt", "joy\njoy\n", "'joy' is listed twice", 2),
        ("labels.txt", "joy\n\nlove\n", "without a name", 2),
    ],
)
def test_what_goemotions_cannot_be(tmp_path, file, content, what, line):
    paths = written(tmp_path, GOEMOTIONS | {file: content})
    refused(lambda: read_goemotions(paths), tmp_path / file, what, line)


# ---------------------------------------------------------------- Parquet

REUTERS = {
    "title": ["RATES", None, "CORN", "OIL", "", "GOLD"],
    "text": ["rose", "fell", None, "is up", "b", "c"],
    "topics": [["money", "interest"], ["money"], ["corn"], ["crude"], [], ["gold"]],
    "part": ["train", "train", "train", "test", "test", "unused"],
}
ARXIV = {
    "title": ["On A", "On B", "On C"],
    "abstract": ["we", "they", ODD],
    "categories": [["cs.AI", "cs.LG"], ["math.CO"], ["cs.AI"]],
    "split": ["train", "valid", "test"],
}


def parquet(path, columns):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_reuters_is_split_as_modapte_says(tmp_path):
    parquet(tmp_path / "reuters21578" / "reuters21578.parquet", REUTERS)
    train, valid, test = read_raw("reuters21578", tmp_path).parts
    assert sorted(texts(train) + texts(valid)) == ["CORN", "RATES\nrose", "fell"]
    assert texts(test) == ["OIL\nis up"], "the other one has no topic"
    assert test.target.names == ("corn", "crude", "interest", "money")


def test_arxiv(tmp_path):
    parquet(tmp_path / "arxiv_topics" / "arxiv_topics.parquet", ARXIV)
    train, valid, test = read_raw("arxiv-topics", tmp_path).parts
    assert texts(train) == ["On A\nwe"]
    assert texts(test)[0] == f"On C\n{ODD}"
    assert topics(train) == [("cs.AI", "cs.LG")]
    assert topics(valid) == [("math.CO",)]


@pytest.mark.parametrize(
    ("changed", "what", "line"),
    [
        ({"part": ["train"] * 5 + ["tset"]}, "the part 'tset' of row 6 is none of train, test, unused", 6),
        ({"title": [""] * 6, "text": ["a", None, *"bcde"]}, "row 2 has a topic and no text", 2),
        ({"topics": ["money"] * 6}, "the topics of row 1 are no list of names", 1),
        ({"topics": [["a"], [""], ["a"], ["a"], ["a"], ["a"]]}, "the topics of row 2", 2),
        ({"title": [1.5] * 6}, "row 1 has 1.5 for a title or text", 1),
    ],
)
def test_what_reuters_cannot_be(tmp_path, changed, what, line):
    path = parquet(tmp_path / "reuters21578.parquet", REUTERS | changed)
    refused(lambda: read_reuters([path]), path, what, line)


def test_parts_and_columns_that_are_missing(tmp_path):
    path = parquet(tmp_path / "a.parquet", {name: REUTERS[name] for name in ("title", "text", "part")})
    refused(lambda: read_reuters([path]), path, "there is no column 'topics'", 1)
    path = parquet(tmp_path / "b.parquet", ARXIV | {"split": ["train", "train", "test"]})
    refused(lambda: read_arxiv([path]), path, "a part has no document with a topic", None)
    (path,) = written(tmp_path, {"c.parquet": b"PAR1 is no table"})
    refused(lambda: read_arxiv([path]), path, "not a readable Parquet file", None)


# ---------------------------------------------------------------- the real ones

REAL = {
    "reuters21578": ([6217, 1558, 3019], 118),
    "arxiv-topics": ([33045, 3000, 3000], 45),
    "goemotions": ([43410, 5426, 5427], 28),
}


@pytest.mark.parametrize("name", REAL)
def test_real_collections(real_data, name):
    if find(name, real_data) is None:
        pytest.skip(f"{name} is not in {real_data}")
    raw = read_raw(name, real_data)
    assert ([len(part) for part in raw.parts], len(raw.parts[0].target.names)) == REAL[name]
    assert json.dumps(raw.parts[0].target.names) == json.dumps(sorted(raw.parts[0].target.names))
