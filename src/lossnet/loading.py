"""Data sets by name or file, read, split and prepared for training."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lossnet.data import Coverage, DataError, Examples, Sentences, digest, read_embeddings
from lossnet.data.readers import read_frame
from lossnet.data.registry import (
    BROWN,
    TOKEN_FEATURES,
    AnyPath,
    Entry,
    Raw,
    find_clusters,
    find_embeddings,
    read_raw,
    split_data,
)
from lossnet.data.sentence_files import read_labelled_texts
from lossnet.inputs import Fitting, Input
from lossnet.outputs import Output
from lossnet.task import Task

__all__ = ["Description", "Loaded", "describe", "gather", "load", "load_memory"]

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Loaded:
    """A data set ready to train on: its three parts, prepared by what was fitted on the first.

    The ``task`` holds what was fitted.  ``coverage`` says how much of the text each table of word vectors
    covers.  The ``digest`` is a hash of what was read; it is empty for data from elsewhere.
    """

    name: str
    description: str
    train: Examples
    valid: Examples
    test: Examples
    task: Task
    split_name: str
    coverage: tuple[Coverage, ...] = ()
    digest: str = ""

    @classmethod
    def from_parts(
        cls,
        train: Examples,
        valid: Examples,
        test: Examples | None = None,
        fitting: Fitting | None = None,
        name: str = "arrays",
        split_name: str = "given",
    ) -> Loaded:
        """Return data that are in memory, prepared by what is fitted on the training part.

        >>> from lossnet.data import MultiLabelData
        >>> data = MultiLabelData.from_arrays([[0.5], [2.0]], [[1, 0], [0, 1]])
        >>> Loaded.from_parts(data, data).task.title
        'sets of labels from feature vectors'
        """
        parts = [train, valid, train.take([]) if test is None else test]
        task = Task.fit(parts, fitting)
        train, valid, test = task.prepare(parts)
        return cls(name, name, train, valid, test, task, split_name)


def load(
    name_or_path: AnyPath,
    data_dir: AnyPath | None = None,
    split: AnyPath | None = None,
    labels: Any = None,
    seed: int = 0,
    progress: bool = True,
    resize: tuple[int, int] | None = None,
    words: str | None = None,
    features: str | None = None,
    embeddings: Sequence[AnyPath] | None = None,
    task: Task | None = None,
) -> Loaded:
    """Return a data set by name, or a file in any format of `lossnet.data.readers`, ready to train on.

    A named set is looked for in ``data_dir``, then where the environment variable ``LOSSNET_DATA``
    points, then in the user's cache, where it is downloaded to if it can be.  Rows are split by
    ``split``, a file for `Split.read`; else by the ``split.json`` beside a named set or by its own
    files; else by `stratified_split` with ``seed``.

    =====================================  =====================================================
    a table                                ``labels`` says which columns are labels
    a table with ``words``                 texts in that column, and labels
    a column file, or a folder of three    sentences and tags; ``features`` of tokens is a name of
                                           the set's lists, or a list of `Lexicon`'s features
    a folder or archive of images          with masks, or with ``labels.csv``; ``resize`` gives a
                                           folder's images one height and width
    =====================================  =====================================================

    ``embeddings`` are files with word vectors, which are joined; by default those that suit the set.  Inputs
    and outputs are fitted on the training rows unless a model's ``task`` is given.

    >>> loaded = load("digits-pairs")
    >>> len(loaded.train), len(loaded.valid), len(loaded.test), loaded.split_name
    (1800, 600, 600, 'fixed')
    >>> load("digits-scenes").train.size
    (32, 32)
    """
    raw = read_raw(name_or_path, data_dir, split, labels, seed, progress, resize, words)
    return _prepared(raw, data_dir, features, embeddings, task)


def load_memory(
    data: Any,
    name: str = "arrays",
    data_dir: AnyPath | None = None,
    split: AnyPath | None = None,
    labels: Any = None,
    words: str | None = None,
    seed: int = 0,
    features: str | None = None,
    embeddings: Sequence[AnyPath] | None = None,
) -> Loaded:
    """Return data that are in memory, split and prepared as `load` does those of a file.

    ``data`` are `Examples`; a pair of inputs and outputs, see `gather`; or a data frame, for which ``labels``
    and ``words`` are as for a table in a file.  `Loaded` data are returned unchanged.

    >>> import pandas
    >>> films = pandas.DataFrame({"length": range(60, 90), "short": [1] * 10 + [0] * 20})
    >>> loaded = load_memory(films, labels=["short"])
    >>> loaded.task.title, len(loaded.train), loaded.split_name
    ('sets of labels from feature vectors', 18, 'stratified(seed=0)')
    """
    if isinstance(data, Loaded):
        return data
    if hasattr(data, "columns"):
        examples: Examples = read_labelled_texts(data, words, labels) if words else read_frame(data, labels)
    elif labels is not None or words is not None:
        raise DataError("labels= and words= name columns of a data frame or file; these data have none")
    elif isinstance(data, Examples):
        examples = data
    elif isinstance(data, tuple) and len(data) == 2:
        examples = gather(*data)
    else:
        what = f"data are a {type(data).__name__}; give a pair (X, Y), Examples, a data frame or Loaded"
        raise DataError(what)
    standardise = not getattr(examples.source, "is_sparse", False)
    entry = Entry(name, "data in memory", standardise=standardise, features=TOKEN_FEATURES)
    return _prepared(split_data(entry, examples, None, split, seed), data_dir, features, embeddings)


def gather(x: Any, y: Any) -> Examples:
    """Return inputs and outputs as `Examples`, with kinds that are guessed from the values.

    Inputs are rows of numbers, sentences (texts or lists of tokens), or arrays of images; outputs are rows of
    0 and 1, lists of tags, or arrays of masks.

    >>> gather([[0.5], [2.0]], [[1, 0], [0, 1]]).target.names
    ('label_0', 'label_1')
    >>> gather([["Ann", "left"]], [["N", "V"]]).target.tags
    (('N', 'V'),)
    """
    source = _kind_of(Input.kinds, x, "inputs", "rows of numbers, sentences, or arrays of images").collect(x)
    wanted = "rows of 0 and 1, lists of tags, or arrays of masks"
    return Examples(source, _kind_of(Output.kinds, y, "outputs", wanted).collect(y, source))


def _kind_of(kinds: Mapping[str, Any], given: Any, what: str, wanted: str) -> Any:
    kind = next((kind for kind in kinds.values() if kind.accepts(given)), None)
    if kind is None:
        raise DataError(f"the {what}, {reprlib.repr(given)}, are of no known kind; give {wanted}")
    return kind


def _prepared(
    raw: Raw,
    data_dir: AnyPath | None,
    features: str | None,
    embeddings: Sequence[AnyPath] | None,
    task: Task | None = None,
) -> Loaded:
    known = raw.entry
    texts = [part.source for part in raw.parts if isinstance(part.source, Sentences)]
    if not texts and (features is not None or embeddings is not None):
        what = "has no sentences; features= and embeddings= (--features, --embeddings) are for those"
        raise DataError(f"{known.name!r} {what}")
    fitting = Fitting(standardise=known.standardise)
    if texts and task is None:
        paths = find_embeddings(known, data_dir) if embeddings is None else embeddings
        tables = [read_embeddings(path) for path in paths]
        chosen = _token_features(known, texts[0], features)
        clusters = find_clusters(known, data_dir) if set(chosen) & set(BROWN) else {}
        fitting = Fitting(features=chosen, tables=tables, clusters=clusters)
    task = task or Task.fit(raw.parts, fitting)
    tokens = [token for part in texts for sentence in part.tokens for token in sentence]
    beside: list[Any] = [*fitting.tables, *([fitting.clusters] if fitting.clusters else [])]
    train, valid, test = task.prepare(raw.parts)
    coverage = tuple(table.coverage(tokens) for table in fitting.tables)
    content = digest(*raw.parts, *beside)  # as read: computed values may be rounded otherwise elsewhere
    name, about = known.name, known.description
    return Loaded(name, about, train, valid, test, task, raw.split_name, coverage, content)


def _token_features(known: Entry, train: Sentences, wanted: str | None) -> tuple[str, ...]:
    """Return the features that a name or a list stands for."""
    if wanted is None:
        return next(iter(known.features.values()))
    if wanted in known.features:
        return known.features[wanted]
    chosen = tuple(name.strip() for name in wanted.split(",") if name.strip())
    possible = ["case", "shape", *(BROWN if known.clusters else ()), *train.columns, "characters"]
    for name in chosen:
        if name not in possible:
            what = f"no feature {name!r} in {known.name!r}; choose {' or '.join(known.features)}"
            raise DataError(f"{what}, or a list of {', '.join(possible)}")
    return tuple(dict.fromkeys(chosen))


@dataclass(frozen=True)
class Description:
    """A data set in numbers; ``facts`` are the counts of its kinds of input and output."""

    name: str
    description: str
    split_name: str
    instances: Mapping[str, int]
    facts: Mapping[str, Any] = field(default_factory=dict)
    home: str = ""
    terms: str = ""


def describe(name_or_path: AnyPath, data_dir: AnyPath | None = None, **options: Any) -> Description:
    """Count a data set over its three parts; it is read by the arguments of `load`.

    >>> describe("digits-pairs").facts["labels_per_instance"]
    2.0
    >>> describe("digits-scenes").facts["size"]
    '32×32'
    """
    raw = read_raw(name_or_path, data_dir, **options)
    known, task = raw.entry, Task.fit(raw.parts)
    facts = task.input.describe([part.source for part in raw.parts])
    facts |= task.output.describe([part.target for part in raw.parts])
    if known.features:
        lists = (f"{name}: {', '.join(('words', *tokens))}" for name, tokens in known.features.items())
        facts["features"] = "; ".join(lists)
    instances = {part: len(data) for part, data in zip(PARTS, raw.parts, strict=True)}
    return Description(
        known.name, known.description, raw.split_name, instances, facts, known.home, known.terms
    )
