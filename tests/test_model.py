import contextlib
import json
import os
import resource
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import sparse

import lossnet
from lossnet.build import METHODS, build
from lossnet.data import FeatureTable, Preprocessor, Sentences
from lossnet.decoding import Decision, ExpectedF1, Threshold
from lossnet.inputs import Features
from lossnet.model import Model, ModelError, load, load_energy
from lossnet.outputs import Labels
from lossnet.settings import Settings
from lossnet.spaces import MultiLabel
from lossnet.task import Task

SMALL = Settings(task_hidden=8, energy_hidden=8, global_hidden=4, inference_steps=5, inference_start="zeros")
FEATURES = ("length", "width ä", "c,d", "e", "f", "g")
LABELS = ("red", "grün", "a;b", "d")


@pytest.fixture
def inputs(make_data):
    x = make_data(30).x * 3 + 1
    x[::7, 2] = np.nan
    return x


def made(inputs, method="seal", loss="nce", settings=SMALL, threshold=0.37):
    torch.manual_seed(0)
    preprocessor = Preprocessor.fit(FeatureTable(inputs, FEATURES), standardise=True)
    task = Task(Features(FEATURES, preprocessor), Labels(LABELS))
    return Model(build(method, loss, settings, task), (method, loss), settings, task, Decision(threshold))


@pytest.fixture
def folder(inputs, tmp_path):
    made(inputs).save(tmp_path / "model")
    return tmp_path / "model"


# ---------------------------------------------------------------- there and back

NAMES = [
    (method, spec.default_loss)
    for method, spec in METHODS.items()
    if spec.suits(spec.default_loss, MultiLabel(4))
]
NAMES += [("cross-entropy", "asymmetric"), ("seal-static", "regression"), ("seal-static", "margin")]


@pytest.mark.parametrize(("method", "loss"), NAMES)
def test_a_model_comes_back_as_it_was(inputs, tmp_path, method, loss):
    model = made(inputs, method, loss)
    expected = model.predict_proba(inputs)
    assert expected.shape == (30, 4)
    assert np.isfinite(expected).all(), "missing inputs are filled in"
    assert len(np.unique(expected)) > 50
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(inputs), expected)
    assert loaded.threshold == 0.37
    assert loaded.feature_names == FEATURES
    assert loaded.label_names == LABELS
    assert loaded.names == (method, loss)
    assert loaded.settings == SMALL


def test_nce_energy_keeps_its_noise_net_when_inference_starts_there(inputs, tmp_path):
    settings = Settings(**{**SMALL.__dict__, "inference_start": "net"})
    model = made(inputs, "nce-energy", "nce", settings)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(inputs), model.predict_proba(inputs))


@pytest.mark.parametrize(
    ("method", "loss", "kept"),
    [
        ("seal", "nce", {"task_net"}),
        ("seal-static", "nce", {"task_net"}),
        ("infnet", "margin", {"task_net"}),
        ("cross-entropy", "none", {"task_net"}),
        ("dvn", "regression", {"energy"}),
        ("spen", "margin", {"energy"}),
        ("nce-energy", "nce", {"energy"}),
        ("gspen", "margin", {"energy", "pairs"}),
        ("alen", "margin", {"task_net", "energy"}),
        ("ialen", "margin", {"task_net"}),
    ],
)
def test_only_what_predicts_is_kept(inputs, tmp_path, method, loss, kept):
    made(inputs, method, loss).save(tmp_path / "model")
    names = load_file(tmp_path / "model" / "model.safetensors")
    networks = {name.split("/")[1].split(".")[0] for name in names if name.startswith("network/")}
    assert networks == kept
    assert {name for name, _ in load(tmp_path / "model").method.named_children()} == kept


@pytest.mark.parametrize(("method", "loss"), [("seal", "nce"), ("seal-static", "nce"), ("dvn", "regression")])
def test_the_energy_comes_back_wherever_it_is_kept(inputs, tmp_path, method, loss):
    model = made(inputs, method, loss)
    model.method.eval()
    model.save(tmp_path / "model")
    kept = (tmp_path / "model" / "energy.safetensors").exists()
    assert kept is ("energy" not in model.method.predictors)
    x, y = torch.rand(5, 6), torch.rand(5, 3, 4)
    assert torch.equal(load_energy(tmp_path)(x, y), model.method.energy(x, y))


def test_prediction_never_needs_the_energy(inputs, folder):
    expected = made(inputs).predict_proba(inputs)
    (folder / "energy.safetensors").write_bytes(b"damaged")
    np.testing.assert_array_equal(load(folder).predict_proba(inputs), expected)
    with pytest.raises(ModelError, match="is corrupted"):
        load_energy(folder)
    (folder / "energy.safetensors").unlink()
    np.testing.assert_array_equal(load(folder).predict_proba(inputs), expected)
    with pytest.raises(ModelError, match="the energy was not kept"):
        load_energy(folder)


def test_a_method_without_an_energy_says_so(inputs, tmp_path):
    made(inputs, "cross-entropy", "none").save(tmp_path / "model")
    assert not (tmp_path / "model" / "energy.safetensors").exists()
    with pytest.raises(ModelError, match="cross-entropy trains without an energy"):
        load_energy(tmp_path)


def test_there_is_nothing_but_safetensors_and_json(folder):
    assert sorted(os.listdir(folder)) == ["energy.safetensors", "model.json", "model.safetensors"]
    content = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert content["output"] == {"kind": "labels", "labels": list(LABELS)}
    assert content["input"] == {"kind": "features", "features": list(FEATURES)}
    assert content["decision"]["threshold"] == 0.37


def test_predictions_are_decoded_by_the_tuned_threshold_unless_told(inputs):
    model = made(inputs)
    probabilities = model.predict_proba(inputs)
    chosen = model.predict(inputs)
    np.testing.assert_array_equal(chosen, probabilities >= 0.37)
    assert chosen.dtype == np.uint8
    half = model.predict(inputs, Threshold())
    np.testing.assert_array_equal(half, probabilities >= 0.5)
    assert (half != chosen).any()
    best = ExpectedF1()(torch.from_numpy(probabilities)).numpy()
    np.testing.assert_array_equal(model.predict(inputs, ExpectedF1()), best)


def test_sparse_inputs_and_dropout(inputs):
    model = made(np.nan_to_num(inputs))
    model.method.train()
    dense = model.predict_proba(np.nan_to_num(inputs))
    np.testing.assert_array_equal(model.predict_proba(sparse.csr_array(np.nan_to_num(inputs))), dense)


@pytest.mark.parametrize(("method", "loss"), [("spen", "margin"), ("seal-static", "margin")])
def test_spen_keeps_the_net_where_inference_starts(inputs, tmp_path, method, loss):
    settings = Settings(**{**SMALL.__dict__, "inference_start": "task-net"})
    model = made(inputs, method, loss, settings)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(inputs), model.predict_proba(inputs))
    assert dict(loaded.method.named_children()).keys() == {*model.method.predictors}


@pytest.mark.parametrize(
    "changes", [{"output_bias": False, "last_layer_dropout": False}, {"global_bias": True}]
)
@pytest.mark.parametrize("method", ["seal", "dvn"])
def test_networks_with_and_without_biases_come_back(inputs, tmp_path, method, changes):
    model = made(inputs, method, settings=Settings(**{**SMALL.__dict__, **changes}),
                 loss="nce" if method == "seal" else "regression")  # fmt: skip
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(inputs), model.predict_proba(inputs))
    assert load_energy(tmp_path / "model").state_dict().keys() == model.method.energy.state_dict().keys()


@pytest.mark.parametrize("start", ["zeros", "noise", "uniform"])
def test_predicting_is_repeatable_and_leaves_the_global_generator_alone(inputs, start):
    settings = Settings(**{**SMALL.__dict__, "inference_start": start, "inference_candidates": 3})
    model = made(inputs, "dvn", "regression", settings)
    torch.manual_seed(5)
    following = torch.rand(3)
    torch.manual_seed(5)
    first = model.predict_proba(inputs)
    assert torch.equal(torch.rand(3), following)
    np.testing.assert_array_equal(model.predict_proba(inputs), first)


def test_no_rows_give_no_predictions(inputs):
    for method, loss in (("seal", "nce"), ("dvn", "regression")):
        assert made(inputs, method, loss).predict_proba(inputs[:0]).shape == (0, 4)


def test_other_columns_are_refused(inputs):
    with pytest.raises(ValueError, match="6"):
        made(inputs).predict_proba(inputs[:, :5])


# ---------------------------------------------------------------- folders


def test_saving_over_a_model_replaces_it(inputs, folder):
    (folder / "stray.txt").touch()
    made(inputs, "cross-entropy", "none", threshold=0.1).save(folder)
    assert load(folder).names == ("cross-entropy", "none")
    assert load(folder).threshold == 0.1
    assert sorted(os.listdir(folder)) == ["model.json", "model.safetensors"]
    assert os.listdir(folder.parent) == ["model"]


def test_folders_above_are_made(inputs, tmp_path):
    made(inputs).save(tmp_path / "runs" / "one" / "model")
    assert load(tmp_path / "runs" / "one" / "model").threshold == 0.37


def test_a_failed_save_leaves_the_old_model(inputs, folder, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("the disk is full")

    monkeypatch.setattr("pathlib.Path.write_bytes", fail)
    with pytest.raises(OSError, match="disk is full"):
        made(inputs, threshold=0.9).save(folder)
    assert load(folder).threshold == 0.37


def test_a_runs_folder_will_do(folder, inputs):
    assert load(folder.parent).names == ("seal", "nce")
    assert lossnet.load(str(folder.parent)).label_names == LABELS


@pytest.mark.parametrize("missing", ["model.json", "model.safetensors", "everything"])
def test_a_missing_file_is_named(folder, missing):
    if missing == "everything":
        shutil.rmtree(folder)
    else:
        (folder / missing).unlink()
    with pytest.raises(ModelError, match=r"no model here \(.*is missing"):
        load(folder)


def change(folder, **content):
    path = folder / "model.json"
    old = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**old, **content}), encoding="utf-8")


def remove(folder, key):
    path = folder / "model.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content[key]
    path.write_text(json.dumps(content), encoding="utf-8")


def rewrite(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-40])


def swap(tensors):
    one, other, *_ = (name for name in tensors if name.endswith("weight"))
    tensors[one], tensors[other] = tensors[other], tensors[one]


TAMPERED = {
    "garbage json": lambda f: (f / "model.json").write_text("{not json"),
    "binary json": lambda f: (f / "model.json").write_bytes(b"\xff\xfe\x00"),
    "a list": lambda f: (f / "model.json").write_text("[]"),
    "other format": lambda f: change(f, format=99),
    "no format": lambda f: remove(f, "format"),
    "unknown method": lambda f: change(f, method="os.system"),
    "unknown loss": lambda f: change(f, loss="regret"),
    "another method": lambda f: change(f, method="dvn", loss="regression"),
    "no output": lambda f: remove(f, "output"),
    "no input": lambda f: remove(f, "input"),
    "no labels": lambda f: change(f, output={"kind": "labels"}),
    "fewer labels": lambda f: change(f, output={"kind": "labels", "labels": ["red"]}),
    "fewer features": lambda f: change(f, input={"kind": "features", "features": ["length"]}),
    "labels as a number": lambda f: change(f, output={"kind": "labels", "labels": 4}),
    "an output as a list": lambda f: change(f, output=["labels"]),
    "unknown input": lambda f: change(f, input={"kind": "smells"}),
    "an input for other outputs": lambda f: change(f, output={"kind": "tags", "tags": ["O"], "scheme": None}),
    "own parts as a number": lambda f: change(f, own=3),
    "unknown setting": lambda f: change(f, settings={"speed": 3}),
    "senseless setting": lambda f: change(f, settings={**SMALL.__dict__, "task_hidden": -1}),
    "setting of another type": lambda f: change(f, settings={**SMALL.__dict__, "epochs": "3"}),
    "settings as a list": lambda f: change(f, settings=[1, 2]),
    "threshold as a word": lambda f: change(f, decision={"threshold": "high"}),
    "no decision": lambda f: change(f, decision=None),
    "truncated weights": lambda f: truncate(f / "model.safetensors"),
    "empty weights": lambda f: (f / "model.safetensors").write_bytes(b""),
    "garbage weights": lambda f: (f / "model.safetensors").write_bytes(b"\x99" * 300),
    "swapped weights": lambda f: rewrite(f, swap),
    "no weights": lambda f: rewrite(f, lambda t: t.pop("network/task_net.0.weight")),
    "no preprocessing": lambda f: rewrite(f, lambda t: t.pop("input/impute")),
    "preprocessing of other columns": lambda f: rewrite(
        f, lambda t: t.update({n: v[:2] for n, v in t.items() if n.startswith("input/")})
    ),
}


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "not sealed"])
@pytest.mark.parametrize("kind", TAMPERED)
def test_a_tampered_folder_is_one_clear_error(folder, kind, sealed, seal):
    """Whether its checksums were forgotten, or made to match."""
    load(folder)
    TAMPERED[kind](folder)
    if sealed:
        seal(folder)
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert ("checksum" in str(caught.value)) <= (not sealed)


def test_another_format_names_both_versions(folder):
    change(folder, format=99)
    with pytest.raises(ModelError, match="format 99, this version reads 1 to 4; a newer version"):
        load(folder)


@pytest.mark.parametrize("name", ["decision", "output", "settings"])
def test_a_changed_description_is_told_by_its_checksum(folder, name):
    content = json.loads((folder / "model.json").read_text())
    changed = {
        "decision": {"threshold": 0.38},
        "output": {**content["output"], "labels": list(LABELS[::-1])},
        "settings": SMALL.__dict__ | {"clip": 1.0},
    }
    change(folder, **{name: changed[name]})
    with pytest.raises(ModelError, match=r"model\.json is corrupted \(checksum mismatch\)"):
        load(folder)


def test_changed_weights_are_told_by_their_checksum(folder):
    rewrite(folder, lambda tensors: tensors["network/task_net.0.bias"].add_(1e-6))
    with pytest.raises(ModelError, match=r"model\.safetensors is corrupted"):
        load(folder)
    energy = load_file(folder / "energy.safetensors")
    save_file({name: value + 1 for name, value in energy.items()}, folder / "energy.safetensors")
    with pytest.raises(ModelError, match="is corrupted"):
        load_energy(folder)


def test_a_description_may_be_laid_out_anew(folder):
    content = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(dict(reversed(content.items()))))
    assert load(folder).threshold == 0.37


def test_a_description_without_checksums_is_refused(folder):
    remove(folder, "sha256")
    with pytest.raises(ModelError, match="has no checksums"):
        load(folder)


def test_weights_that_are_no_file_are_refused(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")
    with pytest.raises(ModelError, match="is not a file"):
        load(folder)


# ---------------------------------------------------------------- what small JSON may ask for

GREEDY = [
    {"task_hidden": 10**9},
    {"task_hidden": 10**15},
    {"energy_hidden": 10**9},
    {"energy_hidden": 10**30},
    {"global_hidden": 10**12},
    {"task_layers": 10**9},
    {"energy_layers": 10**9},
    {"inference_steps": 10**9},
    {"inference_candidates": 10**9},
]


@pytest.mark.parametrize("method", ["seal", "implicit", "dvn"])
@pytest.mark.parametrize("wish", GREEDY, ids=str)
def test_a_small_description_cannot_ask_for_much(inputs, tmp_path, wish, method, seal):
    """Networks have no memory of their own until the file's tensors have been found to fit."""
    folder = tmp_path / "model"
    made(inputs, method, METHODS[method].default_loss).save(folder)
    change(folder, settings={**SMALL.__dict__, **wish})
    seal(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    # A width that only the task net has does not matter to the energy, nor the other way round.
    with contextlib.suppress(ModelError):
        assert load(folder).predict_proba(inputs).shape == (30, 4)
    with contextlib.suppress(ModelError):
        load_energy(folder)
    assert time.monotonic() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


# ---------------------------------------------------------------- older formats

#: as format 2 was written, each with inputs and what was predicted for them
OLD = Path(__file__).parent / "model_folders"


def old_inputs(name, given):
    if name == "tags":
        columns = {"column2": tuple(map(tuple, given["column2"]))}
        return Sentences(tuple(map(tuple, given["tokens"])), columns)
    return np.array(given, dtype=np.float32 if name == "labels" else np.uint8)


def as_format_1(folder):
    """The folder as the first version wrote it: no checksums, no kind, fewer settings."""
    path = folder / "model.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["sha256"], content["kind"]
    newer = ("features", "tune_embeddings", "image_energy", "warp", "colour", "image_enlarge", "patches")
    settings = {name: value for name, value in content["settings"].items() if name not in newer}
    path.write_text(json.dumps({**content, "format": 1, "settings": settings}, indent=1), encoding="utf-8")


@pytest.mark.parametrize("name", ["labels", "tags", "masks", "labels of format 1"])
def test_a_folder_of_an_older_format_predicts_as_it_did(tmp_path, name):
    kind = name.split()[0]
    shutil.copytree(OLD / kind, tmp_path / "old")
    if name != kind:
        as_format_1(tmp_path / "old")
    recorded = json.loads((OLD / kind / "predicted.json").read_text())
    inputs = old_inputs(kind, recorded["inputs"])
    old = load(tmp_path / "old")
    assert old.task.output.kind == kind
    np.testing.assert_allclose(old.predict_proba(inputs), recorded["probabilities"], atol=1e-6)
    old.save(tmp_path / "new")
    assert json.loads((tmp_path / "new" / "model.json").read_text())["format"] == 4
    np.testing.assert_array_equal(load(tmp_path / "new").predict_proba(inputs), old.predict_proba(inputs))
    assert load(tmp_path / "new").settings == old.settings
    # What older versions had no setting for is as it was with them.
    now = old.settings
    assert (now.output_bias, now.last_layer_dropout, now.global_bias) == (True, True, False)
    assert (now.schedule, now.regression_term) == ("grouped", "energy")
    assert load(tmp_path / "new").task.is_like(old.task)


def test_the_energy_of_an_older_folder_comes_back():
    energies = load_energy(OLD / "labels")(torch.zeros(1, 4), torch.tensor([[[0.0, 0.0], [1.0, 1.0]]]))
    weights = load_file(OLD / "labels" / "energy.safetensors")
    assert energies.shape == (1, 2)
    assert energies[0, 0] != energies[0, 1]
    assert load_energy(OLD / "labels").state_dict().keys() == weights.keys()


def test_spans_are_marked_as_an_older_folders_files_did():
    recorded = json.loads((OLD / "tags" / "predicted.json").read_text())["inputs"]
    model = load(OLD / "tags")
    assert model.task.output.tag_set.scheme == "IOB1"
    assert [token for token, _ in model.tag(old_inputs("tags", recorded))[0]] == recorded["tokens"][0]


# ---------------------------------------------------------------- as bytes


@pytest.mark.parametrize(("method", "loss"), NAMES)
def test_files_in_memory_keep_what_training_needs(inputs, method, loss):
    model = made(inputs, method, loss)
    again = Model.from_files(model.files())
    np.testing.assert_array_equal(again.predict_proba(inputs), model.predict_proba(inputs))
    assert dict(again.method.named_parameters()).keys() == dict(model.method.named_parameters()).keys()
    kept = again.method.state_dict()
    for name, value in model.method.state_dict().items():
        if name.split(".")[0] in {"energy", *model.method.predictors}:
            assert torch.equal(kept[name], value), name
    assert again.files() == model.files()


def test_damaged_files_in_memory_are_refused(inputs):
    files = made(inputs).files()
    for name in files:
        with pytest.raises(ModelError, match="the model: "):
            Model.from_files({**files, name: files[name][:-9]})
