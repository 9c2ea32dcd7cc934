"""Columns by name at prediction time: values that training did not have, others, too few, dates."""

import numpy as np
import pandas as pd
import pytest

import lossnet
from lossnet.data import DataError, read
from lossnet.data.readers.text import Like, Unseen
from lossnet.inputs import Features

NAMES = ("minutes", "country=fr", "country=in")


@pytest.fixture
def features():
    return Features(NAMES)


@pytest.mark.parametrize(
    "given",
    [
        [{"minutes": 1, "country": "de"}, {"minutes": 2, "country": "fr"}, {"minutes": 3, "country": "pl"}],
        pd.DataFrame({"country": ["de", "fr", "pl"], "minutes": [1, 2, 3], "title": ["a", "b", "c"]}),
    ],
)
def test_values_that_training_did_not_have_are_missing(features, given):
    with pytest.warns(
        UserWarning, match=r"^2 values .* count as missing: 2 of 'country' \('de', 'pl'\)$"
    ) as said:
        rows = features.read(given).matrix
    assert len(said) == 1
    np.testing.assert_array_equal(rows, [[1, np.nan, np.nan], [2, 1, 0], [3, np.nan, np.nan]])
    with pytest.raises(DataError, match="row 1: 'de' in 'country' did not occur in training"):
        features.treating("error").read(given)


def test_they_are_treated_as_missing_values_in_training_were():
    train = Features(NAMES).read([{"minutes": 1, "country": "fr"}, {"minutes": 2, "country": None}])
    fitted = Features.fit([train], lossnet.inputs.Fitting(standardise=True))
    missing = fitted.prepare(fitted.read([{"minutes": 3, "country": None}])).matrix
    with pytest.warns(UserWarning, match="1 value that training did not have counts as missing"):
        unknown = fitted.read([{"minutes": 3, "country": "de"}])
    np.testing.assert_array_equal(fitted.prepare(unknown).matrix, missing)


def test_there_are_two_policies(features):
    with pytest.raises(ValueError, match="unknown must be missing or error, not 'ignore'"):
        features.treating("ignore")
    assert features.treating("error").state() == features.state()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"country": ["fr"]}, r"lacks 1 of the model's input columns \('minutes'\); the columns must be"),
        ({"Minutes": [1.0], "country": ["fr"]}, r"\('minutes'\); is 'Minutes' meant to be 'minutes'\?$"),
        (
            {"minute": [1.0], "county": ["fr"]},
            "is 'minute' meant to be 'minutes'?; is 'county' meant to be 'country'?",
        ),
    ],
)
def test_columns_that_are_missing_are_named(features, tmp_path, given, message):
    for given_as in (pd.DataFrame(given), pd.DataFrame(given).to_dict("records")):
        with pytest.raises(DataError, match=message.replace("?;", r"\?;")):
            features.read(given_as)
    pd.DataFrame(given).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match=r"a.csv:1: lacks"):
        next(features.stream(tmp_path / "a.csv"))


def test_a_file_is_warned_about_once(features, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("country,extra,minutes\n" + "".join(f"c{i % 5},x,{i}\n" for i in range(9000)))
    with pytest.warns(
        UserWarning, match=r"a.csv: 9000 values .* 9000 of 'country' \('c0', 'c1', 'c2'\)"
    ) as said:
        parts = list(features.stream(path))
    assert [len(part.examples) for part in parts] == [4096, 4096, 808]
    assert len(said) == 1
    with pytest.raises(DataError, match=r"a.csv:2: 'c0' in 'country' did not occur"):
        list(features.treating("error").stream(path))


def test_many_columns_of_strange_values_are_summed_up():
    unseen = Unseen()
    for number in range(8):
        unseen.add(f"c{number}", "x" * 100, count=10 - number)
    assert str(unseen).startswith(
        f"52 values that training did not have count as missing: 10 of 'c0' ('{'x' * 59}…"
    )
    assert str(unseen).endswith("others of 3 more columns")


def test_columns_are_known_by_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("at,kind,size,day,l\n2001-03-04 10:00,a,1,2001-03-04,0\n2002-03-04,b,2,2002-03-04,1\n")
    data = read(path, labels="l")
    columns = Like(data.feature_names, ()).columns
    assert {name: (column.kind, column.values) for name, column in columns.items()} == {
        "at": ("date and time", []),
        "kind": ("category", ["a", "b"]),
        "size": ("number", []),
        "day": ("date", []),
    }
    assert [name for column in columns.values() for name in column.features] == list(data.feature_names)
    # A number that happens to be called so is none of a date's.
    assert Like(("a:year", "b"), ()).columns["a:year"].kind == "number"


def test_objects_have_dates_and_other_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("day,kind,l\n2001-03-04,a,0\n2002-03-04,b,1\n")
    data = read(path, labels="l")
    features = Features(data.feature_names)
    row = features.parse({"kind": "b", "day": "4 March 2002", "other": {"any": "thing"}})
    np.testing.assert_array_equal(row, data.x[1])
    asked = {"kind": "c", "day": "soon"}
    assert features.unseen(asked) == [("kind", "c"), ("day", "soon")]
    assert np.isnan(features.parse(asked)).all()
    with pytest.raises(ValueError, match="'c' is no value of 'kind' that training had"):
        features.treating("error").parse(asked)
    assert features.unseen({"kind": None, "day": None}) == features.unseen([1.0]) == []
    for strange in ({"kind": "a", "day": True}, {"kind": [1], "day": "2001-03-04"}):
        with pytest.raises(ValueError, match="is neither text nor a number"):
            features.parse(strange)
