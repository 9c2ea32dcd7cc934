"""Several models as one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import lossnet
from lossnet import Ensemble, Model, Settings
from lossnet.build import build
from lossnet.cli import main
from lossnet.decoding import Decision
from lossnet.inputs import Features, Images
from lossnet.loading import load
from lossnet.outputs import Labels, Masks
from lossnet.prediction import Predictor
from lossnet.task import Task

SMALL = Settings(task_hidden=8, task_layers=1, image_net="unet", image_width=4, crop=8, epochs=2)


def model(task: Task, seed: int, threshold: float = 0.5) -> Model:
    torch.manual_seed(seed)
    return Model(
        build("cross-entropy", "none", SMALL, task),
        ("cross-entropy", "none"),
        SMALL,
        task,
        Decision(threshold),
    )


def labels(names: tuple[str, ...] = ("a", "b")) -> Task:
    return Task(Features(("u", "v", "w")), Labels(names))


def test_probabilities_are_means_and_so_is_the_threshold():
    models = [model(labels(), seed, threshold=(seed + 1) / 10) for seed in range(3)]
    ensemble = Ensemble(models)
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    expected = np.mean([one.predict_proba(x) for one in models], axis=0)
    np.testing.assert_allclose(ensemble.predict_proba(x), expected, atol=1e-6)
    assert ensemble.threshold == pytest.approx(0.2)
    np.testing.assert_array_equal(ensemble.predict(x), expected >= 0.2)
    assert ensemble.label_names == ("a", "b")
    assert ensemble.feature_names == ("u", "v", "w")


def test_one_model_is_its_own_ensemble():
    alone = model(labels(), 0)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(Ensemble([alone]).predict_proba(x), alone.predict_proba(x))
    with pytest.raises(ValueError, match="at least one"):
        Ensemble([])


def test_masks_and_crops():
    models = [model(Task(Images(1, (12, 10)), Masks()), seed) for seed in range(2)]
    images = np.random.default_rng(0).random((3, 12, 10, 1)).astype(np.float32)
    expected = np.mean([one.predict_proba(images) for one in models], axis=0)
    np.testing.assert_allclose(Ensemble(models).predict_proba(images), expected, atol=1e-6)


def test_sentences_are_decoded_together(tmp_path):
    path = tmp_path / "news.conll"
    path.write_text("Ann B-PER\nLee I-PER\nwon O\n\n" * 9)
    task = load(path).task
    models = [model(task, seed) for seed in range(2)]
    ensemble = Ensemble(models)
    texts = ["Ann won", "Lee"]
    data = task.read(texts)
    mean = (models[0].probabilities(data)[0] + models[1].probabilities(data)[0]) / 2
    assert ensemble.tag(texts) == task.output.named(ensemble.decoder()(mean), data.source)
    with pytest.raises(TypeError, match="predicts sets of labels, not tags"):
        model(labels(), 0).tag(texts)


@pytest.mark.parametrize(
    "other",
    [labels(("a", "c")), labels(("a", "b", "c")), Task(Images(1, (4, 4)), Masks())],
    ids=["names", "number", "kind"],
)
def test_models_of_other_tasks_are_refused(other):
    with pytest.raises(ValueError, match="model 2 was not trained for the same inputs and outputs"):
        Ensemble([model(labels(), 0), model(other, 0)])


def test_inputs_prepared_otherwise_are_refused(tmp_path):
    """Of two splits, columns are standardised by other rows."""
    rows = np.random.default_rng(0).normal(size=(40, 3))
    lines = ["u,v,a,b", *(f"{u},{v},{int(u > 0)},{int(v > w)}" for u, v, w in rows)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines))
    tasks = [load(path, labels=["a", "b"], seed=seed).task for seed in (0, 1)]
    assert isinstance(Ensemble([model(tasks[0], 0), model(tasks[0], 1)]), Predictor)
    with pytest.raises(ValueError, match="same data and features"):
        Ensemble([model(tasks[0], 0), model(tasks[1], 1)])


def test_the_command_line_averages_runs(tmp_path, capsys):
    data = load("digits-pairs")
    folders = [tmp_path / str(seed) for seed in range(3)]
    for seed, folder in enumerate(folders):
        model(data.task, seed).save(folder)
    first, *others = map(str, folders)
    target = tmp_path / "metrics.json"
    assert main(["evaluate", first, "digits-pairs", "--with", *others, "--output", str(target)]) == 0
    assert "and 2 more on" in " ".join(capsys.readouterr().out.split())
    written = json.loads(target.read_text())
    assert written["with"] == others
    again = [
        "evaluate",
        first,
        "digits-pairs",
        "--with",
        others[0],
        "--with",
        others[1],
        "--output",
        str(target),
    ]
    assert main(again) == 0
    assert json.loads(target.read_text()) == written
    capsys.readouterr()
    ensemble = Ensemble([lossnet.load(folder) for folder in folders])
    expected = ensemble.task.output.meter(ensemble.decision).measure(*ensemble.probabilities(data.test))
    assert written["metrics"]["test"] == pytest.approx(expected)
    table = tmp_path / "rows.csv"
    names = ensemble.feature_names
    values = data.test.x[:4] if isinstance(data.test.x, np.ndarray) else data.test.x[:4].toarray()
    table.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in values)]))
    out = tmp_path / "out.csv"
    assert main(["predict", first, str(table), "--with", *others, "-o", str(out)]) == 0
    alone = tmp_path / "alone.csv"
    assert main(["predict", first, str(table), "-o", str(alone)]) == 0
    assert out.read_text() != alone.read_text()
    assert main(["evaluate", first, "digits-pairs", "--with", str(tmp_path / "none")]) == 2
    assert "no model here" in capsys.readouterr().err
