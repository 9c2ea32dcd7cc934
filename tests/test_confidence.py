"""How sure models are of whole outputs, beside how often they are right."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import lossnet
from lossnet import MultiLabelClassifier, Segmenter, SequenceTagger
from lossnet.analysis import reliability
from lossnet.build import build
from lossnet.cli import main
from lossnet.conditional import EnergyConditional
from lossnet.decoding import Confidence, log_chance
from lossnet.energies import LabelResidual
from lossnet.model import ModelError
from lossnet.prediction import Ensemble
from lossnet.spaces import Mask, MultiLabel, Tags
from lossnet.task import Task


def drawn(count, seed, rise=1.0, fall=1.0, offset=0.0):
    """Log-probabilities from −6 to 0, and outputs that are right as a `Confidence` says."""
    generator = torch.Generator().manual_seed(seed)
    chances = (-6 * torch.rand(count, generator=generator, dtype=torch.float64) ** 2).clamp(max=-1e-3)
    right = torch.rand(count, generator=generator) < Confidence(rise, fall, offset)(chances)
    return chances, right.double()


@pytest.mark.parametrize("true", [(1.0, 1.0, 0.0), (0.4, 0.8, -0.5), (2.0, 0.3, 0.4)])
def test_chances_are_frequencies_after_calibration(true):
    found = Confidence.fit(*drawn(4000, 0, *true))
    chances, right = drawn(20000, 1, *true)
    assert reliability(found(chances), right).error < 0.03
    assert (found(chances) - Confidence(*true)(chances)).abs().max() < 0.06
    if true != (1.0, 1.0, 0.0):
        assert reliability(chances.exp(), right).error > 0.08


def test_the_fit_is_that_of_a_logistic_regression():
    chances, right = drawn(500, 0, 0.7, 0.9, 0.3)
    inputs = torch.stack([chances, -torch.log(-torch.expm1(chances))], 1).numpy()
    total, count = float(right.sum()), len(right)
    targets = np.where(right > 0, (total + 1) / (total + 2), 1 / (count - total + 2))
    twice, labels = np.concatenate([inputs, inputs]), np.repeat([1, 0], count)
    wanted = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000)
    wanted.fit(twice, labels, np.concatenate([targets, 1 - targets]))
    found = Confidence.fit(chances, right)
    expected = [*wanted.coef_[0], *wanted.intercept_]
    np.testing.assert_allclose([found.rise, found.fall, found.offset], expected, atol=2e-3)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_no_chance_is_0_or_1_where_all_are_right_or_none(value):
    chances, _ = drawn(50, 0)
    found = Confidence.fit(chances, torch.full_like(chances, value))(chances)
    assert ((found > 0) & (found < 1)).all()
    assert ((found - value).abs() < 0.1).all()


def test_what_is_likelier_stays_likelier():
    """Even where what is likelier was right less often."""
    chances = torch.linspace(-5, -0.01, 200)
    found = Confidence.fit(chances, (chances < -2.5).float())(chances)
    assert (found.diff() >= 0).all()
    assert Confidence(0.5, 2.0)(torch.tensor([0.0, 0.3, -400.0])).isfinite().all()


def test_log_chances_of_independent_units():
    chances = torch.tensor([[0.9, 0.2], [0.4, 1.0]])
    sets = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(log_chance(MultiLabel(2), chances, sets).exp(), torch.tensor([0.72, 0.6]))
    torch.testing.assert_close(
        log_chance(Mask(), chances.unsqueeze(1), sets.unsqueeze(1)).exp(), torch.tensor([0.72, 0.6])
    )
    tags = torch.tensor([[[0.7, 0.3], [0.5, 0.5]], [[0.2, 0.8], [0.0, 0.0]]])  # the last is padding
    chosen = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]])
    torch.testing.assert_close(log_chance(Tags(2), tags, chosen).exp(), torch.tensor([0.35, 0.8]))


# ---------------------------------------------------------------- models


def twins(count, seed):
    """Sets of five labels of which four always agree, and noisy inputs that tell them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2)).astype("float32")
    first, second = (x + rng.logistic(size=(count, 2)) * [0.6, 0.2] > 0).T
    return x, np.stack([first] * 4 + [second], 1).astype(int)


@pytest.fixture(scope="module", params=["none", "energy"])
def classifier(request):
    return MultiLabelClassifier(
        method="cross-entropy",
        conditional=request.param,
        epochs=15,
        learning_rate=1e-2,
        task_hidden=16,
        validation_fraction=0.4,
        random_state=0,
    ).fit(*twins(1500, 0))


def test_a_model_is_right_as_often_as_it_says(classifier):
    x, y = twins(2500, 1)
    found, right = classifier.confidence(x), (classifier.predict(x) == y).all(1)
    assert found.shape == (2500,)
    for part in np.array_split(found.argsort(), 5):
        assert found[part].mean() == pytest.approx(right[part].mean(), abs=0.07)
    sure, unsure = (right[part].mean() for part in (found >= 0.9, found < 0.6))
    assert sure > 0.88
    assert unsure < 0.65
    chances = classifier.predict_proba(x)
    raw = np.maximum(chances, 1 - chances).prod(1)  # as if labels were independent
    errors = [reliability(*map(torch.tensor, (one, right * 1.0))).error for one in (found, raw)]
    assert errors[0] < min(0.05, 0.4 * errors[1])


def test_the_energy_is_asked_where_it_tells_better():
    """Two models of labels that it takes to be independent: one is told which outputs will be right."""

    class Oracle(EnergyConditional):
        def log_prob(self, relaxed, known, y, seed=0):
            """Log-probabilities that are high where the first label is likely."""
            found = relaxed[:, :1].logit() * self.sign
            return found.sigmoid().log(), torch.zeros_like(found)

    task = Task.of_sizes(inputs=2, labels=2)
    settings = lossnet.Settings(task_hidden=4)
    names = ("cross-entropy", "none")
    generator = torch.Generator().manual_seed(0)
    relaxed = torch.rand(600, 2, generator=generator)
    truth = (relaxed >= 0.5).float()
    wrong = torch.rand(600, generator=generator) > relaxed[:, 0]
    truth[wrong, 1] = 1 - truth[wrong, 1]
    for sign in (1, 0):
        engine = Oracle(LabelResidual(2, 1))
        engine.sign = sign
        model = lossnet.Model(build(*names, settings, task), names, settings, task, conditional=engine)
        model.fit_confidence(relaxed, truth)
        assert model.decision.joint == bool(sign)


def test_known_parts_make_surer(classifier):
    if classifier.conditional == "none":
        return
    x, y = twins(400, 2)
    known = np.where(np.arange(5) == 0, y, np.nan)
    before, after = classifier.confidence(x), classifier.confidence(x, known=known)
    assert after.mean() > before.mean() + 0.03
    everything = classifier.confidence(x[:5], known=y[:5])
    assert (everything >= before.max()).all()


def test_an_instance_has_its_chance_whatever_its_neighbours(classifier):
    x, _ = twins(150, 3)
    whole, alone = classifier.confidence(x), classifier.confidence(x[140:143])
    np.testing.assert_allclose(whole[140:143], alone, atol=1e-6)


def test_folders_and_averages_keep_it(classifier, tmp_path):
    x, _ = twins(20, 4)
    classifier.model_.save(tmp_path / "model")
    model = lossnet.load(tmp_path)
    wanted = classifier.model_.confidence(x)
    np.testing.assert_allclose(model.confidence(x), wanted, atol=1e-6)
    np.testing.assert_allclose(Ensemble([model, model]).confidence(x), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([1.0, 2.0], "three numbers"),
        ("abc", "three numbers"),
        ([1.0, "2", 0.0], "finite"),
        ([float("inf"), 1.0, 0.0], "finite"),
        ([-1.0, 1.0, 0.0], "at least 0"),
    ],
)
def test_folders_are_checked(classifier, tmp_path, numbers, said):
    from dataclasses import replace

    model = classifier.model_
    wrong = replace(model, decision=replace(model.decision, confidence=numbers))
    wrong.save(tmp_path / "model")
    with pytest.raises(ModelError, match=said):
        lossnet.load(tmp_path)
    wrong = replace(model, decision=replace(model.decision, joint=True), conditional=None)
    wrong.save(tmp_path / "model")
    with pytest.raises(ModelError, match="an energy that is not there"):
        lossnet.load(tmp_path)


def test_without_validation_there_is_none():
    x, y = twins(40, 0)
    with pytest.raises(ValueError, match="was not calibrated"):
        MultiLabelClassifier(method="cross-entropy").partial_fit(x, y).confidence(x)


def test_of_classes_tags_and_masks():
    x, y = twins(400, 0)
    common = {"method": "cross-entropy", "epochs": 4, "learning_rate": 1e-2, "random_state": 0}
    classes = MultiLabelClassifier(**common).fit(x, y[:, 0]).confidence(x)
    assert 0.6 < classes.mean() < 0.95
    sentences = [["up" if a else "maybe" for a in row] for row in y]
    tags = [["U" if a else "D" for a in row] for row in y]
    tagger = SequenceTagger(**common, task_hidden=8).fit(sentences, tags)
    sure = tagger.confidence(sentences[:50])
    assert sure.shape == (50,)
    assert sure.mean() > 0.8
    images = np.repeat(np.repeat(y[:60, 3:, None], 8, 1)[:, :8], 8, 2).astype(np.float32)
    segmenter = Segmenter(**common, image_width=4).fit(images, images.astype(int))
    assert ((segmenter.confidence(images) >= 0) & (segmenter.confidence(images) <= 1)).all()


# ---------------------------------------------------------------- files, HTTP and the report


def table_of(x):
    return "feature_0,feature_1\n" + "".join(f"{a},{b}\n" for a, b in x.tolist())


def test_files_have_labels_where_it_is_sure(classifier, tmp_path, capsys):
    x, _ = twins(30, 5)
    x = x.round(3)
    classifier.model_.save(tmp_path / "model")
    (tmp_path / "new.csv").write_text(table_of(x))
    given = ["predict", str(tmp_path), str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv")]
    assert main([*given, "--abstain-below", "0.6"]) == 0
    found = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    wanted, sets = classifier.model_.confidence(x), classifier.model_.named(x)
    assert list(found.columns[:3]) == ["row", "labels", "confidence"]
    np.testing.assert_allclose(found["confidence"], wanted, atol=1e-4)
    shown = [";".join(one) if sure >= 0.6 else "" for one, sure in zip(sets, wanted, strict=True)]
    assert list(found["labels"]) == shown
    assert 0 < (found["confidence"] >= 0.6).sum() < 30
    assert main([*given, "--abstain-below", "60"]) == 2
    assert "--abstain-below is a chance from 0 to 1, not 60" in capsys.readouterr().err


def test_requests_may_leave_answers_out(classifier):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from lossnet.serve import create_app

    x, _ = twins(30, 6)
    with TestClient(create_app(classifier.model_)) as client:

        def ask(**content):
            return client.post("/predict", json={"instances": x.tolist(), **content})

        plain, careful = ask().json(), ask(abstain_below=0.6).json()
        assert set(plain) == {"predictions"}
        np.testing.assert_allclose(careful["confidences"], classifier.model_.confidence(x), atol=1e-4)
        for answer, same, sure in zip(
            careful["predictions"], plain["predictions"], careful["confidences"], strict=True
        ):
            assert answer == (same if sure >= 0.6 else None)
        assert None in careful["predictions"]
        for wrong in (1.5, -0.1, "0.5", True, [0.5]):
            refused = ask(abstain_below=wrong)
            assert refused.status_code == 422
            assert "a number from 0 to 1" in refused.json()["detail"]
