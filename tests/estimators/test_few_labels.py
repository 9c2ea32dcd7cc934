"""Rows without labels in `fit` and in runs: who learns from them, who never sees them, what is refused."""

import json
import pickle
import re

import numpy as np
import pandas as pd
import pytest
import torch

import lossnet
from lossnet import MultiLabelClassifier, OwnParts, Run, Segmenter, SequenceTagger, Settings
from lossnet.cli import main
from lossnet.data import DataError
from lossnet.energies import Rule, RuleError, exactly, rule, sums_to
from lossnet.loading import load
from lossnet.own import read_rules
from lossnet.run import TrainingWarning
from lossnet.runs import train_many, variants

VALUES = (1.0, 2.0, 4.0, 8.0)
RULES = (exactly(2), sums_to(VALUES))
SMALL = {"task_hidden": 16, "task_layers": 1, "random_state": 0, "validation_fraction": 0, "epochs": 3}
SETTINGS = Settings(task_hidden=8, energy_hidden=8, global_hidden=4, samples=4, epochs=2)
pytestmark = pytest.mark.filterwarnings("ignore::lossnet.run.TrainingWarning")


def drawn(rows, seed=0):
    random = np.random.default_rng(seed)
    y = np.zeros((rows, 4))
    for row in y:
        row[random.choice(4, 2, replace=False)] = 1
    return (y + 0.15 * random.normal(size=y.shape)).astype("float32"), y


X, Y = drawn(120)
KNOWN = np.arange(120) % 20 == 0
PARTLY = np.where(KNOWN[:, None], Y, np.nan)


def classifier(method, **options):
    return MultiLabelClassifier(method=method, **{**SMALL, **options})


def test_rules_bring_what_six_labels_do_not():
    test_x, test_y = drawn(200, seed=1)
    options = {"epochs": 30, "learning_rate": 0.01, "ramp_up": 20, "decode": "0.5"}
    scores = {}
    for method, more in (("cross-entropy", {}), ("rules", {"rules": RULES, "facts": Y @ VALUES})):
        fitted = classifier(method, **options).fit(X, PARTLY, **more)
        scores[method] = (fitted.predict(test_x) == test_y).all(1).mean()
    assert scores["rules"] > 0.9
    assert scores["cross-entropy"] < 0.8


@pytest.mark.parametrize("method", ["cross-entropy", "seal", "dvn", "infnet-plus"])
def test_other_methods_train_as_if_rows_without_labels_were_not_there(method):
    mine = classifier(method).fit(X, PARTLY)
    alone = classifier(method).fit(X[KNOWN], Y[KNOWN])
    assert np.array_equal(mine.predict_proba(X), alone.predict_proba(X))
    for one, other in zip(mine.history_, alone.history_, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


@pytest.mark.parametrize(
    "given",
    [
        [row if known else None for row, known in zip(Y.astype(int).tolist(), KNOWN, strict=True)],
        pd.DataFrame(PARTLY, columns=list("abcd")),
        [list(np.array(list("abcd"))[row > 0]) if k else None for row, k in zip(Y, KNOWN, strict=True)],
    ],
    ids=["None", "frame", "names"],
)
def test_labels_are_given_in_any_form(given):
    wanted = classifier("mean-teacher").fit(X, PARTLY).predict_proba(X)
    fitted = classifier("mean-teacher").fit(X, given)
    np.testing.assert_allclose(np.asarray(fitted.predict_proba(X)), wanted)


def test_classes_may_be_unknown():
    classes = [("up" if x[0] > 0.5 else "down") if known else None for x, known in zip(X, KNOWN, strict=True)]
    fitted = classifier("pseudo-labels").fit(X, classes)
    assert set(fitted.predict(X)) <= {"up", "down"}
    assert not fitted.multilabel_


def test_inputs_without_labels_count_in_scaling_and_weights_are_those_of_labelled_rows():
    shifted = X + np.where(KNOWN, 0, 10)[:, None]
    weights = np.where(KNOWN, np.arange(120) + 1.0, 0)
    fitted = classifier("mean-teacher").fit(shifted, PARTLY, sample_weight=weights)
    again = classifier("mean-teacher").fit(shifted, PARTLY, sample_weight=weights * KNOWN)
    assert np.array_equal(fitted.predict_proba(X), again.predict_proba(X))
    unweighted = classifier("mean-teacher").fit(shifted, PARTLY)
    assert not np.array_equal(fitted.predict_proba(X), unweighted.predict_proba(X))
    assert abs(fitted._read(shifted).source.matrix.mean()) < 1e-4
    assert abs(classifier("seal").fit(shifted, PARTLY)._read(shifted).source.matrix.mean()) > 1


def test_texts_and_images():
    texts = ["a good film", "a bad film", "good music", "dull music"] * 5
    labels = [[1, 1], [0, 1], [1, 0], None] * 5
    fitted = classifier("mean-teacher", epochs=1).fit(texts, labels)
    assert "dull" in fitted.model_.task.input.terms.terms
    images = np.random.default_rng(0).random((12, 8, 8))
    known = [[1, 0] if image.mean() > 0.5 else [0, 1] for image in images[:6]] + [None] * 6
    assert classifier("mean-teacher", epochs=1).fit(images, known).predict(images).shape == (12, 2)


def test_tags_and_masks():
    sentences = [["Ann", "saw", "Bo"], ["Bo", "left"], ["it", "saw", "Ann"]] * 4
    tags = [["N", "V", "N"], ["N", "V"], None] * 4
    options = {"epochs": 2, "random_state": 0, "batch_size": 4, "validation_fraction": 0}

    def ends_in_noun(x, y, facts):
        return 1 - y[:, :, -1].amax(-1)

    tagger = SequenceTagger(method="rules", **options).fit(sentences, tags, rules=[Rule(ends_in_noun)])
    assert [len(row) for row in tagger.predict(sentences[:2])] == [3, 2]
    images = np.random.default_rng(0).random((8, 8, 8))
    masks = [image > 0.5 for image in images[:4]] + [None] * 4
    segmenter = Segmenter(method="mean-teacher", **options).fit(images, masks)
    assert segmenter.predict(images).shape == (8, 8, 8)


def test_a_fitted_model_goes_on_as_it_was():
    fitted = classifier("rules").fit(X, PARTLY, rules=RULES, facts=Y @ VALUES)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(fitted.predict_proba(X), again.predict_proba(X))
    before = again.model_.method.task_net.state_dict()
    after = again.model_.method.student.state_dict()
    for name, value in before.items():
        assert torch.equal(value, after[name]), "the student begins where the teacher is"


def test_what_is_wrong_is_said():
    advice = r"method rules needs rules: give some, or use mean-teacher \(method=, --method\)"
    with pytest.raises(ValueError, match=advice):
        classifier("rules").fit(X, PARTLY)
    with pytest.raises(TypeError, match=r"is no rule; decorate a function with lossnet\.rule"):
        classifier("rules").fit(X, PARTLY, rules=[lambda x, y, facts: y.sum(-1)])
    with pytest.raises(DataError, match="there are 120 inputs but 3 facts"):
        classifier("rules").fit(X, Y, rules=RULES, facts=[1, 2, 3])
    with pytest.warns(TrainingWarning, match="learns from instances without labels, and there are none"):
        classifier("mean-teacher", epochs=1).fit(X, Y)


# ---------------------------------------------------------------- runs


def run(method, **options):
    return Run("pairs", method, settings=SETTINGS, progress=False, device="cpu", **options)


def test_a_run_takes_them_too(tmp_path):
    asked = run("rules", own=OwnParts(rules=RULES), output=tmp_path / "run")
    result = lossnet.train(asked, data=(X, PARTLY, Y @ VALUES))
    assert result["parts"]["rules"] == "Rule(exactly(2), weight=inf), Rule(sums_to, weight=inf)"
    model = lossnet.load(tmp_path / "run")
    assert model.predict(X[:2]).shape == (2, 4)
    kept = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert kept["own"] == [], "a model folder knows nothing of rules"
    assert "exactly" not in json.dumps(kept)


def test_a_run_of_another_method_never_reads_them():
    data = X, PARTLY
    mine, alone = (load("pairs", data=one, unlabelled=False) for one in (data, (X[KNOWN], Y[KNOWN])))
    assert mine.unlabelled is None
    assert mine.digest == alone.digest
    assert load("pairs", data=data).digest != mine.digest
    results = [lossnet.train(run("seal"), data=one) for one in (data, (X[KNOWN], Y[KNOWN]))]
    assert results[0]["metrics"] == results[1]["metrics"]
    with pytest.raises(DataError, match="a split numbers rows, and some have no labels"):
        load("pairs", data=data, split="split.json")


def test_few_labels_of_a_named_set_are_drawn_by_the_seed():
    whole = load("digits-pairs")
    few = [load("digits-pairs", labelled=10, labelled_seed=seed) for seed in (0, 0, 1)]
    assert [len(part) for part in (few[0].train, few[0].valid, few[0].test, few[0].unlabelled)] == [
        10,
        10,
        600,
        1790,
    ]
    assert few[0].digest == few[1].digest != few[2].digest
    assert few[0].unlabelled.target is None
    assert torch.equal(few[0].train.batch(torch.arange(10)).x, few[0].valid.batch(torch.arange(10)).x)
    assert torch.equal(few[0].test.batch(torch.arange(9)).x, whole.test.batch(torch.arange(9)).x)
    for count in (0, 1800):
        with pytest.raises(DataError, match=rf"labelled={count}: there are 1800 training rows"):
            load("digits-pairs", labelled=count)


def test_many_seeds_draw_their_own_labels(tmp_path):
    asked = Run("digits-pairs", "mean-teacher", settings=Settings(epochs=1, task_hidden=8), labelled=10)
    asked = [*variants(Run(**{**vars(asked), "progress": False, "output": tmp_path / "two"}), seeds=2)]
    first = train_many(asked, say=lambda line: None)
    assert first[0]["data_digest"] != first[1]["data_digest"]
    assert first[0]["source"]["labelled"] == 10
    again = train_many([Run(**{**vars(one), "resume": True}) for one in asked], say=lambda line: None)
    assert again == first


def test_rules_are_read_from_a_file(tmp_path):
    path = tmp_path / "rules.py"
    path.write_text(
        "import lossnet\nfrom lossnet.energies import exactly\n"
        "pair = exactly(2)\nothers = [lossnet.energies.implies(0, 1), pair]\n"
        "@lossnet.rule(weight=2.0)\ndef mine(x, y, facts):\n    return y.sum(-1)\n"
    )
    assert [one.name for one in read_rules(path)] == ["exactly(2)", "implies(0, 1)", "mine"]
    path.write_text("1 / 0")
    with pytest.raises(ValueError, match=r"cannot be run: ZeroDivisionError: division by zero \(line 1\)"):
        read_rules(path)
    path.write_text("x = 1")
    with pytest.raises(ValueError, match="has no rules"):
        read_rules(path)
    with pytest.raises(ValueError, match=r"ruels.py: no such file; did you mean .*rules.py"):
        read_rules(tmp_path / "ruels.py")


def broken_at(*rows):
    """A rule that throws on some rows, whose numbers are the facts."""

    @rule
    def fragile(x, y, facts):
        if torch.isin(facts, torch.tensor(rows)).any():
            raise KeyError("no such colour")
        return (y.sum(-1) - 2).abs()

    return fragile


def test_a_rule_that_fails_is_named_with_the_row_that_was_given():
    with pytest.raises(RuleError, match="rule fragile raises KeyError on row 57: 'no such colour'"):
        classifier("rules").fit(X, PARTLY, rules=[broken_at(57)], facts=np.arange(120))


def test_what_is_wrong_with_rules_and_facts_is_said_before_training():
    told = {"rules": RULES, "facts": Y @ VALUES}
    with pytest.raises(
        ValueError, match="method seal does not learn from rules; leave them out, or name one of rules"
    ):
        classifier("seal").fit(X, PARTLY, **told)
    with pytest.raises(TypeError, match=r"rules are exactly\(2\) alone; give a list"):
        classifier("rules").fit(X, PARTLY, rules=exactly(2))
    with pytest.raises(DataError, match="there are 120 inputs but 5 facts"):
        classifier("rules").fit(X, PARTLY, rules=RULES, facts=[1.0] * 5)
    with pytest.raises(DataError, match="no row of y has a label"):
        classifier("rules").fit(X, np.full((120, 4), np.nan), **told)
    with pytest.raises(
        ValueError, match=r"no set of 4 labels keeps all hard rules \(exactly\(2\), exactly\(3\)\)"
    ):
        classifier("rules").fit(X, PARTLY, rules=[exactly(2), exactly(3)])


def test_labels_and_facts_of_data_frames_go_by_name():
    """A rule by name teaches what the same rule by number does; a series of facts is facts without a name."""
    frame = pd.DataFrame(PARTLY, columns=["penny", "dime", "ruble", "yen"])
    worth = dict(zip(frame.columns, VALUES, strict=True))
    numbered = classifier("rules").fit(X, PARTLY, rules=RULES, facts=Y @ VALUES)
    rules = [exactly(2), sums_to(worth)]
    series, table = pd.Series(Y @ VALUES), pd.DataFrame({"total": Y @ VALUES})
    for facts in (series, table):
        named = classifier("rules").fit(X, frame, rules=rules, facts=facts)
        assert np.array_equal(named.predict_proba(X), numbered.predict_proba(X))
    wrong = [exactly(1, ["penny", "dyme"])]
    with pytest.raises(RuleError, match="is about 'dyme', which is no label; did you mean dime"):
        classifier("rules").fit(X, frame, rules=wrong)
    with pytest.raises(RuleError, match="is about 'dyme', which is no label; did you mean dime"):
        named.predict(X, rules=wrong)
    one = named.predict(X, rules=[exactly(1, ["penny", "dime"])])
    assert (one[["penny", "dime"]].sum(axis=1) == 1).all()


def test_nothing_is_lost_by_a_rule_that_fails(tmp_path):
    folder = tmp_path / "run"
    options = {"output": folder, "own": OwnParts(rules=[broken_at(57)])}
    with pytest.raises(RuleError, match="on row 57"):
        lossnet.train(run("rules", **options), data=(X, PARTLY, np.arange(120)))
    assert (folder / "checkpoint.safetensors").exists()
    options["own"] = OwnParts(rules=[broken_at()])
    again = lossnet.train(run("rules", **options, resume=True), data=(X, PARTLY, np.arange(120)))
    assert again["epochs"] == 2


def test_the_command_says_how_to_go_on(tmp_path, capsys):
    file, folder = tmp_path / "rules.py", tmp_path / "run"
    file.write_text("import lossnet\n@lossnet.rule\ndef mine(x, y, facts):\n    return 1 / 0\n")
    words = ["train", "digits-pairs", "--method", "rules", "--rules", str(file), "--labelled", "10"]
    words += ["--epochs", "1", "--quiet", "--output", str(folder), "--no-report"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert re.search(r"rule mine raises ZeroDivisionError on row \d+: division by zero", said)
    assert "(rules.py, line 4)\nprogress is saved" in said
    assert "continue with the same command and --resume" in said
    file.write_text(
        "import lossnet\n@lossnet.rule\ndef mine(x, y, facts):\n    return (y.sum(-1) - 2).abs()\n"
    )
    assert main([*words, "--resume"]) == 0


def test_a_model_folder_never_runs_rules(tmp_path):
    """Not even a rules file that somebody puts into it."""
    asked = run("rules", own=OwnParts(rules=RULES), output=tmp_path / "run")
    lossnet.train(asked, data=(X, PARTLY, Y @ VALUES))
    for folder in (tmp_path / "run", tmp_path / "run" / "model"):
        (folder / "rules.py").write_text("raise SystemExit('it was run')")
    model = lossnet.load(tmp_path / "run")
    model.predict(X[:2])
    assert model.task.own.rules == ()
