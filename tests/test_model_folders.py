"""Model folders that somebody damaged or forged: refused with a `ModelError`, or as good as before.

Examples are descriptions of what was done to a sound folder, in JSON.  Those that once failed are kept under
``corpus/model_folders`` and always run.  ``LOSSNET_FUZZ=50000`` raises the number of new examples.
"""

import json
import os
import time
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of

from lossnet.build import build
from lossnet.data import Lexicon, Preprocessor, Sentences
from lossnet.energies import Energy
from lossnet.model import Model, ModelError, load, load_energy
from lossnet.settings import Settings
from lossnet.tasks import LabelTask, MaskTask, TagTask

CORPUS = sorted((Path(__file__).parent / "corpus" / "model_folders").glob("*.json"))
EXAMPLES = int(os.environ.get("LOSSNET_FUZZ", "120"))
SMALL = Settings(
    task_hidden=3, energy_hidden=3, global_hidden=2, task_layers=1, energy_layers=1, image_width=2,
    image_net="unet", inference_steps=2, inference_candidates=2, crop=6,
)  # fmt: skip


def label_model(method, loss):
    task = LabelTask(("a", "b"), ("x", "y", "z"), Preprocessor(np.zeros(2), np.ones(2), np.ones(2)))
    return Model(build(method, loss, SMALL, task), (method, loss), SMALL, task, 0.3), np.ones((3, 2))


def tag_model():
    read = Sentences((("Ann", "saw", "Ann", "saw"),), (("S-PER", "O", "S-PER", "O"),))
    tags = ("O", "B-PER", "I-PER", "E-PER", "S-PER")
    lexicon = Lexicon.fit(read, tags, ("case", "characters"), scheme="IOB2", word_length=4)
    task = TagTask(lexicon, np.ones((len(lexicon.words), 5), np.float32))
    return Model(build("seal", "nce", SMALL, task), ("seal", "nce"), SMALL, task, 0.5), [["Ann", "saw", "it"]]


def mask_model():
    task = MaskTask(1, (8, 8))
    built = build("cross-entropy", "none", SMALL, task)
    return Model(built, ("cross-entropy", "none"), SMALL, task, 0.5), np.zeros((2, 8, 8))


def sound():
    torch.manual_seed(0)
    made = {
        "seal": label_model("seal", "nce"),
        "dvn": label_model("dvn", "regression"),
        "tags": tag_model(),
        "masks": mask_model(),
    }
    return {
        name: (model.files(), inputs, model.predict_proba(inputs)) for name, (model, inputs) in made.items()
    }


SOUND = sound()

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
        ["seal", "dvn", "crf", "nce", "margin", "tags", "labels", "masks", "BIOES", "unet", "x", ""]
    )
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def edits_of(name):
    """Strategies for changes to one sound folder that a forger would hide behind new checksums."""
    paths = st.sampled_from(list(places(json.loads(SOUND[name][0]["model.json"]))))
    return st.one_of(
        st.tuples(st.just("put"), paths, VALUES),
        st.tuples(st.just("drop"), paths),
        st.tuples(
            st.just("retype"), NUMBERS, st.sampled_from(["float16", "bfloat16", "float64", "int64", "bool"])
        ),
        st.tuples(st.just("reshape"), NUMBERS, st.lists(st.integers(0, 5), max_size=3)),
        st.tuples(st.just("rename"), NUMBERS, st.text(max_size=9) | st.just("network/energy.w")),
    )


FORGED = st.sampled_from(list(SOUND)).flatmap(
    lambda name: st.fixed_dictionaries(
        {
            "model": st.just(name),
            "forged": st.just(True),
            "edits": st.lists(edits_of(name), min_size=1, max_size=3),
        }
    )
)
DAMAGE = st.tuples(st.just("flip"), FILES, NUMBERS, st.integers(0, 7)) | st.tuples(
    st.just("cut"), FILES, NUMBERS
)
DAMAGED = st.fixed_dictionaries(
    {
        "model": st.sampled_from(list(SOUND)),
        "forged": st.just(False),
        "edits": st.lists(DAMAGE, min_size=1, max_size=3),
    }
)


def holds(example, folder, seal):
    """Does to a folder what the example says, and looks at what comes of it."""
    files, inputs, expected = SOUND[example["model"]]
    files = dict(files)
    for action, *arguments in example["edits"]:
        try:
            ACTIONS[action](files, *arguments)
        except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):
            continue  # an edit before it took away what it is about
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if example["forged"]:
        seal(folder)
    started = time.monotonic()
    model = unless_refused(load, folder)
    if model is not None and example["forged"]:
        try_to_predict(model, inputs)
    elif model is not None:  # what is not noticed has not changed anything
        np.testing.assert_array_equal(model.predict_proba(inputs), expected)
    assert isinstance(unless_refused(load_energy, folder), Energy | None)
    assert time.monotonic() - started < 20, "it hangs"


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


@pytest.fixture
def place(tmp_path):
    return tmp_path / "model"


def test_the_folders_are_sound(place, seal):
    for name in SOUND:
        holds({"model": name, "forged": False, "edits": []}, place, seal)
        holds({"model": name, "forged": True, "edits": []}, place, seal)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_once_failed(path, place, seal):
    holds(json.loads(path.read_text(encoding="utf-8")), place, seal)


FUZZING = hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)


@FUZZING
@given(example=DAMAGED)
def test_damage_is_noticed(example, place, seal):
    holds(example, place, seal)


@FUZZING
@given(example=FORGED)
def test_a_forged_folder_is_refused_or_predicts(example, place, seal):
    holds(example, place, seal)
