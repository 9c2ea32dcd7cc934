"""Model folders that somebody damaged or forged: refused with a `ModelError`, or as good as before.

An input is a description of what is done to a sound folder, in JSON, so that damage can be hidden behind new
checksums.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of

from lossnet import model as models
from lossnet.build import build
from lossnet.data import FeatureTable, Lexicon, Preprocessor, Sentences, TagSet, TextTable
from lossnet.data.propbank import PredicateSentences, RoleColumn
from lossnet.decoding import Decision
from lossnet.energies import Energy
from lossnet.inputs import Features, Fitting, Images, Predicates, Text, Words
from lossnet.model import Model, ModelError, load, load_energy
from lossnet.outputs import Labels, Masks, Roles, Tags
from lossnet.settings import Settings
from lossnet.task import Task

SMALL = Settings(
    task_hidden=3, energy_hidden=3, global_hidden=2, task_layers=1, energy_layers=1, image_width=2,
    image_net="unet", inference_steps=2, inference_candidates=2, crop=6,
)  # fmt: skip


def label_model(method, loss):
    preprocessor = Preprocessor(np.zeros(2), np.ones(2), np.ones(2))
    task = Task(Features(("a", "b"), preprocessor), Labels(("x", "y", "z")))
    return Model(build(method, loss, SMALL, task), (method, loss), SMALL, task, Decision(0.3)), np.ones(
        (3, 2)
    )


def blended_model():
    members, x = [label_model("seal", "nce")[0], label_model("dvn", "regression")[0]], np.ones((3, 2))
    return Model.blend(members, SMALL), x


def tag_model():
    read = Sentences((("Ann", "saw", "Ann", "saw"),))
    tags = TagSet(("O", "B-PER", "I-PER", "E-PER", "S-PER"), scheme="IOB2")
    lexicon = Lexicon.fit(read, ("case", "characters"), word_length=4)
    task = Task(Words(lexicon, np.ones((len(lexicon.words), 5), np.float32)), Tags(tags))
    return Model(build("seal", "nce", SMALL, task), ("seal", "nce"), SMALL, task), [["Ann", "saw", "it"]]


def role_model():
    read = PredicateSentences.of([("Ann", "saw", "Ann"), ("Ann", "saw")], [[1], [1]])
    task = Task(
        Predicates.fit([read], Fitting(features=("predicate",))), Roles.fit([RoleColumn((("B-A0",),))])
    )
    return Model(build("seal", "nce", SMALL, task), ("seal", "nce"), SMALL, task), read


def mask_model():
    task = Task(Images(1, (8, 8)), Masks())
    built = build("cross-entropy", "none", SMALL, task)
    return Model(built, ("cross-entropy", "none"), SMALL, task), np.zeros((2, 8, 8))


def text_model():
    lexicon = Lexicon.fit(Sentences((("so", "good", "so", "good"),)))
    task, settings = (
        Task(Words(lexicon, column="text"), Labels(("x", "y"))),
        dataclasses.replace(SMALL, crop=0),
    )
    return Model(build("seal", "nce", settings, task), ("seal", "nce"), settings, task), [
        "so bad",
        "good",
    ]


def counted_model():
    """Texts beside numbers."""
    table = TextTable(["so good", "so bad"], FeatureTable([[1.0], [2.0]], ["n"]))
    task = Task(Text.fit([table], Fitting(standardise=True)), Labels(("x", "y")))
    model = Model(build("seal", "nce", SMALL, task), ("seal", "nce"), SMALL, task)
    return model, [{"text": "so bad", "n": 1.5}, {"text": "good", "n": None}]


@functools.cache
def sound():
    """Folders by name: their files, inputs, and what is predicted for these."""
    torch.manual_seed(0)
    made = {
        "seal": label_model("seal", "nce"),
        "dvn": label_model("dvn", "regression"),
        "blend": blended_model(),
        "tags": tag_model(),
        "roles": role_model(),
        "masks": mask_model(),
        "texts": text_model(),
        "counted": counted_model(),
    }
    found = {
        name: (model.files(), inputs, model.predict_proba(inputs)) for name, (model, inputs) in made.items()
    }
    for files, _, _ in found.values():
        Model.from_files(files)  # imports what loading needs, before anybody watches the memory
    return found


# ---------------------------------------------------------------- what may be done to a folder


def places(content, path=()):
    """The paths to everything in a JSON document."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield [*path, key]
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))


def at(content, path):
    for key in path[:-1]:
        content = content[key]
    return content


def flip(files, file, place, bit):
    damaged = bytearray(files[file])
    damaged[place % len(damaged)] ^= 1 << bit
    files[file] = bytes(damaged)


def cut(files, file, place):
    files[file] = files[file][: place % (len(files[file]) + 1)]


def put(files, path, value):
    content = json.loads(files["model.json"])
    at(content, path)[path[-1]] = value
    files["model.json"] = json.dumps(content).encode()


def drop(files, path):
    content = json.loads(files["model.json"])
    del at(content, path)[path[-1]]
    files["model.json"] = json.dumps(content).encode()


def retype(files, number, kind):
    edit_tensor(files, number, lambda name, value: {name: value.to(getattr(torch, kind))})


def reshape(files, number, shape):
    edit_tensor(files, number, lambda name, value: {name: torch.ones(shape)})


def rename(files, number, name):
    edit_tensor(files, number, lambda old, value: {name: value})


def edit_tensor(files, number, edit):
    tensors = tensors_of(files["model.safetensors"])
    name = sorted(tensors)[number % len(tensors)]
    value = tensors.pop(name)
    files["model.safetensors"] = bytes_of({**tensors, **edit(name, value)})


ACTIONS = {action.__name__: action for action in (flip, cut, put, drop, retype, reshape, rename)}
FILES = st.sampled_from(["model.json", "model.safetensors"])
NUMBERS = st.integers(0, 1 << 20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([10**6, 10**9, 10**13, 10**30, -(10**9), float("nan"), float("inf"), 0.5, 1e-300])
    | st.sampled_from(
        [
            "seal",
            "dvn",
            "crf",
            "nce",
            "margin",
            "tags",
            "labels",
            "masks",
            "words",
            "images",
            "BIOES",
            "unet",
            "x",
            "",
        ]
    )
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def edits_of(name):
    """Strategies for changes to one sound folder that a forger would hide behind new checksums."""
    paths = st.sampled_from(list(places(json.loads(sound()[name][0]["model.json"]))))
    return st.one_of(
        st.tuples(st.just("put"), paths, VALUES),
        st.tuples(st.just("drop"), paths),
        st.tuples(
            st.just("retype"), NUMBERS, st.sampled_from(["float16", "bfloat16", "float64", "int64", "bool"])
        ),
        st.tuples(st.just("reshape"), NUMBERS, st.lists(st.integers(0, 5), max_size=3)),
        st.tuples(st.just("rename"), NUMBERS, st.text(max_size=9) | st.just("network/energy.w")),
    )


DAMAGE = st.tuples(st.just("flip"), FILES, NUMBERS, st.integers(0, 7)) | st.tuples(
    st.just("cut"), FILES, NUMBERS
)


def described(edits_of, forged):
    """Descriptions of one to three edits to one of the folders."""

    def of(name):
        edits = st.lists(edits_of(name), min_size=1, max_size=3)
        return edits.map(lambda found: json.dumps({"model": name, "forged": forged, "edits": found}).encode())

    return st.deferred(lambda: st.one_of([of(name) for name in sound()]))


FORGED = described(edits_of, forged=True)
DAMAGED = described(lambda name: DAMAGE, forged=False)


def sealed(files):
    """The files with checksums that match, as a forger would make them."""
    try:
        content = json.loads(files["model.json"])
        content.pop("sha256", None)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return files  # no JSON, and no more so with checksums
    sums = {name: models._sha256(held) for name, held in files.items() if name.endswith(".safetensors")}
    content["sha256"] = {"model.json": models._digest(content), **sums}
    return {**files, "model.json": json.dumps(content).encode()}


def take(content, folder: Path):
    """Does to a folder what the description says, and looks at what comes of it."""
    example = json.loads(content)
    files, inputs, expected = sound()[example["model"]]
    files = dict(files)
    for action, *arguments in example["edits"]:
        try:
            ACTIONS[action](files, *arguments)
        except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):
            continue  # an edit before it took away what it is about
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, held in (sealed(files) if example["forged"] else files).items():
        (folder / name).write_bytes(held)
    model = unless_refused(load, folder)
    if model is not None and example["forged"]:
        try_to_predict(model, inputs)
    elif model is not None:  # what is not noticed has not changed anything
        np.testing.assert_array_equal(model.predict_proba(inputs), expected)
    assert isinstance(unless_refused(load_energy, folder), Energy | None)


def unless_refused(read, folder):
    try:
        return read(folder)
    except ModelError as error:
        reason = str(error)
    assert str(folder) in reason
    return None


def try_to_predict(model, inputs):
    try:
        found = model.predict_proba(inputs)
    except ValueError:  # a crop larger than these images, say
        return
    assert len(found) == len(inputs)
