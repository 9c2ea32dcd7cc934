import io
import re

import numpy as np
import pytest
from PIL import Image

from lossnet.report.draw import (
    SHAPES,
    WIDTH,
    Interval,
    Line,
    Point,
    heat_map,
    interval_chart,
    line_chart,
    png,
    shorten,
    signed,
    text_width,
    ticks,
    unit_chart,
)
from lossnet.report.markup import Markup, join, tag

# ---------------------------------------------------------------- markup


def test_everything_is_escaped_that_is_not_markup():
    assert tag("p", "<b>", tag("i", "&")) == "<p>&lt;b&gt;<i>&amp;</i></p>"
    assert (
        tag("a", href='"><script>', title="it's")
        == '<a href="&quot;&gt;&lt;script&gt;" title="it&#x27;s"></a>'
    )
    assert join("<", Markup("<hr>")) == "&lt;<hr>"


def test_joining_markup_with_text_by_hand_makes_it_text_again():
    """Adding strings must never make markup of what was not."""
    assert not isinstance(tag("b", "x") + "<script>", Markup)
    assert join(tag("b", "x") + "<script>") == "&lt;b&gt;x&lt;/b&gt;&lt;script&gt;"


def test_attributes():
    assert tag("img", alt="", hidden=True, width=None, height=False, data_value=0) == (
        '<img alt="" hidden data-value="0">'
    )


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (5, 7, 4), (1, 1)])
def test_png_files_come_back_as_they_were(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    read = Image.open(io.BytesIO(png(pixels)))
    read.load()
    np.testing.assert_array_equal(np.asarray(read), pixels)


def test_signed_values_survive_what_is_not_finite():
    assert signed(np.zeros((2, 2)))[..., 3].max() == 0
    assert signed(np.array([[np.nan, 1.0]]))[0, :, 3].tolist() == [0, 255]
    assert signed(np.array([[3.0]]), largest=1.0)[0, 0, 3] == 255


def test_a_heat_map_names_its_rows_and_columns():
    drawn = heat_map(np.eye(2), "what", ["a<b", "a very long name indeed"])
    assert drawn.count("a&lt;b") == 2
    assert drawn.count("<title>a very long name indeed</title>a very long na…<") == 2
    assert "<text" not in heat_map(np.eye(2), "what")


# ---------------------------------------------------------------- charts


def numbers(text, attribute):
    return [float(value) for value in re.findall(rf' {attribute}="(-?[\d.]+)"', text)]


def test_lines_stay_in_their_box_and_skip_what_is_not_finite():
    lines = [Line("one", (1, 2, 3), (0.0, float("nan"), 5.0)), Line("other", (1, 2), (-3.0, float("inf")), 7)]
    drawn = line_chart("a title", lines, across="epoch")
    assert drawn.count("<polyline") == 1
    points = re.search(r'points="([^"]+)"', drawn)[1].split()
    assert len(points) == 2
    assert all(0 <= float(x) <= 360 and 0 <= float(y) <= 210 for x, y in (p.split(",") for p in points))
    assert 'class="c1"' in drawn, "colours repeat"
    assert "nan" not in drawn
    assert line_chart("nothing", [Line("one", (), ())], across="epoch") == ""


def test_intervals_have_a_dot_for_each_seed():
    rows = [Interval("a", 2.0, 12.7, 0, (1.0, 3.0)), Interval("one seed", 5.0, None, 2, (5.0,))]
    drawn = interval_chart("f1", rows)
    assert 'class="c2"' in drawn, "a group keeps its colour"
    assert drawn.count('class="seed"') == 3
    assert drawn.count('class="line"') == 1
    assert all(0 <= x <= 360 for x in numbers(drawn, "x1") + numbers(drawn, "x2") + numbers(drawn, "cx"))


def test_epochs_are_marked_at_whole_numbers():
    """There is no epoch 1.5."""
    drawn = line_chart("a title", [Line("one", (1, 2), (0.5, 0.7))], across="epoch")
    assert re.findall(r'text-anchor="middle">([^<]+)<', drawn) == ["1", "2"]
    drawn = line_chart("a title", [Line("one", (0, 0.5, 1), (1, 2, 3))], across="share")
    assert re.findall(r'text-anchor="middle">([^<]+)<', drawn) == ["0", "0.2", "0.4", "0.6", "0.8", "1"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3, 12, [0, 5, 10]),
        (0.9995, 1.0005, [0.9996, 0.9998, 1, 1.0002, 1.0004]),
        (1e6, 5e6, [1e6, 2e6, 3e6, 4e6, 5e6]),
        (2, 2, [2]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high, 5) == pytest.approx(expected)


def test_a_chart_of_shares_has_its_corners_at_0_and_1():
    lines = [Line("diagonal", (0, 1), (0, 1), dashed=True)]
    points = [Point(shape, 0.5, 0.25, shape) for shape in SHAPES]
    drawn = unit_chart("a title", lines, "across", "up", points, counts=[0, 1000, 10])
    assert 'points="50.0,296.0 350.0,44.0"' in drawn
    assert drawn.count('transform="translate(200.0 233.0)"') == len(SHAPES)
    none, most, some = numbers(drawn, "height")
    assert 0 == none < some < most
    assert "<title>1,000</title>" in drawn
    assert "<rect" not in unit_chart("a title", lines, "across", "up", counts=[])


# ---------------------------------------------------------------- long names

LONG = ("W" * 60, "a label of many, many words " * 4, "長い名前" * 20, "x" * 400)


@pytest.mark.parametrize("name", LONG)
def test_long_names_are_shortened_and_shown_whole_as_one_points_at_them(name):
    charts = [
        heat_map(np.eye(2), "what", [name, "b"]),
        interval_chart(name, [Interval(name, 1.0, None)]),
        line_chart(name, [Line("one", (1, 2), (0, 1))], across="epoch"),
        unit_chart(name, [], "across", "up"),
    ]
    for drawn in charts:
        assert f"<title>{name}</title>" in drawn
        for shown in re.findall(r"<text[^>]*>(?:<title>[^<]*</title>)?([^<]*)</text>", drawn):
            assert text_width(shown) < WIDTH


def test_a_name_is_not_shortened_without_need():
    assert shorten("name", text_width("name")) == "name"
    assert shorten("names", text_width("names") - 1) == "nam…"
    assert shorten("name", 0) == "…"
