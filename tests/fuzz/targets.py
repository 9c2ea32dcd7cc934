"""What is fuzzed: for each target, valid contents to damage, or bad ones, and what must stand them.

A target's ``take`` is given the bytes of one input.  It may read them, or refuse them as it does for users;
any other exception is a failure.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import builtins
import contextlib
import dataclasses
import functools
import io
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from hypothesis.strategies import SearchStrategy
from PIL import Image
from safetensors.torch import save as bytes_of

from lossnet import cli, stream
from lossnet.build import build
from lossnet.conditional import make
from lossnet.data import (
    DataError,
    Lexicon,
    Sentences,
    Split,
    TagSet,
    TextTable,
    decode_picture,
    read,
    read_embeddings,
    read_images,
    read_inputs,
    read_labelled_images,
    read_labelled_texts,
    read_pictures,
    read_sentences,
    stream_inputs,
)
from lossnet.data.citations import read_citations
from lossnet.data.propbank import read_propbank, stream_propbank
from lossnet.data.readers import read_facts
from lossnet.data.readers.blurbs import read_blurbs
from lossnet.data.readers.clusters import read_clusters
from lossnet.data.readers.columns import stream_columns
from lossnet.data.readers.dates import date_names
from lossnet.data.readers.documents import read_arxiv
from lossnet.data.readers.frames import read_frames
from lossnet.data.readers.goemotions import read_goemotions
from lossnet.data.readers.lyrl import read_lyrl
from lossnet.data.readers.nitf import read_nitf
from lossnet.data.readers.parallel import read_parallel
from lossnet.data.sentence_files import stream_labelled_texts
from lossnet.data.treebank import read_treebank
from lossnet.decoding import Decision
from lossnet.energies import at_most, sums_to
from lossnet.inputs import Features, Fitting, Images, Text, Words
from lossnet.inputs.encoders import Encoder
from lossnet.loading import load
from lossnet.model import Model
from lossnet.outputs import Labels, Masks, Tags
from lossnet.recipes import RecipeError, read_recipe, recipe_folder
from lossnet.serve import create_app
from lossnet.settings import Settings
from lossnet.task import Task


@dataclass(frozen=True)
class Target:
    seeds: list[bytes] | SearchStrategy[bytes]
    take: Callable[[bytes], None]


# ---------------------------------------------------------------- files

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def file(name, reads):
    """Takes content by writing a file and reading it."""

    def take(content):
        path = FOLDER / name
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for each in reads:
                with contextlib.suppress(DataError):
                    each(path)

    return take


def labelled(name, labels=None, features=("feature_0", "feature_1")):
    reads = [
        lambda path: read(path, labels),
        lambda path: read_inputs(path, features, ["l"]),
        lambda path: list(stream_inputs(path, features, ["l"], rows=2)),
    ]
    return file(name, reads)


def archive(compressed=False, **arrays):
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)
    return stream.getvalue()


def picture(kind, *shape):
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, np.uint8)).save(stream, kind)
    return stream.getvalue()


def parquet():
    import pyarrow
    from pyarrow import parquet

    found = []
    days = pyarrow.array([1, None, 30000], pyarrow.date32())
    for columns in (
        {"day": days, "at": days.cast(pyarrow.timestamp("ns")), "tags": [["x"], [], None], "l": [0, 1, 1]},
        {"a": [1.0, None, 3.0], "kind": ["x", "y", None], "l": [0, 1, 1]},
        {"a": [1, 2], "b": [True, False], "l": pyarrow.array(["0", "1"]).dictionary_encode()},
    ):
        for compression in ("none", "snappy"):
            stream = io.BytesIO()
            parquet.write_table(pyarrow.table(columns), stream, compression=compression)
            found.append(stream.getvalue())
    return found


def pictures_and_masks(content):
    """An image as a file, beside a mask, and as bytes."""
    for kind in ("images", "masks"):
        (FOLDER / "pictures" / kind).mkdir(parents=True, exist_ok=True)
    (FOLDER / "pictures" / "masks" / "a.png").write_bytes(_MASK)
    path = FOLDER / "pictures" / "images" / "a.png"
    path.write_bytes(content)
    for each in (
        lambda: read_images(FOLDER / "pictures"),
        lambda: read_pictures(path, channels=3),
        lambda: decode_picture(content, channels=1, most_pixels=1 << 16),
    ):
        with contextlib.suppress(DataError):
            each()


def labelled_images(content):
    """A table of the labels of an image."""
    (FOLDER / "labelled" / "images").mkdir(parents=True, exist_ok=True)
    (FOLDER / "labelled" / "images" / "a.png").write_bytes(_MASK)
    (FOLDER / "labelled" / "labels.csv").write_bytes(content)
    with contextlib.suppress(DataError):
        read_labelled_images(FOLDER / "labelled")


def label_list(content):
    path = FOLDER / "listed.arff"
    path.write_bytes(_ARFF.replace(b": -C 2", b""))
    path.with_suffix(".xml").write_bytes(content)
    with contextlib.suppress(DataError):
        read(path)


def _weights():
    """A BERT of one layer, four wide, that knows eight pieces."""
    square, row = (4, 4), (4,)
    attention = {f"attention.self.{name}": square for name in ("query", "key", "value")}
    parts = {
        **attention,
        "attention.output.dense": square,
        "intermediate.dense": (6, 4),
        "output.dense": (4, 6),
    }
    shapes = {f"embeddings.{name}_embeddings.weight": (rows, 4)
              for name, rows in (("word", 8), ("position", 12), ("token_type", 2))}  # fmt: skip
    for name, shape in parts.items():
        shapes[f"encoder.layer.0.{name}.weight"], shapes[f"encoder.layer.0.{name}.bias"] = shape, shape[:1]
    for name in ("embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"):
        shapes[f"{name}.LayerNorm.weight"] = shapes[f"{name}.LayerNorm.bias"] = row
    generator = torch.Generator().manual_seed(0)
    return bytes_of({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})


def encoder(damaged):
    """Takes a file of a folder with an encoder, beside sound ones, and reads texts with it."""
    place = FOLDER / "encoder"

    def take(content):
        place.mkdir(exist_ok=True)
        for name, sound in {"config.json": _CONFIG, "tokenizer.json": _TOKENIZER}.items():
            (place / name).write_bytes(sound)
        (place / "model.safetensors").write_bytes(_weights())
        (place / damaged).write_bytes(content)
        with contextlib.suppress(DataError), warnings.catch_warnings(action="ignore"):
            Encoder.find(place).computed(["so good 😀", ""])

    return take


def encoder_code(content):
    """Takes Python code that a folder with an encoder asks for: it is refused, and nothing of it runs."""
    place = FOLDER / "encoder-code"
    if not place.exists():
        place.mkdir()
        config = json.loads(_CONFIG) | {"auto_map": {"AutoModel": "modeling_own.Own"}}
        (place / "config.json").write_text(json.dumps(config))
        (place / "tokenizer.json").write_bytes(_TOKENIZER)
        (place / "model.safetensors").write_bytes(_weights())
    (place / "modeling_own.py").write_bytes(content)
    try:
        Encoder.find(place)
    except DataError:
        assert not hasattr(builtins, "ran"), "the code was run"
    else:
        raise AssertionError("a folder with code in it was taken")


TEXTS = Text.fit([TextTable(["so good", "so bad"])], Fitting())
_CONFIG = json.dumps({
    "model_type": "bert", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 6, "max_position_embeddings": 12, "type_vocab_size": 2, "pad_token_id": 0,
}).encode()  # fmt: skip
_TOKENIZER = json.dumps({
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 1, "so": 2, "good": 3}, "unk_token": "[UNK]"},
}).encode()  # fmt: skip
_MASK = picture("PNG", 6, 5)
_ARFF = b"""@relation 'r: -C 2'
@attribute a {0,1}
@attribute b {0,1}
@attribute c numeric
@attribute d {x,y,z}
@data
"""
_CLUS = b"""@relation r
@attribute a numeric
@attribute b {p,q}
@attribute class hierarchical 01,01/02,03
@data
"""
_XML = b"""<?xml version="1.0"?>
<labels xmlns="http://x/">
<label name="a"></label>
<label name="b"/>
</labels>
"""
_CONLL = b"-DOCSTART- -X- O\n\nEU NNP I-ORG\nrejects VBZ O\n\nPeter NNP I-PER\n"
_X, _Y = np.eye(3, dtype=np.float32), np.array([[1, 0], [0, 1], [1, 1]])
_IMAGES, _MASKS = np.zeros((3, 4, 5, 3), np.uint8), np.ones((3, 4, 5), np.uint8)
_PARTS = {f"{part}_{kind}": value for part in ("train", "val", "test")
          for kind, value in (("images", _IMAGES), ("masks", _MASKS))}  # fmt: skip

READERS = {
    "arff": Target(
        [
            _ARFF + b"0,1,2.5,x\n1,0,?,'y'\n% note\n1,1,4,z\n",
            _ARFF + b"{0 1,2 2.5}\n{}\n{1 1,3 'y'}\n",
            b"@RELATION \"music\"\n@ATTRIBUTE 'it\\'s' REAL\n@attribute l {NO, YES}\n@DATA\n-1e-3, YES\n",
        ],
        labelled("a.arff", features=("c", "d=x", "d=y", "d=z")),
    ),
    "clus": Target([_CLUS + b"1,p,01\n?,q,01/02@03\n"], labelled("c.arff", features=("a", "b=p", "b=q"))),
    "label-list": Target([_XML], label_list),
    "csv": Target(
        [
            b'size,kind,l\n1,x,0\n,"y, z",1\n3e5,x,1\n',
            "größe,l\r\n1,0\r\n-2.5,1\r\n".encode(),
            b"size;kind;l\n1,5;x;a|b\nNA;y, z;b\n-;x;\n",
        ],
        labelled("a.csv", "l", ("size", "kind=x", "kind=y, z")),
    ),
    "facts": Target(
        [b"size,total,l\n1,3,0\n,,1\n3e5,NA,1\n"], file("a.csv", [lambda path: read_facts(path, ["total"])])
    ),
    "partly-known": Target(
        [b"size,l,m\n1,1,\n2,,0\n,,\n3,0,1\n4,1,1\n", b"l;size;m\n1;1,5;\n;2;?\n0;3;1\n"],
        file("partly.csv", [lambda path: load(path, labels=["l", "m"], progress=False)]),
    ),
    "dates": Target(
        [
            b"at,size,l\n2001-03-04T10:30:00+01:00,1,0\n4.3.2001,2,1\n,3,1\n",
            b"at,l\nMarch 4, 2001 9:05,0\n".replace(b"4, ", b"4 ") + b"4-Mar-2001,1\n2001/3/4,1\n",
        ],
        labelled("dates.csv", "l", date_names("at", timed=True)),
    ),
    "texts": Target(
        [b'text,l\nso good,0\n"bad, bad",1\n', b"text\tl\nso good\ta|b\nbad\t\n"],
        file(
            "texts.csv",
            [
                lambda path: read_labelled_texts(path, "text", "l"),
                lambda path: list(stream_labelled_texts(path, "text", ["l"])),
            ],
        ),
    ),
    "text-columns": Target(
        [
            'plot,size,l\n"so good, it is",3,0\n"bad 😀\nbad bad",,1\nفيلم جيد جدا,5,1\n'.encode(),
            "plot;size;l\nun été très long;1,5;a|b\n吾輩は猫である;;b\n".encode(),
        ],
        file(
            "texts.csv",
            [
                lambda path: Text.fit([read(path, "l", text=["plot"]).source], Fitting()),
                lambda path: read(path, "l"),
                lambda path: list(stream_inputs(path, ["size"], ["l"], rows=2, texts=["plot"])),
            ],
        ),
    ),
    "text-lines": Target(
        ["so good\n\nbad 😀\nفيلم جيد\n".encode(), "naïve\r\nso so".encode("utf-16")],
        file("lines.txt", [lambda path: [TEXTS.prepare(one.examples.source) for one in TEXTS.stream(path)]]),
    ),
    "encoder-config": Target([_CONFIG], encoder("config.json")),
    "encoder-tokenizer": Target([_TOKENIZER], encoder("tokenizer.json")),
    "encoder-code": Target([b"import builtins\n\nbuiltins.ran = True\n"], encoder_code),
    "encoder-weights": Target([_weights()], encoder("model.safetensors")),
    "labelled-images": Target([b"image,x,y\na.png,1,0\na,0,1\n"], labelled_images),
    "tsv": Target(
        [b"size\tkind\tl\n1\tx\t0\n2\ty\t1\n"], labelled("a.tsv", "l", ("size", "kind=x", "kind=y"))
    ),
    "parquet": Target(parquet(), labelled("a.parquet", "l", ("a", "kind=x", "kind=y"))),
    "xc": Target([b"2 3 2\n0,1 0:1 2:0.5\n 1:1\n", b"1 1 1\n0 0:1e-3\n"], labelled("a.txt")),
    "libsvm": Target([b"a,b 1:1 3:0.5 # note\nb 2:1\n", b"0,3 0:1\n1 5:2\n2\n"], labelled("a.svm")),
    "npz": Target(
        [archive(x=_X, y=_Y, label_names=np.array(["a", "b"])), archive(compressed=True, x=_X > 0, y=_Y)],
        labelled("a.npz"),
    ),
    "split": Target(
        [b'{"train": [0, 2], "valid": [1], "test": [3]}\n'],
        file("split.json", [lambda path: Split.read(path, rows=4)]),
    ),
    "sentences": Target(
        [_CONLL, b"# id 1\nikr\t!\nsmh\tG\n\n@jo\t@\n", "naïve JJ B-X\n . O\n".encode()],
        file(
            "a.conll",
            [
                lambda path: read_sentences([path]),
                lambda path: read_sentences([path, path, path]),
                lambda path: list(stream_columns(path)),
            ],
        ),
    ),
    "citations": Target(
        [
            b"<NEWREFERENCE>\n<author> A. Cau. </author> <title> Of art. </title>\n<date> 1992. </date>\n",
            "<NEWREFERENCE>\n<title> Größe </title>\n\n<NEWREFERENCE>\n<pages> 1-2 </pages>".encode(),
        ],
        file("references.txt", [lambda path: read_citations([path])]),
    ),
    "treebank": Target(
        [
            b"# id\n0\tI\tPRP\t(TOP(S(NP*)\n1\tbet\tVBP\t(VP*)\n2\t.\t.\t*))\n\n0\tGo\tVB\t(TOP(VP*))\n",
            "0 naïve JJ (S(NP*)) -\n".encode(),
        ],
        file("trees.conll", [lambda path: read_treebank([path]), lambda path: read_treebank([path] * 3)]),
    ),
    "propbank": Target(
        [
            b"0 She PRP (S* - - (A0*)\n1 sang VBD * sing sing.01 (V*)\n2 it PRP *) - -\n\n0 so RB * - -",
            "# id\n0\tGrößer\tJJ\t*\t-\tbig.01\t(A1*\n1\tals\tIN\t*\t-\t-\t*)\n".encode(),
        ],
        file(
            "a.conll",
            [
                lambda path: read_propbank([path, path, path]),
                lambda path: list(stream_propbank(path, labelled=False, every=True)),
            ],
        ),
    ),
    "frames": Target(
        [b"predicate,roles\ngive.01,ARG0 ARG1 ARG2\nrain,\n", '"größer",A1\n'.encode()],
        file("frames.csv", [read_frames]),
    ),
    "frames-json": Target([b'{"give.01": ["ARG0", "ARG1"], "rain": []}'], file("frames.json", [read_frames])),
    "clusters": Target(
        [b"0010\t<@MENTION>\t9\n0100\tthe\t8\n01\t<URL-a.b>\t7\n"], file("paths.txt", [read_clusters])
    ),
    "embeddings": Target(
        [b"the 0.5 1\nof 0.25 -1\n", b"2 3\na 1 2 3\n. . . 1e-3 2 4\n"],
        file("glove.txt", [lambda path: read_embeddings(path).matrix(["of", "1" * 50 + "a"])]),
    ),
    "embeddings-npz": Target(
        [archive(words=np.array(["the", "of"]), vectors=np.eye(2, dtype=np.float16))],
        file("vectors.npz", [read_embeddings]),
    ),
    "images-npz": Target(
        [archive(images=_IMAGES, masks=_MASKS), archive(compressed=True, **_PARTS)],
        file("images.npz", [read_images]),
    ),
    "images": Target(
        [picture("PNG", 6, 5), picture("PNG", 6, 5, 3), picture("PNG", 6, 5, 4), picture("JPEG", 6, 5, 3)],
        pictures_and_masks,
    ),
}


def collection(reads, *files, place=0):
    """Takes content for one file of a collection, beside others that are as they should be."""

    def take(content):
        paths = []
        for number, own in enumerate(files):
            path = FOLDER / f"collection-{number}"
            path.write_bytes(content if number == place else own)
            paths.append(path)
        with contextlib.suppress(DataError):
            reads(paths)

    return take


def article(content):
    """An article, and a list that names articles."""
    lists = [FOLDER / f"list-{part}.json" for part in ("train", "val", "test")]
    (FOLDER / "1.xml").write_bytes(content)
    for path in lists:
        path.write_bytes(b"1.xml\n")
    with contextlib.suppress(DataError):
        read_nitf(lists)
    lists[0].write_bytes(content)
    with contextlib.suppress(DataError):
        read_nitf(lists)


def papers():
    import pyarrow
    from pyarrow import parquet

    stream = io.BytesIO()
    columns = {
        "title": ["A", None, "C"],
        "abstract": ["we", "they", None],
        "split": ["train", "valid", "test"],
    }
    parquet.write_table(pyarrow.table(columns | {"categories": [["x"], ["x", "y"], ["y"]]}), stream)
    return stream.getvalue()


_TOKENS, _JUDGED = b".I 1\n.W\nrecov excit\n\n.I 2\n.W\noil\n", b"E11 1 1\nECAT 2 1\nE11 3 1\n"
_BLURB = b"""<book lang="en">
<title>Salt &amp; Sand</title>
<body>She leaves & stays.</body>
<topics><d0>Fiction</d0><d1>Mystery</d1></topics>
</book>
"""
_NITF = b"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE nitf SYSTEM "http://www.nitf.org/nitf.dtd">
<nitf><head><classifier type="taxonomic_classifier">Top/News/World</classifier></head>
<body><hl1>Rain</hl1><block class="full_text"><p>It rained.</p></block></body></nitf>
"""
_COMMENTS = b"So good!\t0,2\ted1\nmeh\t1\ted2\n"

#: collections of texts
COLLECTIONS = {
    "parallel": Target([b"a text\nanother\n"], collection(read_parallel, b"", *[b"a\nb\n"] * 5)),
    "parallel-labels": Target([b"x y\nz\n"], collection(read_parallel, *[b"a\nb\n"] * 6, place=3)),
    "lyrl": Target([_TOKENS], collection(read_lyrl, b"", b".I 3\n.W\noil\n", _JUDGED)),
    "lyrl-topics": Target([_JUDGED], collection(read_lyrl, _TOKENS, b".I 3\n.W\noil\n", b"", place=2)),
    "blurbs": Target([_BLURB, _BLURB * 2], collection(read_blurbs, b"", _BLURB, _BLURB)),
    "articles": Target([_NITF, b"1.xml\n\n"], article),
    "comments": Target(
        [_COMMENTS], collection(read_goemotions, b"", _COMMENTS, _COMMENTS, b"joy\nlove\nfear\n")
    ),
    "emotions": Target([b"joy\nlove\nfear\n"], collection(read_goemotions, *[_COMMENTS] * 3, b"", place=3)),
    "papers": Target([papers()], collection(read_arxiv, b"")),
}


# ---------------------------------------------------------------- configuration


def recipe(content):
    path = FOLDER / "recipe.yaml"
    path.write_bytes(content)
    said = None
    try:
        found = read_recipe(path)
        Settings(**{name: value for name, value in found.items() if name not in ("method", "loss")})
    except RecipeError as error:
        said = str(error).removeprefix(f"{path}: ")
    except ValueError as error:
        said = str(error)
        assert said.partition(" ")[0] in Settings.__dataclass_fields__
    assert said is None or "\n" not in said, f"a complaint is one line: {said!r}"


_RECIPES = [path.read_bytes() for path in sorted(recipe_folder().rglob("*.yaml"))[::12]]
_COMMANDS = [
    b"train\nnowhere.csv\n--method\nseal\n--loss\nnce\n--seed\n3\n--epochs=2\n--energy-lr\n1e-3\n--conditioned\ntrue",
    b"train\nnowhere\n--labels\na\nb\n--recipe\nnowhere.yaml\n--solver\nneumann\n--quiet\n--threads\n2\n--output\nout",
    b"evaluate\nnowhere\nmine.csv\n--device\ncpu\n--split\nsplit.json",
    b"predict\nnowhere\nnew.csv\n-o\nout.csv\n--decode\nexpected-f1",
    b"predict\nnowhere\n--text\nAnn went to Paris.",
    b"serve\nnowhere\n--port\n8000\n--host\n127.0.0.1\n--timeout\n3.5\n--queue\n4",
    b"report\nnowhere\nnowhere2\n--output\npage.html",
    b"data\nshow\nnowhere.arff\n--labels\nx",
    b"train\nnowhere.csv\n--test\nnew.csv\n--encoding\nlatin-1\n--goal\nmicro-f1\n--lr\n0.1",
    b"predict\nnowhere\nnew.csv\n--keep\nid\ntitle",
    b"predict\nnowhere\nnew.csv\n--rules\nrules.py\n--facts\ntotal",
    b"rules\ncheck\nrules.py\nnew.csv\n--labels\nl\n--facts\ntotal\n--labelled\n3",
    b"train\n--help\ndata",
    b"methods",
    b"--version",
]


def command_line(content):
    """Arguments, one on each line, to a command line in an empty folder."""
    arguments = content.decode("utf-8", "surrogateescape").split("\n")
    empty = FOLDER / "empty"
    empty.mkdir(exist_ok=True)
    errors = io.StringIO()
    with (
        contextlib.chdir(empty),
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        by_parser = False
        try:
            status = cli.main(arguments)
        except SystemExit as end:
            status, by_parser = end.code, True
    assert status in (0, 2), status
    if status and not by_parser:
        said = errors.getvalue()
        assert said.startswith("lossnet: "), said
        assert said.count("\n") == 1, f"a complaint is one line: {said!r}"


CONFIGURATION = {
    "recipe": Target(
        [*_RECIPES, b"energy_lr: 1e-3\nepochs: 5\nsolver: neumann\nconditioned: true\nloss: nce\n"], recipe
    ),
    "command-line": Target(_COMMANDS, command_line),
}


# ---------------------------------------------------------------- HTTP


def model_of(task, **settings):
    torch.manual_seed(0)
    small = Settings(task_hidden=4, image_net="unet", image_width=4, **settings)
    return Model(build("cross-entropy", "none", small, task).eval(), ("cross-entropy", "none"), small, task)


class Http:
    """Takes a body, or a whole request: lines ``METHOD PATH`` and headers, an empty one, and the body."""

    def __init__(self, make):
        self._make = make

    @functools.cached_property
    def _running(self):
        app, loop = create_app(self._make(), token="secret"), asyncio.new_event_loop()
        lifespan = app.router.lifespan_context(app)
        loop.run_until_complete(lifespan.__aenter__())
        return app, loop, lifespan

    def __call__(self, content):
        app, loop, _ = self._running
        head, _, body = content.partition(b"\n\n")
        first, *lines = head.split(b"\n")
        method, _, path = first.decode("latin-1").partition(" ")
        headers = [tuple(part.strip() for part in line.partition(b":")[::2]) for line in lines]
        status, said = loop.run_until_complete(self._asked(app, method, path, headers, body))
        assert status < 500, (status, said)
        if path == "/predict":
            assert isinstance(json.loads(said), dict)

    async def _asked(self, app, method, path, headers, body):
        half = len(body) // 2
        parts = [(body[:half], True), (body[half:], False)]
        sent = []

        async def receive():
            part, more = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": more}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.lower(), value) for name, value in headers],
        }
        await app(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


_HEAD = b"POST /predict\nauthorization: Bearer secret\ncontent-type: application/json\n\n"
_LEXICON = Lexicon.fit(Sentences((("Ann", "went", "to", "to", "Ann"),)), ("case", "shape", "characters"))


def asking(*instances):
    return _HEAD + json.dumps({"instances": instances}).encode()


def partly(engine, task):
    """A model with an engine for known parts."""
    model = model_of(task)
    decision = Decision(confidence=(0.8, 1.1, 0.2))
    engine = make(engine, model.task, model.settings).eval()
    return dataclasses.replace(model, conditional=engine, decision=decision)


def telling(known, *instances, **others):
    return _HEAD + json.dumps({"instances": instances, "known": known, **others}).encode()


class Known:
    """Takes JSON with what is known of two instances."""

    def __init__(self, make, x):
        self._make, self._x = make, x

    @functools.cached_property
    def _model(self):
        return self._make()

    def __call__(self, content):
        try:
            known = json.loads(content)
        except (ValueError, RecursionError):
            return
        if known is not None:
            with contextlib.suppress(DataError):
                assert np.isfinite(self._model.predict_proba(self._x, known=known)).all()


class Columns:
    """Takes a file of which some columns are known labels, or facts."""

    def __init__(self, make, **given):
        self._make, self._given = make, given

    @functools.cached_property
    def _model(self):
        return self._make()

    def __call__(self, content):
        path = FOLDER / "columns.csv"
        path.write_bytes(content)
        with warnings.catch_warnings(), contextlib.suppress(DataError):
            warnings.simplefilter("ignore", UserWarning)
            for part in stream.predict(self._model, path, **self._given):
                assert part.relaxed.shape[1] == 2


def encoded(content):
    return {"image": base64.b64encode(content).decode()}


HTTP = {
    "http-labels": Target(
        [
            asking([0.5, 1, None], {"size": 3, "kind": "x"}),
            asking({"size": -1.5e3, "kind=x": 0, "kind=y": 1}),
            b"GET /health\n\n",
            b"GET /metrics\nauthorization: Bearer secret\n\n",
        ],
        Http(lambda: model_of(Task(Features(("size", "kind=x", "kind=y")), Labels(("fun", "sad"))))),
    ),
    "http-text": Target(
        [asking("so good", {"text": "bad"}), asking("", "\ud800 😀 " * 9, {"text": None, "more": 3})],
        Http(lambda: model_of(Task(TEXTS, Labels(("fun", "sad"))))),
    ),
    "http-tags": Target(
        [
            asking("Ann went to http://a.b 12:30...", ["Ann", "to", "10" * 20]),
            asking({"tokens": ["Ann", "é"]}),
        ],
        Http(lambda: model_of(Task(Words(_LEXICON), Tags(TagSet(("O", "B")))))),
    ),
    "http-masks": Target(
        [
            asking([[[0, 128, 255], [1, 2, 3]]] * 2, [[[0.5, 1, 0]]]),
            asking(encoded(picture("PNG", 6, 5, 3)), encoded(picture("JPEG", 3, 3))),
        ],
        Http(lambda: model_of(Task(Images(3, (6, 5)), Masks()))),
    ),
}

_FILMS = Task(Features(("size", "year")), Labels(("fun", "sad")))
_TAGGING = Task(Words(_LEXICON), Tags(TagSet(("O", "B-X", "I-X", "E-X", "S-X"), "IOB2")))

KNOWN = {
    "known-labels": Target(
        [
            b"[[1, null], [0, 1]]",
            b"[[NaN, true], [0.0, 1.0]]",
            b'[{"fun": 1}, null]',
            b'[{"sad": null, "fun": 0}, {}]',
        ],
        Known(lambda: partly("energy", _FILMS), [[0.5, 1.0], [2.0, 3.0]]),
    ),
    "known-tags": Target(
        [b'[["B-X", "I-X", null], null]', b'[[null, "O", "B-X"], ["B-X"]]'],
        Known(lambda: partly("network", _TAGGING), [["Ann", "went", "to"], ["Ann"]]),
    ),
    "known-masks": Target(
        [json.dumps([[[1, None, 0]] * 4, [[None, float("nan"), 0]] * 4]).encode()],
        Known(lambda: partly("network", Task(Images(1, (4, 3)), Masks())), np.zeros((2, 4, 3))),
    ),
    "known-columns": Target(
        [b"size,year,fun,sad\n1,1990,1,\n2,,0,1.0\n", b"sad;size;fun;year\ntrue;1;;2\n;3;False;4\n"],
        Columns(lambda: partly("energy", _FILMS), known=["fun", "sad"]),
    ),
    "fact-columns": Target(
        [b"size,year,total\n1,1990,1\n2,,\n", b"total;size;year\n0,5;1;2\n;3;4\n"],
        Columns(lambda: model_of(_FILMS), rules=[at_most(1), sums_to(weight=2.0)], facts=["total"]),
    ),
    "http-known": Target(
        [
            telling([{"fun": 1}, None], [0.5, 1], {"size": 3, "year": 5}),
            telling([[1, None], [None, 0]], [0.5, 1], [0.5, 2], abstain_below=0.3),
        ],
        Http(lambda: partly("network", _FILMS)),
    ),
}

TARGETS = {**READERS, **COLLECTIONS, **CONFIGURATION, **HTTP, **KNOWN}
