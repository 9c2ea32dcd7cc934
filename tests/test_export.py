import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lossnet
from lossnet import Settings
from lossnet.build import build
from lossnet.cli import main
from lossnet.data import FeatureTable, Lexicon, Preprocessor, Sentences, TagSet
from lossnet.decoding import Calibration, Decision
from lossnet.export import OUTPUT, export
from lossnet.inputs import Features, Images, Words
from lossnet.model import Model
from lossnet.outputs import Labels, Masks, Tags
from lossnet.task import Task

onnx = pytest.importorskip("onnx", reason="needs lossnet[export]")
runtime = pytest.importorskip("onnxruntime", reason="needs lossnet[export]")

TINY = Settings(task_hidden=8, energy_hidden=8, global_hidden=4, image_width=8)
SENTENCES = Sentences((("Ann", "bet", "Ann", "a", "pie"), ("a", "pie", "bet")))


def model_of(task, method="cross-entropy", loss="none", settings=TINY, threshold=0.3):
    torch.manual_seed(0)
    return Model(
        build(method, loss, settings, task).eval(), (method, loss), settings, task, Decision(threshold)
    )


def label_task(standardise=True):
    x = np.random.default_rng(0).normal(3, 2, (20, 5))
    x[3, 2] = np.nan
    table = FeatureTable(x)
    return Task(Features(table.names, Preprocessor.fit(table, standardise)), Labels.of_size(3))


def tag_task(features=("case", "characters")):
    return Task(Words(Lexicon.fit(SENTENCES, features)), Tags(TagSet(("N", "O", "V"))))


def session(path):
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("standardise", [True, False])
def test_labels(tmp_path, standardise):
    model = model_of(label_task(standardise))
    assert export(model, tmp_path / "model.onnx") < 1e-5
    opened = session(tmp_path / "model.onnx")
    x = np.random.default_rng(1).normal(3, 2, (11, 5)).astype(np.float32)
    x[2, 4] = np.nan
    (found,) = opened.run([OUTPUT], {"features": x})
    assert np.allclose(found, model.predict_proba(x), atol=1e-6)
    assert not np.isnan(found).any()
    about = opened.get_modelmeta().custom_metadata_map
    assert json.loads(about["labels"]) == list(model.label_names)
    assert json.loads(about["features"]) == list(model.feature_names)
    assert float(about["threshold"]) == 0.3
    assert (about["lossnet_version"], about["kind"], about["input"]) == (
        lossnet.__version__,
        "labels",
        "features",
    )


@pytest.mark.parametrize("features", [(), ("case", "characters")])
def test_tags_of_sentences_of_any_length(tmp_path, features):
    model = model_of(tag_task(features), method="infnet-plus", loss="margin")
    assert export(model, tmp_path / "model.onnx") < 1e-5
    opened = session(tmp_path / "model.onnx")
    lexicon = Lexicon.from_state(json.loads(opened.get_modelmeta().custom_metadata_map["lexicon"]))
    for sentences in (SENTENCES, Sentences((("pie",),)), Sentences((("Zoe", "bet", "a", "pie", "!") * 9,))):
        x = sentences.encoded(lexicon).batch(np.arange(len(sentences)))
        (found,) = opened.run([OUTPUT], {"tokens": x.numpy()})
        assert np.allclose(found, model.predict_proba(sentences), atol=1e-6)
    assert lexicon.state() == model.task.input.lexicon.state()


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"image_net": "fcn"}, [(12, 8), (20, 28)]),
        ({"image_net": "unet"}, [(12, 8), (13, 21)]),
        ({"crop": 8, "flips": True}, [(12, 8)]),
        ({"flips": True}, [(12, 8)]),
    ],
    ids=["fcn", "unet", "crops", "flips"],
)
def test_masks_of_images(tmp_path, settings, sizes):
    chosen = Settings(image_width=8, **settings)
    model = model_of(Task(Images(3, (12, 8), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)), Masks()), settings=chosen)
    assert export(model, tmp_path / "model.onnx") < 1e-5
    opened = session(tmp_path / "model.onnx")
    for size in sizes:
        images = np.random.default_rng(1).random((3, *size, 3), dtype=np.float32)
        (found,) = opened.run([OUTPUT], {"images": images})
        assert np.allclose(found, model.predict_proba(images), atol=1e-6)
    about = opened.get_modelmeta().custom_metadata_map
    assert ("size_multiple" in about) == (len(sizes) > 1)


@pytest.mark.parametrize("net", ["fcn", "unet"])
def test_labels_of_texts_and_images(tmp_path, net):
    texts = model_of(Task(Words(Lexicon.fit(SENTENCES, ("case",))), Labels(("a", "b"))))
    assert export(texts, tmp_path / "texts.onnx") < 1e-5
    for sentences in (SENTENCES, Sentences((("pie",),)), Sentences((("Zoe", "bet", "a", "pie") * 9,))):
        x = sentences.encoded(texts.task.input.lexicon).batch(np.arange(len(sentences))).numpy()
        (found,) = session(tmp_path / "texts.onnx").run([OUTPUT], {"tokens": x})
        assert found.shape == (len(sentences), 2)
        assert np.allclose(found, texts.predict_proba(sentences), atol=1e-6)
    images = model_of(
        Task(Images(3, (12, 8)), Labels(("a", "b"))), settings=Settings(image_width=8, image_net=net)
    )
    assert export(images, tmp_path / "images.onnx") < 1e-5
    for size in ((12, 8), (16, 12)):
        x = np.random.default_rng(1).random((3, *size, 3), dtype=np.float32)
        (found,) = session(tmp_path / "images.onnx").run([OUTPUT], {"images": x})
        assert np.allclose(found, images.predict_proba(x), atol=1e-6)


def test_images_of_a_size_that_strides_do_not_divide_keep_that_size(tmp_path):
    model = model_of(Task(Images(1, (10, 7)), Masks()), settings=Settings(image_width=8))
    assert export(model, tmp_path / "model.onnx") < 1e-5
    assert json.loads(session(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map["size"]) == [10, 7]


def test_several_networks(tmp_path):
    """What method auto may choose: a stack, and a blend of models."""
    task = label_task()
    stack = model_of(task, "stack")
    stack.calibration = Calibration((0.5, 1.0, 2.0))
    blend = Model.blend([stack, model_of(task)], TINY)
    assert export(blend, tmp_path / "model.onnx") < 1e-5
    x = np.random.default_rng(1).normal(3, 2, (11, 5)).astype(np.float32)
    (found,) = session(tmp_path / "model.onnx").run([OUTPUT], {"features": x})
    mean = (stack.predict_proba(x) + model_of(task).predict_proba(x)) / 2
    assert np.allclose(found, mean, atol=1e-6)
    with pytest.raises(ValueError, match="by a search"):
        export(Model.blend([stack, model_of(task, "spen", "margin")], TINY), tmp_path / "other.onnx")


def test_a_folder_is_no_place_for_a_file(tmp_path):
    with pytest.raises(ValueError, match="is a folder; give the name of a file"):
        export(model_of(label_task()), tmp_path / "")
    assert not list(tmp_path.parent.glob(f"{tmp_path.name}.*"))


def test_a_file_that_disagrees_is_not_written(tmp_path, monkeypatch):
    model = model_of(label_task())
    monkeypatch.setattr(
        Model, "probabilities", lambda self, data, device="cpu": (torch.full((len(data), 3), 0.5), None)
    )
    with pytest.raises(ValueError, match=r"differ from PyTorch's by up to 0\.\d+.*is not written"):
        export(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "loss", "task"),
    [("spen", "margin", label_task()), ("crf", "likelihood", tag_task())],
)
def test_methods_that_search_for_their_prediction_are_refused(tmp_path, method, loss, task):
    with pytest.raises(ValueError, match=f"{method} predicts by a search.*train a task net"):
        export(model_of(task, method, loss), tmp_path / "model.onnx")


def test_the_command(tmp_path, capsys, monkeypatch):
    model_of(label_task()).save(tmp_path / "run" / "model")
    run, file = str(tmp_path / "run"), str(tmp_path / "out" / "m.onnx")
    for given in ([run, "-o", file], ["-o", file, run], [run, "--output", file], [run, file]):
        assert main(["export", *given]) == 0
        assert "largest difference from PyTorch" in capsys.readouterr().out
        onnx.checker.check_model(file)
        Path(file).unlink()
    for given in ([run], [run, file, "-o", file]):
        assert main(["export", *given]) == 2
        assert "give one ONNX file to write" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out" / "m.onnx")]) == 2
    assert "pip install 'lossnet[export]'" in capsys.readouterr().err
