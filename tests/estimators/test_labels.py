import copy
import json
import pickle
import pickletools
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lossnet
from lossnet import MultiLabelClassifier
from lossnet.model import ModelError
from lossnet.settings import Settings

SMALL = {"task_hidden": 16, "energy_hidden": 8, "global_hidden": 4, "samples": 4}


def quick(**changes):
    usual = {
        "method": "seal",
        "epochs": 4,
        "learning_rate": 0.02,
        **SMALL,
        "random_state": 0,
        "device": "cpu",
    }
    return MultiLabelClassifier(**{**usual, **changes})


@pytest.fixture(scope="module")
def problem():
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 5))
    y = (x @ random.normal(size=(5, 3)) > 0).astype(int)
    return x, y


@pytest.fixture(scope="module")
def fitted(problem):
    return quick().fit(*problem)


def frames(x, y):
    index = [f"row {i}" for i in range(len(x))]
    inputs = pd.DataFrame(x, index, columns=["length", "width", "height", "age", "weight"])
    return inputs, pd.DataFrame(y.astype(bool), index, columns=["red", "round", "ripe"])


# ---------------------------------------------------------------- label sets


def test_it_learns_and_says_how_well(problem):
    x, y = problem
    classifier = quick(epochs=20).fit(x[:90], y[:90])
    assert classifier.score(x[90:], y[90:]) > 0.8
    chosen = classifier.predict(x[90:])
    probabilities = classifier.predict_proba(x[90:])
    np.testing.assert_array_equal(chosen, probabilities >= classifier.model_.threshold)
    overlap, total = (chosen & y[90:]).sum(1), chosen.sum(1) + y[90:].sum(1)
    f1 = 2 * overlap / np.maximum(total, 1)
    labelled = y[90:].any(1)
    assert classifier.score(x[90:], y[90:]) == pytest.approx(f1[labelled].mean())
    weights = np.arange(30.0)
    expected = np.average(f1[labelled], weights=weights[labelled])
    assert classifier.score(x[90:], y[90:], weights) == pytest.approx(expected)
    assert classifier.classes_.tolist() == [0, 1, 2]
    assert classifier.n_features_in_ == 5
    assert classifier.n_iter_ == len(classifier.history_) == 20


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_is_dense(problem, fitted, kind):
    x, y = problem
    x = np.where(np.abs(x) < 0.5, 0, x)
    dense, thin = quick(scale=False).fit(x, y), quick().fit(kind(x), kind(y))
    np.testing.assert_array_equal(thin.predict_proba(kind(x)), dense.predict_proba(x))
    np.testing.assert_array_equal(thin.predict(x), dense.predict(kind(x)))


def test_a_row_is_the_same_wherever_it_stands(problem, fitted):
    X, _ = problem
    generator = np.random.default_rng(0)
    together = fitted.predict_proba(X)
    for size in (1, 3, 20, 37, len(X)):
        rows = generator.permutation(len(X))[:size]
        np.testing.assert_allclose(fitted.predict_proba(X[rows]), together[rows], rtol=1e-12)


def test_names_go_in_and_out(problem, fitted):
    x, y = frames(*problem)
    classifier = quick().fit(x, y)
    assert classifier.feature_names_in_.tolist() == list(x.columns)
    assert classifier.classes_.tolist() == ["red", "round", "ripe"]
    assert classifier.model_.label_names == ("red", "round", "ripe")
    assert classifier.model_.feature_names == tuple(x.columns)
    chosen, probabilities = classifier.predict(x[:7]), classifier.predict_proba(x[:7])
    for table in (chosen, probabilities):
        assert list(table.columns) == ["red", "round", "ripe"]
        assert list(table.index) == list(x.index[:7])
    np.testing.assert_array_equal(probabilities, fitted.predict_proba(problem[0][:7]))
    assert classifier.score(x, y) == fitted.score(*problem)
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(x[x.columns[::-1]])
    again = pickle.loads(pickle.dumps(classifier))
    pd.testing.assert_frame_equal(again.predict(x), classifier.predict(x))
    assert isinstance(cross_val_score(quick(), x, y, cv=2), np.ndarray)


def test_one_column_of_labels_is_a_set_of_at_most_one(problem):
    x, y = problem
    classifier = quick().fit(x, y[:, :1])
    assert classifier.multilabel_
    assert classifier.predict(x).shape == (120, 1)


def test_missing_values_become_means(problem, fitted):
    x, y = problem
    holes = x.copy()
    holes[::9, 1] = np.nan
    classifier = quick(validation_fraction=0).fit(holes, y)
    filled = np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)
    np.testing.assert_allclose(classifier.predict_proba(holes), classifier.predict_proba(filled), atol=1e-6)


def test_rows_without_labels_are_no_trouble():
    x, y = np.random.default_rng(0).normal(size=(30, 2)), np.zeros((30, 2), int)
    y[:2] = 1
    assert quick(epochs=1).fit(x, y).predict(x).shape == (30, 2)
    with pytest.raises(ValueError, match="no instance has a true label"):
        quick(epochs=1).fit(x, 0 * y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full((120, 3), 2), "neither 0 nor 1"),
        (np.arange(360).reshape(120, 3) % 3, "more than 0 and 1"),
        (np.random.default_rng(0).random((120, 3)), "continuous"),
        (np.ones((120, 3)) * np.nan, "NaN"),
        (np.ones((7, 3)), "inconsistent numbers"),
    ],
)
def test_other_labels_are_refused(problem, y, message):
    with pytest.raises(ValueError, match=message):
        quick().fit(problem[0], y)


def test_scoring_other_labels_is_refused(problem, fitted):
    x, y = problem
    with pytest.raises(ValueError, match="needs 3 columns"):
        fitted.score(x, y[:, :2])
    x, y = frames(x, y)
    named = quick(epochs=1).fit(x, y)
    with pytest.raises(ValueError, match=r"must be \['red', 'round', 'ripe'\]"):
        named.score(x, y[y.columns[::-1]])
    with pytest.raises(NotFittedError):
        quick().score(x, y)


# ---------------------------------------------------------------- classes


@pytest.mark.parametrize("names", [np.array(["no", "yes"]), np.array([3, 7]), np.array(["a", "b", "c"])])
def test_classes_come_back_as_they_were_given(problem, names):
    x, _ = problem
    y = names[np.clip(x[:, 0] + 1, 0, len(names) - 1).astype(int)]
    classifier = quick(epochs=15).fit(x, y)
    assert not classifier.multilabel_
    assert classifier.classes_.tolist() == names.tolist()
    assert classifier.predict(x).dtype == names.dtype
    assert classifier.score(x, y) == accuracy_score(y, classifier.predict(x)) > 0.7
    np.testing.assert_allclose(classifier.predict_proba(x).sum(1), 1)
    with pytest.raises(ValueError, match="none of"):
        classifier.partial_fit(x, np.full(120, names[0] * 2))


# ---------------------------------------------------------------- weights


def test_weights_equal_repeated_rows_where_the_loss_sees_all_of_them(problem):
    x, y = problem
    times = np.random.default_rng(1).integers(0, 4, size=120)
    full = {"batch_size": 1000, "validation_fraction": 0, "method": "cross-entropy", "epochs": 10}
    full |= {"task_dropout": 0.0, "patience": 100, "scale": False}
    rows = np.repeat(np.arange(120), times)
    given = {"X_val": x, "y_val": y}  # the same rows choose the epoch, then
    repeated = quick(**full).fit(x[rows], y[rows], **given)
    weighted = quick(**full).fit(x, y, 5.0 * times, **given)
    np.testing.assert_allclose(weighted.predict_proba(x), repeated.predict_proba(x), atol=1e-5)
    plain = quick(**full).fit(x, y, **given)
    assert np.abs(plain.predict_proba(x) - repeated.predict_proba(x)).max() > 1e-3
    for same in (np.ones(120), np.full(120, 3.0)):
        np.testing.assert_array_equal(
            quick(**full).fit(x, y, same, **given).predict_proba(x), plain.predict_proba(x)
        )


def test_weights_that_make_no_sense_are_refused(problem):
    for weights, message in (
        (np.zeros(120), "non-zero|cannot be split"),
        (-np.ones(120), "[Nn]egative"),
        (np.ones(7), "shape"),
    ):
        with pytest.raises(ValueError, match=message):
            quick().fit(*problem, weights)


# ---------------------------------------------------------------- validation, parameters, randomness


def test_validation_rows_may_be_given(problem):
    x, y = problem
    classifier = quick().fit(x[:60], y[:60], X_val=x[60:], y_val=y[60:])
    entry = classifier.history_[-1]["valid"]
    assert set(entry) >= {"f1", "micro_f1"}
    # Those rows choose the epoch and the threshold, and are not trained on: other rows give another model.
    other = quick().fit(x[:60], y[:60], X_val=x[60:90], y_val=y[60:90])
    assert other.history_[0]["losses"] == classifier.history_[0]["losses"]
    assert other.history_[0]["f1"] != classifier.history_[0]["f1"]


@pytest.mark.parametrize("given", ["X_val", "y_val"])
def test_validation_rows_and_their_labels_are_given_together(problem, given):
    x, y = problem
    with pytest.raises(ValueError, match="X_val and y_val together"):
        quick().fit(x, y, **{given: x if given == "X_val" else y})


def test_all_rows_train_where_none_are_held_out(problem):
    x, y = problem
    alone = quick(validation_fraction=0).fit(x, y)
    given = quick(validation_fraction=0.3).fit(x, y, X_val=x, y_val=y)
    np.testing.assert_array_equal(alone.predict_proba(x), given.predict_proba(x))


def test_random_states_decide_everything(problem):
    x, y = problem
    found = [quick(random_state=seed).fit(x, y).predict_proba(x) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()
    state = np.random.RandomState(0)
    first, second = (quick(random_state=state, epochs=1).fit(x, y).predict_proba(x) for _ in range(2))
    assert (first != second).any()


def test_parameters_become_settings(problem):
    classifier = quick(epochs=np.int64(2), batch_size=16, energy_lr=0.5)
    settings = classifier.fit(*problem).model_.settings
    expected = {**SMALL, "epochs": 2, "batch_size": 16, "task_lr": 0.02, "energy_lr": 0.5}
    assert settings == Settings(**expected)
    assert classifier.model_.names == ("seal", "nce")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "magic"}, "no method 'magic'"),
        ({"loss": "dice"}, "seal has no loss 'dice'"),
        ({"method": "crf"}, "not for labels"),
        ({"inputs": "smells"}, "no inputs 'smells'"),
        ({"threads": 0}, "threads must be above 0"),
        ({"epochs": "many"}, "epochs cannot be 'many'"),
        ({"epochs": 0}, "epochs must be above 0"),
        ({"validation_fraction": 1.5}, "above 0 and below 1"),
        ({"device": "abacus"}, "abacus"),
    ],
    ids=str,
)
def test_parameters_that_make_no_sense_are_refused(problem, parameters, message):
    with pytest.raises(ValueError, match=message):
        quick(**parameters).fit(*problem)


def test_unfitted_estimators_say_so(problem):
    with pytest.raises(NotFittedError):
        quick().predict(problem[0])


# ---------------------------------------------------------------- bit by bit


@pytest.mark.parametrize("method", ["cross-entropy", "seal", "implicit", "dvn", "infnet-plus"])
def test_data_may_come_bit_by_bit(problem, method):
    x, y = problem
    classifier = quick(method=method, inference_steps=3)
    for _ in range(2):
        for rows in np.split(np.arange(120), 3):
            assert classifier.partial_fit(x[rows], y[rows]) is classifier
    assert classifier.n_iter_ == len(classifier.history_) == 6
    assert classifier.model_.threshold == 0.5
    assert classifier.predict(x).shape == y.shape


def test_bit_by_bit_learns_and_goes_on_after_pickling(problem):
    x, y = problem
    classifier = quick()
    for _ in range(15):
        classifier.partial_fit(x, y)
    before = classifier.score(x, y)
    assert before > 0.8
    again = pickle.loads(pickle.dumps(classifier))
    energy = classifier.model_.method.energy.state_dict()
    for name, value in again.model_.method.energy.state_dict().items():
        np.testing.assert_array_equal(value, energy[name])
    assert again.partial_fit(x, y).score(x, y) > 0.8


def test_missing_values_become_means_of_the_first_rows(problem):
    x, y = problem
    holes = x.copy()
    holes[::9, 1] = np.nan
    classifier = quick().partial_fit(holes[:60], y[:60]).partial_fit(holes[60:], y[60:])
    filled = np.where(np.isnan(holes), np.nanmean(holes[:60], axis=0), holes)
    np.testing.assert_allclose(classifier.predict_proba(holes), classifier.predict_proba(filled), atol=1e-6)


def test_methods_of_several_stages_need_all_data_at_once(problem):
    for method in ("spen", "nce-energy", "infnet", "seal-static"):
        classifier = quick(method=method)
        with pytest.raises(ValueError, match="trains in stages"):
            classifier.partial_fit(*problem)
        with pytest.raises(NotFittedError):  # and not predictions of a network that has learned nothing
            classifier.predict(problem[0])


def test_classes_must_be_known_at_first(problem):
    x, y = problem
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        quick().partial_fit(x, y[:, 0])
    classifier = quick().partial_fit(x[:9], np.ones(9), classes=[0, 1, 2])
    assert classifier.partial_fit(x, y[:, 0]).predict_proba(x).shape == (120, 3)


# ---------------------------------------------------------------- what scikit-learn does with estimators


def test_clones_are_unfitted_copies(fitted):
    copied = clone(fitted)
    assert repr(copied.get_params()) == repr(fitted.get_params())
    assert not hasattr(copied, "model_")


def test_a_grid_search_over_a_pipeline(problem):
    x, y = problem
    pipeline = make_pipeline(StandardScaler(), quick(epochs=3))
    grid = {
        "multilabelclassifier__learning_rate": [1e-6, 0.05],
        "multilabelclassifier__method": ["cross-entropy", "seal"],
    }
    search = GridSearchCV(pipeline, grid, cv=2).fit(x, y)
    assert search.best_params_["multilabelclassifier__learning_rate"] == 0.05
    assert search.score(x, y) > 0.7
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()


def test_cross_validation(problem):
    x, y = problem
    scores = cross_val_score(quick(), x, y, cv=3)
    assert scores.shape == (3,)
    assert (scores > 0.5).all()
    assert cross_val_score(quick(), x, y, cv=2, scoring="f1_micro").shape == (2,)
    assert cross_val_predict(quick(), x, y, cv=2, method="predict_proba").shape == (120, 3)


# ---------------------------------------------------------------- pickling


@pytest.mark.parametrize("method", ["seal", "cross-entropy", "dvn", "nce-energy", "seal-static"])
def test_pickles_predict_the_same(problem, method):
    x, y = problem
    classifier = quick(method=method, epochs=1, inference_steps=3).fit(x, y)
    for again in (pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier)):
        np.testing.assert_array_equal(again.predict_proba(x), classifier.predict_proba(x))
        assert again.get_params() == classifier.get_params()
        assert again.history_ == classifier.history_
        assert pickle.dumps(again) == pickle.dumps(classifier)


def test_pickles_hold_safetensors_and_json_but_nothing_of_torch(fitted):
    content = pickle.dumps(fitted)
    names = [argument for _, argument, _ in pickletools.genops(content) if isinstance(argument, str)]
    assert "lossnet.estimators.labels" in names
    assert not [name for name in names if name.startswith("torch")]
    files = fitted.__getstate__()["model_"]
    assert sorted(files) == ["energy.safetensors", "model.json", "model.safetensors"]
    assert json.loads(files["model.json"])["format"] == 4


def test_a_damaged_pickle_is_refused(fitted):
    state = fitted.__getstate__()
    files = {**state["model_"], "model.safetensors": b"\x00" * 100}
    with pytest.raises(ModelError, match="checksum mismatch"):
        quick().__setstate__({**state, "model_": files})


def test_the_model_can_be_kept_as_a_folder(fitted, problem, tmp_path):
    fitted.model_.save(tmp_path / "model")
    model = lossnet.load(tmp_path)
    np.testing.assert_array_equal(model.predict(problem[0]), fitted.predict(problem[0]))
    assert model.label_names == ("0", "1", "2")


def test_estimators_are_imported_when_asked_for():
    code = "import sys, lossnet; assert 'lossnet.estimators' not in sys.modules; lossnet.SequenceTagger"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Oracle'"):
        lossnet.Oracle  # noqa: B018


def test_label_sets_may_be_given_by_names():
    x = np.random.default_rng(0).normal(size=(80, 3))
    names = [
        [name for name, value in zip(("wet", "cold", "dark"), row, strict=True) if value > 0] for row in x
    ]
    options = {"method": "cross-entropy", "epochs": 20, "learning_rate": 0.01, "random_state": 0}
    by_names = MultiLabelClassifier(**options).fit(x, names)
    assert by_names.classes_.tolist() == ["cold", "dark", "wet"]
    by_columns = MultiLabelClassifier(**options).fit(x, (x > 0)[:, [1, 2, 0]].astype(int))
    np.testing.assert_array_equal(by_names.predict(x), by_columns.predict(x))
    assert by_names.score(x, names) == by_columns.score(x, (x > 0)[:, [1, 2, 0]].astype(int))
    with pytest.raises(ValueError, match="row 0 of y has the label 'hot', which fit did not see"):
        by_names.score(x[:1], [["hot"]])
    assert by_names.model_.named(x[:5]) == [
        [name for name, one in zip(by_names.classes_, row, strict=True) if one]
        for row in by_names.predict(x[:5])
    ]
    ragged = np.empty(len(names), dtype=object)
    ragged[:] = [tuple(row) for row in names]
    joined = [" ; ".join(row) for row in names]
    for y in (
        ragged,
        pd.Series(names),
        list(map(set, names)),
        joined,
        np.array(joined),
        pd.DataFrame({"l": joined}),
    ):
        again = MultiLabelClassifier(**options).fit(x, y)
        np.testing.assert_array_equal(again.predict(x), by_names.predict(x))
        assert again.score(x, y) == by_names.score(x, names)
        assert again.score(x[:40], joined[:40]) == by_names.score(x[:40], names[:40])
    gaps, known = [name or None for name in joined], np.array([bool(name) for name in joined])
    assert not known.all()
    some = MultiLabelClassifier(**options).fit(x[known], [row for row in names if row])
    for y in (pd.Series(gaps), pd.Series([row or np.nan for row in names]), pd.DataFrame({"l": gaps})):
        found = MultiLabelClassifier(**options).fit(x, y)  # rows that nothing is known of are left out
        np.testing.assert_array_equal(found.predict(x), some.predict(x))
    pickled = pickle.loads(pickle.dumps(again))
    assert pickled.score(x, joined) == again.score(x, joined)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([[1, 3], [2], []] * 10, r"y has lists of numbers, such as \[1, 3\]; give labels by names"),
        ([{1, 3}, {2, 4}, {1, 2}] * 10, r"y has lists of numbers, such as \{1, 3\}"),
        ([["a"], "b", ["c"]] * 10, "row 1 of y is 'b', and others are lists of names"),
        ([["a"], ["b"], ["c", 3]] * 10, r"row 2 of y is \['c', 3\], and others are lists of names"),
    ],
)
def test_what_names_no_labels_is_said(y, message):
    with pytest.raises(ValueError, match=message):
        quick().fit(np.random.default_rng(0).normal(size=(30, 3)), y)


def test_classes_whose_names_have_no_separators_stay_classes():
    x = np.random.default_rng(0).normal(size=(30, 3))
    classifier = quick(epochs=1).fit(x, ["a, b", "c"] * 15)
    assert not classifier.multilabel_
    assert classifier.classes_.tolist() == ["a, b", "c"]


# ---------------------------------------------------------------- frames with text and dates


@pytest.fixture(scope="module")
def films():
    random = np.random.default_rng(0)
    days = pd.Timestamp("2001-01-01") + pd.to_timedelta(random.integers(0, 3000, 120), "D")
    countries = random.choice(["fr", "in", "it"], 120)
    frame = pd.DataFrame({"minutes": random.normal(100, 20, 120), "country": countries, "released": days})
    y = pd.DataFrame({"musical": countries == "in", "christmas": days.month == 12}).astype(int)
    return frame, y


def test_frames_may_have_text_and_dates(films):
    frame, y = films
    classifier = quick(method="cross-entropy", epochs=60).fit(frame, y)
    assert classifier.score(frame, y) > 0.9
    assert classifier.feature_names_in_.tolist() == ["minutes", "country", "released"]
    assert classifier.n_features_in_ == 3
    predicted = classifier.predict(frame)
    assert list(predicted.columns) == ["musical", "christmas"]
    again = pickle.loads(pickle.dumps(classifier))
    as_text = frame.assign(
        released=frame["released"].astype(str), country=frame["country"].astype("category")
    )
    for other in (frame, as_text):
        pd.testing.assert_frame_equal(again.predict(other), predicted)
        np.testing.assert_array_equal(classifier.model_.predict(other), predicted)
    validated = quick(epochs=1).fit(frame[:80], y[:80], X_val=frame[80:], y_val=y[80:])
    assert validated.model_.feature_names == classifier.model_.feature_names
    assert clone(classifier)._encoded is None
    numbers = classifier.fit(frame[["minutes"]], y)
    assert numbers.predict(frame[["minutes"]]).shape == (120, 2)


def test_values_that_fit_did_not_see_are_missing_or_an_error(films):
    frame, y = films
    classifier = quick(epochs=1).fit(frame, y)
    strange, missing = frame[:3].assign(country="de"), frame[:3].assign(country=None)
    with pytest.warns(UserWarning, match=r"3 values .* count as missing: 3 of 'country' \('de'\)"):
        found = classifier.predict_proba(strange)
    pd.testing.assert_frame_equal(found, classifier.predict_proba(missing))
    with pytest.raises(ValueError, match="'de' in 'country' did not occur in training"):
        classifier.set_params(unknown="error").predict(strange)
    classifier.set_params(unknown="missing")
    with pytest.raises(ValueError, match="unknown must be missing or error, not 'ignore'"):
        quick(epochs=1, unknown="ignore").fit(frame, y, X_val=frame, y_val=y)


def test_frames_must_be_those_of_fit(films):
    frame, y = films
    classifier = quick(epochs=1).fit(frame, y)
    for wrong, message in (
        (frame[["country", "minutes"]], r"lacks 1 of the model's input columns \('released'\)"),
        (frame.rename(columns=str.title), "is 'Country' meant to be 'country'"),
        (frame.to_numpy(), "X is a ndarray; fit had a data frame with columns of text or dates"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.predict(wrong)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier.fit(frame, y[:7])
    turned = frame[frame.columns[::-1]].assign(extra=1)
    pd.testing.assert_frame_equal(classifier.predict(turned), classifier.predict(frame))
