"""Predictions of what is left once a part of an output is known, in every way in."""

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

import lossnet
from lossnet import MultiLabelClassifier, Segmenter, SequenceTagger
from lossnet.cli import main
from lossnet.conditional import EnergyConditional, combined, draw_known, make, train_conditional
from lossnet.data import DataError, MultiLabelData
from lossnet.energies import LabelResidual
from lossnet.loading import Loaded
from lossnet.model import CONDITIONAL, ModelError
from lossnet.run import Run, carry_out
from lossnet.settings import Settings
from lossnet.spaces import Mask, MultiLabel, Tags
from lossnet.task import Task

ENGINES = "network", "energy", "auto"


def pairs(count, seed=0):
    """Inputs that say nothing, and sets in which label 1 is label 0, and label 3 is not label 2."""
    rng = np.random.default_rng(seed)
    first, second = rng.random((2, count)) < 0.5
    y = np.stack([first, first, second, ~second], 1).astype("float32")
    return rng.normal(size=(count, 2)).astype("float32"), y


def settings(conditional, **others):
    values = {"epochs": 40, "task_hidden": 16, "task_lr": 1e-2, "patience_steps": 0, **others}
    return Settings(conditional=conditional, **values)


@pytest.fixture(scope="module", params=ENGINES)
def trained(request, tmp_path_factory):
    """The model of a run, loaded from its folder, with its result and that folder."""
    folder = tmp_path_factory.mktemp(request.param)
    data = MultiLabelData.from_arrays(*pairs(1200))
    loaded = Loaded.from_parts(*(data.take(range(*rows)) for rows in ((0, 800), (800, 1000), (1000, 1200))))
    run = Run("pairs", "cross-entropy", settings=settings(request.param), output=folder, progress=False)
    result, _, _ = carry_out(run, loaded)
    return lossnet.load(folder), result, folder


NAN = float("nan")
KNOWN = np.array([[1, NAN, NAN, 0], [NAN, 0, 1, NAN]])
TRUTH = np.array([[1, 1, 1, 0], [0, 0, 1, 0]])


def test_what_is_known_tells_the_rest(trained):
    model, result, _ = trained
    x = np.zeros((2, 2), dtype="float32")
    assert np.abs(model.predict_proba(x) - 0.5).max() < 0.2
    found = model.predict_proba(x, known=KNOWN)
    assert np.abs(found - TRUTH).max() < 0.35
    assert (model.predict(x, known=KNOWN) == TRUTH).all()
    losses = result["conditional"]["losses"]
    assert losses[result["conditional"]["chosen"]] < 0.85 * losses["task net"]


def test_without_it_the_task_net_predicts(trained):
    model, _, _ = trained
    x = np.random.default_rng(3).normal(size=(5, 2)).astype("float32")
    plain = lossnet.model.Model(
        model.method, model.names, model.settings, model.task, model.decision, model.calibration
    )
    known = np.full((5, 4), NAN)
    known[3, 0] = 1
    found = model.predict_proba(x, known=known)
    others = [0, 1, 2, 4]
    assert (model.predict_proba(x) == plain.predict_proba(x)).all()
    assert (found[others] == plain.predict_proba(x)[others]).all()
    assert (found[3] != plain.predict_proba(x)[3]).any()


def test_arrays_frames_and_mappings_say_the_same(trained):
    model, _, _ = trained
    x = np.zeros((2, 2), dtype="float32")
    names = model.label_names
    wanted = model.predict_proba(x, known=KNOWN)
    lists = [[None if np.isnan(value) else bool(value) for value in row] for row in KNOWN]
    mappings = [
        {name: value for name, value in zip(names, row, strict=True) if value == value} for row in KNOWN
    ]
    frame = pd.DataFrame(KNOWN[:, ::-1], columns=names[::-1])
    whole = pd.DataFrame(KNOWN, columns=names).astype("Int64")
    for given in (lists, mappings, frame, whole):
        assert (model.predict_proba(x, known=given) == wanted).all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[1, 2, NAN, 0], [0] * 4], r"row 0: 'label_1' is known to be 2; give 1, 0, or NaN"),
        ([[1, NAN, NAN, 0], [0, 0, 0, "yes"]], "row 1: 'label_3' is known to be 'yes'"),
        ([[1, NAN, NAN]] * 2, r"has the shape \(2, 3\); it needs \(2, 4\)"),
        ([[1, NAN, NAN, 0]], r"has the shape \(1, 4\); it needs \(2, 4\)"),
        ([[1], [1, 2]], "differ|shape"),
        ([{"label_7": 1}, None], "row 0: what is known has a label 'label_7'; did you mean"),
        ([{"label_0": 1}, [1, 0, 0, 0]], "row 1 of what is known is"),
        (pd.DataFrame([[1, 0], [0, 1]], columns=["label_0", "label_0"]), "two columns 'label_0'"),
        (pd.DataFrame([[1], [0]], columns=["else"]), "a column 'else'"),
        (np.array([[0.5, 1, 1, 1], [1, 1, 1, 1]]), "row 0: 'label_0' is known to be 0.5"),
    ],
)
def test_what_cannot_be_known_is_refused_with_its_row(trained, given, said):
    with pytest.raises(DataError, match=said):
        trained[0].predict(np.zeros((2, 2)), known=given)


def test_a_model_without_an_engine_says_so():
    x, y = pairs(100)
    plain = MultiLabelClassifier(method="cross-entropy", epochs=1).fit(x, y)
    with pytest.raises(ValueError, match=r"conditional='auto' \(--conditional auto\)"):
        plain.predict(x[:1], known=[[1, NAN, NAN, NAN]])
    classes = MultiLabelClassifier(method="cross-entropy", epochs=1).fit(x, y[:, 0].astype(int))
    with pytest.raises(ValueError, match="one class each"):
        classes.predict(x[:1], known=[[1, NAN]])


def test_folders_are_checked(trained, tmp_path):
    _, _, folder = trained
    for name in ("model.json", "model.safetensors", CONDITIONAL):
        (tmp_path / name).write_bytes((folder / "model" / name).read_bytes())
    content = (tmp_path / CONDITIONAL).read_bytes()
    (tmp_path / CONDITIONAL).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelError, match="corrupted"):
        lossnet.load(tmp_path)
    (tmp_path / CONDITIONAL).unlink()
    with pytest.raises(ModelError, match="was not kept"):
        lossnet.load(tmp_path)


def test_columns_of_a_file(trained, tmp_path, capsys):
    model, _, folder = trained
    table = tmp_path / "partly.csv"
    table.write_text("feature_0,feature_1,label_0,label_2\n0,0,1,\n0,0,,0\n")
    out = tmp_path / "out.csv"
    given = ["predict", str(folder), str(table), "--known", "label_0", "label_2", "-o", str(out)]
    assert main(given) == 0
    found = pd.read_csv(out)
    known = [[1, NAN, NAN, NAN], [NAN, NAN, 0, NAN]]
    wanted = model.predict_proba(np.zeros((2, 2)), known=known)
    assert np.allclose(found[list(model.label_names)], wanted, atol=1e-5)
    table.write_text("feature_0,feature_1,label_0,label_2\n0,0,1,\n0,0,maybe,0\n")
    assert main(given) == 2
    assert "row 2: 'label_0' is known to be 'maybe'; write 1 or 0" in capsys.readouterr().err
    assert main([*given[:3], "--known", "label_0", "label_9"]) == 2
    assert "no column 'label_9'" in capsys.readouterr().err


def test_over_http(trained):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from lossnet.serve import create_app

    model, _, _ = trained
    with TestClient(create_app(model)) as client:

        def ask(**content):
            return client.post("/predict", json=content)

        body = {"instances": [[0, 0], [0, 0]], "known": [{"label_0": 1, "label_3": 0}, None]}
        answer = ask(**body)
        assert answer.status_code == 200, answer.text
        found = [list(one["probabilities"].values()) for one in answer.json()["predictions"]]
        wanted = model.predict_proba(np.zeros((2, 2)), known=[KNOWN[0], [NAN] * 4])
        assert np.allclose(found, wanted, atol=1e-5)
        assert set(answer.json()["predictions"][0]["labels"]) >= {"label_0"}
        assert "label_3" not in answer.json()["predictions"][0]["labels"]
        for known, said in (
            ([{"label_0": 3}, None], "known[0]: row 0: 'label_0' is known to be 3"),
            ([None, {"else": 1}], "known[1]"),
            ([None], "an entry for each instance"),
            (["abc", None], "known[0]"),
            ([[[[]]], 5], "known[0]"),
        ):
            refused = ask(instances=[[0, 0], [0, 0]], known=known)
            assert refused.status_code == 422
            assert said in json.loads(refused.text)["detail"]


def test_what_is_known_and_rules_together(trained):
    model, _, _ = trained
    x = np.zeros((2, 2), dtype="float32")
    either = [lossnet.energies.excludes(0, 2)]
    free = model.predict(x, known=KNOWN)
    found = model.predict(x, known=KNOWN, rules=either)
    assert (free[0, [0, 2]] == 1).all(), "which the rule forbids"
    assert (found[0] == [1, 1, 0, 0]).all()
    assert (found[1] == free[1]).all()


@pytest.mark.parametrize("engine", ["network", "energy"])
def test_estimators_and_pickles(engine):
    import pickle

    x, y = pairs(600)
    classifier = MultiLabelClassifier(
        method="cross-entropy",
        conditional=engine,
        epochs=40,
        learning_rate=1e-2,
        task_hidden=16,
        random_state=0,
    ).fit(x, y)
    found = classifier.predict(x[:2], known=KNOWN)
    assert (found == TRUTH).all()
    again = pickle.loads(pickle.dumps(classifier))
    assert (again.predict_proba(x[:2], known=KNOWN) == classifier.predict_proba(x[:2], known=KNOWN)).all()


# ---------------------------------------------------------------- tags and masks


def test_known_tags_tell_their_neighbours():
    """The words say nothing, and all tokens of a sentence have one tag."""
    rng = np.random.default_rng(0)
    sentences = [["w"] * int(rng.integers(2, 5)) for _ in range(300)]
    tags = [[str(rng.choice(["A", "B"]))] * len(one) for one in sentences]
    tagger = SequenceTagger(
        method="cross-entropy",
        conditional="auto",
        epochs=15,
        learning_rate=2e-2,
        task_hidden=16,
        random_state=0,
    ).fit(sentences, tags)
    known = [[None, "B", None], None, ["A", None]]
    given = [["w"] * 3, ["w"] * 4, ["w"] * 2]
    found = tagger.predict(given, known=known)
    assert (found[0], found[2]) == (["B"] * 3, ["A"] * 2)
    assert found[1] == tagger.predict(given)[1]
    assert tagger.predict_proba(given, known=known)[0][1].tolist() == [0, 1]
    for wrong, said in (
        ([["C", None, None], None, None], "row 0, token 0: the model has no tag 'C'"),
        ([None, ["A"], None], "row 1: .* each of 4 tokens"),
        ([None], "a list of 3 lists"),
    ):
        with pytest.raises(DataError, match=said):
            tagger.predict(given, known=wrong)


def test_known_tags_of_spans():
    """What is known in the files' scheme is read in BIOES, and must allow whole spans."""
    sentences = [["Ann", "Lee", "ran"], ["Bo", "ran", "off"]] * 20
    tags = [["B-P", "I-P", "O"], ["B-P", "O", "O"]] * 20
    tagger = SequenceTagger(
        method="cross-entropy",
        conditional="network",
        epochs=5,
        learning_rate=1e-2,
        task_hidden=8,
        random_state=0,
    ).fit(sentences, tags)
    found = tagger.predict([["Ann", "Lee", "ran"]] * 2, known=[["B-P", "O", None], [None, None, "B-P"]])
    assert found[0][:2] == ["B-P", "O"]
    assert found[1][2] == "B-P"
    with pytest.raises(DataError, match="row 1: no tags of the scheme IOB2 go with what is known"):
        tagger.predict([["Ann", "Lee", "ran"]] * 2, known=[None, ["O", "I-P", None]])


def test_known_pixels_tell_the_others():
    """The images say nothing, and a mask is all or nothing."""
    rng = np.random.default_rng(0)
    images = rng.random((200, 8, 8)).astype("float32")
    masks = np.broadcast_to(rng.random((200, 1, 1)) < 0.5, (200, 8, 8)).astype("uint8")
    segmenter = Segmenter(
        method="cross-entropy",
        conditional="network",
        epochs=12,
        learning_rate=5e-3,
        image_width=4,
        random_state=0,
    ).fit(images, masks)
    known = np.full((3, 8, 8), NAN)
    known[0, 3, 2:6] = 1
    known[1, 4, 2:6] = 0
    found = segmenter.predict(images[:3], known=known)
    assert found[0].mean() > 0.9
    assert found[1].mean() < 0.1
    assert (found[2] == segmenter.predict(images[:3])[2]).all()
    known[1, 0, 0] = 7
    with pytest.raises(DataError, match=r"row 1: its value at \(0, 0\) is known to be 7"):
        segmenter.predict(images[:3], known=known)


def test_energies_are_for_label_sets():
    with pytest.raises(ValueError, match="conditional energy is not for masks"):
        Segmenter(method="cross-entropy", conditional="energy", epochs=1).fit(
            np.random.default_rng(0).random((20, 8, 8)), np.zeros((20, 8, 8)) + 1
        )


# ---------------------------------------------------------------- whole sets


def test_whole_sets(trained):
    model, result, _ = trained
    x = np.zeros((2, 2), dtype="float32")
    if result["conditional"]["chosen"] != "energy":
        with pytest.raises(ValueError, match="conditional='energy'"):
            model.sample(x, 3)
        return
    drawn = model.sample(x, 400)
    assert drawn.shape == (2, 400, 4)
    assert ((drawn[..., 0] == drawn[..., 1]) & (drawn[..., 2] != drawn[..., 3])).mean() > 0.9
    assert 0.2 < drawn[..., 0].mean() < 0.8
    assert (model.sample(x, 50, known=KNOWN)[1, :, :2] == 0).mean() > 0.95
    every = np.array(list(itertools.product([0, 1], repeat=4)))
    values, errors = model.log_prob(np.zeros((16, 2)), every)
    assert np.exp(values).sum() == pytest.approx(1, abs=0.1)
    right = (every[:, 0] == every[:, 1]) & (every[:, 2] != every[:, 3])
    assert np.exp(values)[right].sum() > 0.9
    assert (errors < 0.2).all()
    impossible, _ = model.log_prob(x, [[0, 0, 1, 0], [0, 0, 1, 0]], known=KNOWN)
    assert impossible[0] == -np.inf
    with pytest.raises(ValueError, match="row 1 of y is not known completely"):
        model.log_prob(x, [[0, 0, 1, 0], [0, NAN, 1, 0]])
    whole = model.predict(x, decode="likeliest")
    assert (whole[:, 0] == whole[:, 1]).all()
    assert (whole[:, 2] != whole[:, 3]).all()


def test_the_goal_exact_match_takes_the_better_way():
    x, y = pairs(800)
    classifier = MultiLabelClassifier(
        method="cross-entropy",
        goal="exact-match",
        conditional="energy",
        epochs=10,
        learning_rate=1e-2,
        task_hidden=16,
        random_state=0,
    ).fit(x, y)
    assert classifier.model_.decision.whole
    found = classifier.predict(x[:50])
    assert ((found[:, 0] == found[:, 1]) & (found[:, 2] != found[:, 3])).all()


# ---------------------------------------------------------------- what is drawn


def test_shares_are_drawn_apart():
    generator = torch.Generator().manual_seed(0)
    truth = (torch.rand(4000, 20, generator=generator) < 0.5).float()
    known = draw_known(MultiLabel(20), truth, generator)
    ones = ((known == 1).sum(1) / truth.sum(1).clamp_min(1)).numpy()
    zeros = ((known == 0).sum(1) / (1 - truth).sum(1).clamp_min(1)).numpy()
    assert ones.mean() == pytest.approx(0.45, abs=0.02)
    assert (zeros == 0).mean() > 0.5
    assert abs(np.corrcoef(ones, zeros)[0, 1]) < 0.06
    assert torch.equal(truth[~known.isnan()], known[~known.isnan()])


@pytest.mark.parametrize(("space", "shape"), [(Mask(), (50, 12, 10)), (Tags(3), (50, 7, 3))])
def test_units_are_drawn_whole(space, shape):
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(2, shape, generator=generator).float()
    if space.unit_dims:
        truth = torch.nn.functional.one_hot(torch.randint(3, shape[:2], generator=generator), 3).float()
    known = draw_known(space, truth, generator)
    assert torch.equal(truth[~known.isnan()], known[~known.isnan()])
    assert 0.3 < float(known.isnan().float().mean()) < 0.7
    if space.unit_dims:
        assert torch.equal(known.isnan().any(-1), known.isnan().all(-1))


def test_ruled_out_tags_leave_their_share_to_the_others():
    relaxed = torch.tensor([[[0.2, 0.3, 0.5]]])
    found = combined(Tags(3), relaxed, torch.tensor([[[torch.nan, 0.0, torch.nan]]]))
    torch.testing.assert_close(found, torch.tensor([[[2 / 7, 0, 5 / 7]]]))


class Answering(EnergyConditional):
    """An energy that answers with one chance for all labels, and with one value for all of a set."""

    def __init__(self, chance, value):
        super().__init__(LabelResidual(4, 2))
        self.chance, self.value = chance, value

    def marginals(self, x, relaxed, known, mask=None):
        return torch.full_like(relaxed, self.chance)

    def prefer_seen(self, sets, relaxed, truth):
        return float((truth == self.value).all(1).float().mean())


def test_energies_are_chosen_by_what_counts(monkeypatch):
    x, y = torch.zeros(20, 2).numpy(), torch.ones(20, 4).numpy()
    data = MultiLabelData.from_arrays(x, y)
    task = Task.of_sizes(inputs=2, labels=4)
    sure, right = Answering(0.9, 0.0), Answering(0.6, 1.0)
    monkeypatch.setattr("lossnet.conditional.training._energies", lambda *_: [sure, right])

    def predict(part):
        return torch.full((20, 4), 0.5), torch.ones(20, 4)

    def chosen(whole):
        return train_conditional("energy", task, Settings(), data, data, predict, None, 0, whole)[0]

    assert chosen(False) is sure
    assert chosen(True) is right


def test_seen_sets_are_preferred_as_far_as_they_are_right_more_often():
    torch.manual_seed(0)
    sets = torch.tensor([[1.0, 1, 0, 0]] * 3 + [[0.0, 0, 1, 1]])
    relaxed = torch.tensor([[0.6, 0.4, 0.3, 0.2], [0.1, 0.2, 0.6, 0.45]])
    engine = make("energy", Task.of_sizes(inputs=2, labels=4), Settings())
    nothing = torch.full_like(relaxed, NAN)
    free = engine.likeliest(relaxed, nothing)
    assert engine.prefer_seen(sets, relaxed, free) == 1
    assert engine.seen.weight == 0, "the energy's own sets are right"
    assert engine.prefer_seen(sets, relaxed, sets[[0, 3]]) == 1
    weight = float(engine.seen.weight)
    assert weight > 0
    assert (engine.likeliest(relaxed, nothing) == sets[[0, 3]]).all()
    whole = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)))
    seen = {
        tuple(row.tolist()): n for row, n in zip(engine.seen.sets.float(), engine.seen.counts, strict=True)
    }
    gain = torch.tensor([weight * math.log1p(seen.get(tuple(row.tolist()), 0)) for row in whole])
    chances = engine.log_prob(relaxed, nothing, whole.expand(2, 16, 4))[0] + gain
    assert (whole[chances.argmax(1)] == sets[[0, 3]]).all(), "by brute force over all sets"
    known = torch.tensor([[NAN, 0, NAN, NAN], [NAN, NAN, NAN, 0]])
    told = engine.likeliest(relaxed, known)
    assert told[0, 1] == 0
    assert told[1, 3] == 0


def test_folders_have_the_seen_sets_and_old_ones_none(tmp_path):
    task = Task.of_sizes(inputs=2, labels=4)
    engine = make("energy", task, Settings())
    engine.prefer_seen(torch.eye(4), torch.full((4, 4), 0.4), torch.eye(4))
    again = make("energy", task, Settings())
    again.load_state_dict(engine.state_dict(), assign=True)
    assert (again.seen.sets == engine.seen.sets).all()
    assert again.seen.weight == engine.seen.weight
    engine.seen.counts[0] = 300
    copied = make("energy", task, Settings())
    copied.load_state_dict(engine.state_dict())
    assert copied.seen.counts[0] == 300
    old = {name: one for name, one in engine.state_dict().items() if not name.startswith("seen.")}
    again = make("energy", task, Settings())
    again.load_state_dict(old, assign=True)
    assert len(again.seen.sets) == 0
    wrong = {**engine.state_dict(), "seen.sets": torch.zeros(2, 5, dtype=torch.uint8)}
    with pytest.raises(RuntimeError, match=r"seen\.sets"):
        again.load_state_dict(wrong, assign=True)
