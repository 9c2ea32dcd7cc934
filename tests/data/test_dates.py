"""Columns of dates: what is one, what it becomes, and what is kept for prediction."""

import datetime as dt
import math

import numpy as np
import pandas as pd
import pytest

from lossnet.data import DataError, read, read_inputs, stream_inputs
from lossnet.data.readers import read_frame
from lossnet.data.readers.dates import date_features, date_names, has_time, read_date


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "2001-03-04",
        "2001/3/4",
        "2001.03.04",
        "4.3.2001",
        "04.03.2001",
        "4 March 2001",
        "4th Mar. 2001",
        "04-Mar-2001",
        "March 4, 2001",
        "Mar 4 2001",
    ],
)
@pytest.mark.parametrize(
    ("clock", "time"), [("", (0, 0, 0)), (" 09:30", (9, 30, 0)), ("T23:05:06Z", (23, 5, 6))]
)
def test_dates_in_many_forms(text, clock, time):
    assert read_date(text + clock) == dt.datetime(2001, 3, 4, *time)


@pytest.mark.parametrize(
    "cell",
    [
        "03/04/2001",
        "03-04-2001",
        "2001-13-01",
        "2001-02-30",
        "2001-03/04",
        "4 Ma 2001",
        "4 Ju 2001",
        "20010304",
        "2001-03",
        "2001-03-04 25:00",
        "2001-03-04 soon",
        "٢٠٠١-٠٣-٠٤",
        "0000-01-01",
        "",
        "2001",
        2001.0,
        None,
        pd.NaT,
    ],
)
def test_what_is_no_date(cell):
    assert read_date(cell) is None


def test_typed_dates_count_as_they_are_written():
    zone = dt.timezone(dt.timedelta(hours=5))
    assert read_date(dt.date(2001, 3, 4)) == dt.datetime(2001, 3, 4)
    assert read_date(pd.Timestamp("2001-03-04 10:00")) == dt.datetime(2001, 3, 4, 10)
    assert read_date(dt.datetime(2001, 3, 4, 10, tzinfo=zone)) == dt.datetime(2001, 3, 4, 10)
    assert read_date("2001-03-04T10:00:00.25+05:00") == dt.datetime(2001, 3, 4, 10)


def test_features_are_those_documented():
    dates = [dt.datetime(2024, 12, 31, 18, 30), dt.datetime(1969, 12, 31), None]
    found = dict(zip(date_names("d", timed=True), date_features(dates, timed=True).T, strict=True))
    for row, (year, month, weekday, yearday, hour, days) in enumerate(
        [(2024, 11, 1, 365, 18.5, 20088), (1969, 11, 2, 364, 0, -1)]
    ):
        assert (found["d:year"][row], found["d:days"][row]) == (year, days)
        for part, turn in (
            ("month", month / 12),
            ("weekday", weekday / 7),
            ("yearday", yearday / 365.25),
            ("hour", hour / 24),
        ):
            assert found[f"d:{part}_sin"][row] == pytest.approx(math.sin(2 * math.pi * turn), abs=1e-6)
            assert found[f"d:{part}_cos"][row] == pytest.approx(math.cos(2 * math.pi * turn), abs=1e-6)
    assert all(np.isnan(values[2]) for values in found.values())
    assert has_time(dates)
    assert not has_time(dates[1:])
    # December is beside January, and Sunday beside Monday.
    near, far = (
        date_features([dt.datetime(2001, 12, 15), dt.datetime(2001, m, 15)], False)[:, 1:3] for m in (1, 6)
    )
    assert np.linalg.norm(near[0] - near[1]) < 0.6 < 1.9 < np.linalg.norm(far[0] - far[1])


ROWS = "released,size,l\n2001-03-04,1,0\n,2,1\n2003-07-09,3,1\n"


def test_tables_with_dates_are_read_again_alike(tmp_path):
    path = write(tmp_path / "a.csv", ROWS)
    data = read(path, labels="l")
    assert data.feature_names == (*date_names("released", timed=False), "size")
    assert data.source.origin.used == {"released": "date, as 8 inputs", "size": "number"}
    assert data.x[[0, 2], 0].tolist() == [2001, 2003]
    assert np.isnan(data.x[1, :8]).all()
    new = write(tmp_path / "b.csv", "extra,size,released\nx,3,9 July 2003\ny,1,04.03.2001\n")
    again = read_inputs(new, data.feature_names, ["l"])
    np.testing.assert_array_equal(again.x, data.x[[2, 0]])
    (streamed,) = stream_inputs(new, data.feature_names, ["l"])
    np.testing.assert_array_equal(streamed.x, again.x)


def test_times_are_kept_where_training_had_some(tmp_path):
    data = read(write(tmp_path / "a.csv", "at,l\n2001-03-04 10:00,0\n2001-03-05,1\n"), labels="l")
    assert data.feature_names == tuple(date_names("at", timed=True))
    again = read_inputs(write(tmp_path / "b.csv", "at\n2001-03-05\n"), data.feature_names, ["l"])
    np.testing.assert_array_equal(again.x, data.x[1:])


def test_dates_that_cannot_be_read_are_missing(tmp_path):
    rows = "".join(f"2001-03-{day:02},{day % 2}\n" for day in range(1, 20))
    path = write(tmp_path / "a.csv", f"released,l\n{rows}soon,1\nNA,0\n")
    with pytest.warns(
        UserWarning, match=r"1 of 20 values of 'released' are no dates \('soon'\) and count as miss"
    ):
        data = read(path, labels="l")
    assert np.isnan(data.x[19:]).all()
    assert not np.isnan(data.x[:19]).any()
    with pytest.warns(UserWarning, match=r"a.csv: 1 value .* counts as missing: 1 of 'released' \('soon'\)"):
        again = read_inputs(path, data.feature_names, ["l"])
    np.testing.assert_array_equal(again.x, data.x)
    with pytest.raises(DataError, match=r"a.csv:21: 'soon' in 'released' is not a date"):
        read_inputs(path, data.feature_names, ["l"], unknown="error")


def test_columns_of_which_a_fifth_are_no_dates_are_categories(tmp_path):
    path = write(tmp_path / "a.csv", "when,l\n" + "2001-03-04,1\n" * 4 + "soon,0\n")
    assert read(path, labels="l").feature_names == ("when=2001-03-04", "when=soon")


def test_a_year_beside_dates_counts_as_missing(tmp_path):
    rows = "".join(f"2001-03-{day:02},{day % 2}\n" for day in range(1, 20))
    with pytest.warns(UserWarning, match=r"no dates \('2001'\)"):
        data = read(write(tmp_path / "a.csv", f"released,l\n{rows}2001,1\n"), labels="l")
    assert np.isnan(data.x[19]).all()


def test_dates_whose_month_cannot_be_told_are_left_out_with_advice(tmp_path):
    rows = "".join(f"{1 + i % 12:02}/{1 + i // 12:02}/{2001 + i % 2},{i % 7},{i % 2}\n" for i in range(60))
    with pytest.warns(UserWarning, match="'01/01/2001' may be read in two ways; write dates as 2001-03-04"):
        data = read(write(tmp_path / "a.csv", f"when,size,l\n{rows}"), labels="l")
    assert data.feature_names == ("size",)


def test_frames_and_parquet_have_typed_dates(tmp_path):
    expected = read(write(tmp_path / "a.csv", ROWS), labels="l")
    frame = pd.read_csv(tmp_path / "a.csv", parse_dates=["released"])
    np.testing.assert_array_equal(read_frame(frame, "l").x, expected.x)
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    dates = [dt.date(2001, 3, 4), None, dt.date(2003, 7, 9)]
    times = [None if day is None else dt.datetime(day.year, day.month, day.day) for day in dates]
    for given, kind in (
        (dates, pyarrow.date32()),
        (dates, pyarrow.date64()),
        (times, pyarrow.timestamp("ns")),
        (times, pyarrow.timestamp("s", "UTC")),
    ):
        column = pyarrow.array(given, kind)
        parquet.write_table(pyarrow.table({"released": column, "size": [1, 2, 3], "l": [0, 1, 1]}), path)
        np.testing.assert_array_equal(read(path, labels="l").x, expected.x)
