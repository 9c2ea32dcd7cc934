"""The data sets by name: descriptions, where to get them, how to read and split them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np
import pooch

from lossnet.data import citation_rules, citations, embedded, propbank, treebank
from lossnet.data.download import fetch
from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples, Facts, concatenated
from lossnet.data.image_files import holds_images, is_labelled, read_images, read_labelled_images
from lossnet.data.parts import holds_table, part_files, part_folders, read_like, split_beside
from lossnet.data.readers import blurbs, documents, goemotions, lyrl, nitf, parallel, read, read_facts
from lossnet.data.readers.clusters import read_clusters
from lossnet.data.sentence_files import find_parts, is_table, read_labelled_texts, read_sentences
from lossnet.data.splits import Split, stratified_split
from lossnet.data.tables import Origin
from lossnet.energies import Rule
from lossnet.suggest import did_you_mean
from lossnet.warn import warn

ENVIRONMENT_VARIABLE = "LOSSNET_DATA"
BROWN = ("brown4", "brown8", "brown12", "brown16")
#: what is known of the tokens of other sentences beside the word
TOKEN_FEATURES = {"words": ("case", "characters")}


@dataclass(frozen=True)
class Entry:
    """A data set the registry knows.

    ``files`` is one file, or a train, a valid and a test file; ``beside`` comes with them.  They are in a
    folder of the set's name or called one of ``folders``.  ``layout`` says what is in files that must be
    made by hand.  ``urls`` are where files can be downloaded, ``sha256`` the checksums of those we tested
    with.  ``make`` builds a set that has no files; ``reader`` reads and splits files in a format of their
    own; ``rules`` makes what is known of its outputs, and ``facts`` what these read of instances.

    A set of sentences says what its ``columns`` are, ``word`` and ``tag`` among them; which ``features``
    (of `Lexicon`) it may be read with, the first by default; where Brown ``clusters`` are for those that need
    them, a set's name and its file; and which ``embeddings`` suit it, files in a folder of that name beside
    the set's.
    """

    name: str
    description: str
    files: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    layout: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    standardise: bool = False
    terms: str = ""
    home: str = ""
    urls: Mapping[str, str] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[], tuple[Examples, Split]] | None = None
    reader: Callable[[list[Path]], tuple[Examples, Split]] | None = None
    rules: Callable[[], tuple[Rule, ...]] = tuple
    facts: Callable[[Examples], Facts] | None = None
    columns: tuple[str, ...] = ()
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clusters: tuple[str, str] | None = None
    embeddings: tuple[str, ...] = ()


def _frozen(value: Any) -> Any:
    """Return a TOML value with tuples for lists."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _entry(name: str, facts: dict[str, Any]) -> Entry:
    modules: tuple[Any, ...] = (embedded, citations, citation_rules, propbank, treebank)
    modules += (documents, parallel, lyrl, blurbs, nitf, goemotions)
    named = "make", "reader", "rules", "facts"
    functions = {
        what: next(getattr(one, facts[what]) for one in modules if hasattr(one, facts[what]))
        for what in named
        if what in facts
    }
    facts = {what: value for what, value in facts.items() if what not in named}
    return Entry(name, **functions, **_frozen(facts))


_TABLES = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))
_ENTRIES = {name: _entry(name, facts) for name, facts in _TABLES.items()}


def names() -> tuple[str, ...]:
    """Return the names of all data sets.

    >>> "bibtex" in names()
    True
    """
    return tuple(_ENTRIES)


def entry(name: str) -> Entry:
    """Return the registry's entry of a name; an unknown one is an error that suggests others.

    >>> entry("emotions").standardise
    True
    """
    if name in _ENTRIES:
        return _ENTRIES[name]
    raise DataError(f"no data set or file is called {name!r}; {did_you_mean(name, _ENTRIES, 'known are')}")


def find(name: str, data_dir: AnyPath | None = None) -> Path | None:
    """Return the folder that holds a named set's files, None if no place has them all.

    >>> find("bookmarks", "/nowhere") is None or "there after all"
    True
    """
    files = entry(name).files
    folders = _folders(entry(name), data_dir) if files else []
    return next((one for one in folders if all((one / file).is_file() for file in files)), None)


@dataclass(frozen=True, eq=False)
class Raw:
    """The three parts of a data set as read, unprepared, and what became of a table's columns."""

    entry: Entry
    parts: tuple[Examples, ...]
    split_name: str
    origin: Origin | None = None


def read_raw(
    name_or_path: AnyPath,
    data_dir: AnyPath | None = None,
    split: AnyPath | None = None,
    labels: Any = None,
    seed: int = 0,
    progress: bool = True,
    resize: tuple[int, int] | None = None,
    words: str | None = None,
    valid: AnyPath | None = None,
    test: AnyPath | None = None,
    encoding: str | None = None,
    facts: Sequence[str] | None = None,
    text: Sequence[str] | None = None,
) -> Raw:
    """Read and split a data set by name, or a file or folder; see `lossnet.loading.load`."""
    name = fspath(name_or_path)
    if name not in _ENTRIES and (Path(name).suffix or Path(name).exists() or os.sep in name):
        files = part_files(name) or part_folders(name)
        given = {part: path for part, path in (("valid", valid), ("test", test)) if path is not None}
        if twice := files.keys() & given.keys():
            part = min(twice)
            raise DataError(f"{name} has {files[part].name}; leave {part}= (--{part}) out")
        source = str(files.pop("train", name))
        others: dict[str, AnyPath] = {**files, **given}
        if others and split is not None:
            raise DataError("rows are split by files; leave split= (--split) out", split)
        made, data, own = _read_path(name, source, labels, resize, words, encoding, facts, text)
        if others and own is not None:
            raise DataError(f"is split itself; leave {', '.join(f'{part}=' for part in others)} out", name)
        like = {part: read_like(path, data, labels, resize, encoding) for part, path in others.items()}
        return split_data(made, data, own, split, seed, others=like)
    known = entry(name)
    options = {"labels": labels, "words": words, "resize": resize}
    options |= {"valid": valid, "test": test, "encoding": encoding, "facts": facts, "text": text}
    for option, value in options.items():
        if value is not None:
            raise DataError(f"{name!r} is read as it is; {option}=, --{option} are for files")
    if known.make is not None:
        return split_data(known, *known.make(), split, seed, "fixed")
    folder = find(name, data_dir) or _download(known, data_dir, progress)
    data, own = _read_files(known, [folder / file for file in known.files])
    beside = folder / "split.json"
    if split is None and own is None and beside.is_file():
        split = beside
    return split_data(known, data, own, split, seed)


def _read_files(known: Entry, paths: list[Path]) -> tuple[Examples, Split | None]:
    """Read the files of a named set, and how they split it if there are several or they say it."""
    if known.reader is not None:
        return known.reader(paths)
    if known.columns:
        return read_sentences(paths, known.columns)
    if holds_images(paths[0]):
        return read_images(paths[0])
    first, *others = parts = [read(path, **known.options) for path in paths]
    for part, path in zip(others, paths[1:], strict=True):
        if (part.feature_names, part.label_names) != (first.feature_names, first.label_names):
            what = f"its attributes are not those of {paths[0].name}; use files of one release"
            raise DataError(what, path)
    return concatenated(parts), Split.consecutive(list(map(len, parts))) if others else None


def _read_path(
    name: str,
    source: str,
    labels: Any,
    resize: tuple[int, int] | None,
    words: str | None,
    encoding: str | None,
    facts: Sequence[str] | None = None,
    text: Sequence[str] | None = None,
) -> tuple[Entry, Examples, Split | None]:
    """Read a file or folder, or the ``source`` in it that trains, by the reader for its name and content."""
    title, own = Path(name).name, None
    data: Examples
    if resize is not None and not Path(name).is_dir():
        raise DataError(f"{name!r} is no folder of images; resize= is for those")
    if encoding is not None and Path(source).is_dir():
        raise DataError("encoding= (--encoding) is for text files", name)
    if facts and not is_table(source):
        raise DataError("facts= (--facts) names columns of a CSV, TSV or Parquet file", name)
    if text is not None and (words is not None or not is_table(source)):
        what = "texts that are read as sentences (words=, --words) have a column of their own"
        what = "text= (--text) names columns of a CSV, TSV or Parquet file" if words is None else what
        raise DataError(f"{what}; leave text= (--text) out", name)
    if words is not None:
        if not is_table(source):
            raise DataError("words= (--words) names a column of texts in a CSV, TSV or Parquet file", name)
        made = Entry(title, f"the texts in {name}", features=TOKEN_FEATURES)
        data = read_labelled_texts(source, words, labels, encoding or "utf-8")
    elif find_parts(source) or (source != name and Path(source).is_file() and not holds_table(source)):
        if labels is not None:
            raise DataError("sentences have tags in the last column; leave labels=, --labels out", name)
        made = Entry(title, f"the sentences in {name}", features=TOKEN_FEATURES)
        data, own = read_sentences([source], encoding=encoding or "utf-8")
    elif is_labelled(source):
        made = Entry(title, f"the images in {name}")
        data = read_labelled_images(source, labels, resize)
    elif holds_images(source):
        if labels is not None:
            raise DataError("images have masks for labels; leave labels=, --labels out", name)
        made = Entry(title, f"the images in {name}")
        data, own = read_images(source, resize)
    else:
        dropped = {"drop": list(facts)} if facts else {}
        data = table = read(source, labels, encoding=encoding, text=text, **dropped)
        made = Entry(title, f"the file {name}", standardise=not table.is_sparse)
    if facts:
        data = data.with_facts(read_facts(source, facts, encoding or "utf-8"))
    return made, data, own


def find_clusters(known: Entry, data_dir: AnyPath | None) -> dict[str, str]:
    """Read the Brown clusters that go with a set of sentences."""
    assert known.clusters is not None
    name, file = known.clusters
    places = [folder / file for folder in _folders(entry(name), data_dir)]
    path = next(filter(Path.is_file, places), None)
    if path is None:
        what = f"{', '.join(BROWN)} are made of Brown clusters, which come with {name!r}"
        advice = "put that set there, or choose other features"
        raise DataError(f"{what} and are in none of {', '.join(map(str, places))}; {advice}")
    return read_clusters(path)


def find_embeddings(known: Entry, data_dir: AnyPath | None) -> list[Path]:
    """Return the files with word vectors that suit a set, as far as they are there."""
    paths = []
    for file in known.embeddings:
        places = [root / "embeddings" / file for root in _roots(data_dir)]
        if path := next(filter(Path.is_file, places), None):
            paths.append(path)
        else:
            what = f"word vectors for {known.name!r} are in none of {', '.join(map(str, places))}"
            advice = "the words they would cover are learned from scratch; pass others as embeddings="
            warn(f"{what}; {advice} (--embeddings)")
    return paths


def split_data(
    known: Entry,
    data: Examples,
    own: Split | None,
    file: AnyPath | None,
    seed: int,
    own_name: str = "files",
    others: Mapping[str, Examples] | None = None,
) -> Raw:
    """Cut the data by the given file, else by its own split, else by stratification.

    Where there are ``others``, which validate or test, no rows of the data do.
    """
    data = data.numbered(np.arange(len(data)))
    if others:
        return Raw(known, *split_beside(data, others, seed))
    if file is not None:
        chosen, name = Split.read(file, len(data)), Path(file).name
    elif own is not None:
        chosen, name = own, own_name
    else:
        by = np.zeros((len(data), 0)) if data.target is None else data.target.stratify_by()
        kind = "stratified" if by.shape[1] else "random"
        chosen, name = stratified_split(by, seed=seed), f"{kind}(seed={seed})"
    parts = tuple(data.take(rows) for rows in (chosen.train, chosen.valid, chosen.test))
    return Raw(known, parts, name, getattr(data.source, "origin", None))


def _folders(known: Entry, data_dir: AnyPath | None) -> list[Path]:
    """Return the folders where a set's files may lie, best first."""
    names = (known.name, f"mlc/{known.name}", *known.folders)
    return [root / name for root in _roots(data_dir) for name in names]


def _roots(data_dir: AnyPath | None) -> list[Path]:
    """Return the folders that may hold data sets, best first."""
    given = [data_dir, os.environ.get(ENVIRONMENT_VARIABLE) or None]
    roots = [Path(root).expanduser() for root in given if root is not None]
    return [*roots, Path(pooch.os_cache("lossnet"))]


def _download(known: Entry, data_dir: AnyPath | None, progress: bool) -> Path:
    """Fetch a set to the cache, or say what is missing, where it was looked for and what to do."""
    failed = ""
    if known.urls:
        folder = Path(pooch.os_cache("lossnet")) / known.name
        try:
            for file, url in known.urls.items():
                fetch(url, known.sha256[file], folder / file, progress)
            return folder
        except DataError as error:
            failed = f"{error}; "
    files = ", ".join((*known.files, *known.beside))
    places = ", ".join(map(str, _folders(known, data_dir)))
    what = f"the files of {known.name!r} ({files}) are in none of {places}"
    where = f"get them from {known.home} and unpack them into DIR/{known.name}/"
    how = f"then pass that DIR as the data directory (--data-dir) or set {ENVIRONMENT_VARIABLE}=DIR"
    layout = f"; {known.layout}" if known.layout else ""
    raise DataError(f"{failed}{what}; {where}, {how}{layout}")
