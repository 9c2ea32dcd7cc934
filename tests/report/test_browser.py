"""The page in a real browser."""

import numpy as np
import pytest

from lossnet.data import MultiLabelData
from lossnet.report import write
from lossnet.run import Run, carry_out
from lossnet.settings import Settings

ROWS = "[...document.querySelectorAll('#labels-table tbody tr')]"
SHOWN = f"{ROWS}.filter(row => row.offsetParent !== null).map(row => row.cells[0].textContent)"


@pytest.fixture(scope="module")
def labels_page(label_runs, tmp_path_factory):
    return write(label_runs, tmp_path_factory.mktemp("page") / "labels.html", progress=False)


@pytest.fixture(scope="module")
def masks_page(mask_runs, tmp_path_factory):
    return write(mask_runs, tmp_path_factory.mktemp("page") / "masks.html", progress=False)


@pytest.fixture(scope="module")
def tags_page(tag_runs, tmp_path_factory):
    return write(tag_runs, tmp_path_factory.mktemp("page") / "tags.html", progress=False)


@pytest.fixture(scope="module")
def long_names_page(tmp_path_factory):
    """Hundreds of labels with long names, and runs in folders of long names."""
    folder = tmp_path_factory.mktemp("long")
    random = np.random.default_rng(0)
    kinds = (
        "W" * 60,
        "Steuerbefreiungsvorschriftenverzeichnis",
        "words, as committees write them, with",
        "长" * 30,
    )
    names = [f"{kinds[number % 4]} {number}" for number in range(220)]
    x = random.normal(size=(120, 3))
    data = MultiLabelData.from_arrays(x, random.random((120, 220)) < 0.2, label_names=names)
    settings = Settings(epochs=1, task_hidden=8, energy_hidden=8, global_hidden=4, samples=2)
    fresh = {}
    for method in ("seal", "cross-entropy"):
        run = Run("n" * 60, method, settings=settings, output=folder / f"{method}-{'x' * 60}", progress=False)
        fresh[run.output] = carry_out(run, data)[1:]
    return write(list(fresh), folder / "page.html", progress=False, fresh=fresh)


@pytest.fixture(params=["labels_page", "masks_page", "tags_page", "long_names_page"])
def page(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def opened(browser, labels_page):
    browser.look(1280, 900)
    browser.open(labels_page)
    return browser


def click(browser, column):
    browser.run(f"document.querySelectorAll('#labels-table th button')[{column}].click()")


def column(browser, number):
    values = browser.run(f"{ROWS}.map(row => row.cells[{number}].dataset.value ?? null)")
    return [None if value is None else float(value) for value in values]


def test_nothing_is_complained_of_and_nothing_is_fetched(browser, page):
    browser.look(1280, 900)
    browser.open(page)
    assert browser.complaints == []
    assert browser.requested() == [page.resolve().as_uri()]
    assert browser.run("[...document.images].every(image => image.complete && image.naturalWidth > 0)")


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_never_scrolls_sideways(browser, page, width):
    browser.look(width, 844, phone=width < 500)
    browser.open(page)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("innerWidth") == width, "a phone has not zoomed out to make it fit"


@pytest.mark.parametrize("width", [390, 1280])
def test_no_name_is_cut_off(browser, page, width):
    """Nothing but the row of links has to be scrolled sideways to be read."""
    browser.look(width, 844, phone=width < 500)
    browser.open(page)
    script = """[...document.querySelectorAll("main *:not(svg *):not(nav)")].filter(one =>
        one.offsetParent && getComputedStyle(one).display !== "inline" && one.clientWidth > 0
        && one.scrollWidth > one.clientWidth + 1).map(one => one.tagName + one.className + one.textContent)"""
    assert browser.run(script) == []


def test_no_text_of_a_chart_is_cut_off(browser, page):
    browser.look(1280, 900)
    browser.open(page)
    script = """[...document.querySelectorAll("svg text")].filter(text => {
        const [inner, outer] = [text, text.ownerSVGElement].map(one => one.getBoundingClientRect());
        return inner.width > 0 && (inner.left < outer.left - 1 || inner.right > outer.right + 1
            || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1);
    }).map(text => text.textContent)"""
    assert browser.run(script) == []


def test_in_the_dark_the_paper_is_dark_and_the_ink_is_light(browser, page):
    browser.open(page)
    for dark in (False, True):
        browser.look(1280, 900, dark=dark)
        paper, ink = (
            browser.run(f"getComputedStyle(document.body).{name}.match(/\\d+/g).map(Number)[0]")
            for name in ("backgroundColor", "color")
        )
        assert (paper < 60 and ink > 200) if dark else (paper > 200 and ink < 60)


def test_columns_sort_both_ways_and_what_is_missing_comes_last(opened):
    for number in (1, 4, 6):
        click(opened, number)
        falling = column(opened, number)
        click(opened, number)
        rising = column(opened, number)
        known = sorted(value for value in rising if value is not None)
        assert rising == known + [None] * (len(rising) - len(known))
        assert falling == known[::-1] + [None] * (len(rising) - len(known))
        sorts = opened.run("[...document.querySelectorAll('#labels-table th')].map(head => head.ariaSort)")
        assert sorts.count("none") == len(sorts) - 1
        assert sorts[number] == "ascending"


def test_names_sort_too(opened):
    click(opened, 0)
    names = opened.run(SHOWN)
    click(opened, 0)
    assert opened.run(SHOWN) == names[::-1]
    assert sorted(names) == sorted(opened.run(SHOWN))


def type_in(browser, text, table="labels-table"):
    browser.run(
        f"(() => {{const i = document.querySelector('input[data-filters={table}]'); i.value = {text!r};"
        "i.dispatchEvent(new Event('input'))})()"
    )


def test_rows_are_filtered_by_name(opened):
    for text, expected in (("GRÜN", ["grün"]), ("nothing like it", []), (" plain ", ["plain"])):
        type_in(opened, text)
        assert opened.run(SHOWN) == expected
        count = opened.run("document.querySelector('.filter .note').textContent")
        assert count == f"{len(expected)} of 4"
    click(opened, 1)
    assert opened.run(SHOWN) == ["plain"], "sorting keeps the filter"
    type_in(opened, "")
    assert len(opened.run(SHOWN)) == 4


def test_tags_and_spans_sort_and_filter_each_on_its_own(browser, tags_page):
    browser.look(1280, 900)
    browser.open(tags_page)
    browser.run("document.querySelectorAll('#tags-table th button')[1].click()")
    counts = browser.run(
        "[...document.querySelectorAll('#tags-table tbody tr')].map(r => +r.cells[1].dataset.value)"
    )
    assert counts == sorted(counts, reverse=True)
    type_in(browser, "PER", table="tags-table")
    for table, expected in (("tags-table", 4), ("spans-table", 2)):
        rows = f"[...document.querySelectorAll('#{table} tbody tr')].filter(row => !row.hidden).length"
        assert browser.run(rows) == expected


def luminance(browser, color):
    """Of a colour as the page computes it, relative to white's (WCAG)."""
    script = f"(() => {{const c = document.createElement('canvas').getContext('2d'); c.fillStyle = {color!r};"
    levels = browser.run(script + "c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data]})()")
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (p / 255 for p in levels)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_tags_can_be_read_on_their_colours(browser, tags_page, dark):
    browser.look(1280, 900, dark=dark)
    browser.open(tags_page)
    browser.run("mark = document.querySelector('.card').appendChild(document.createElement('span'))")
    for colour in range(7):
        browser.run(f"mark.className = 'mark t{colour}'")
        style = "getComputedStyle(mark)"
        paper, ink = browser.run(f"[{style}.backgroundColor, {style}.color]")
        light, dim = sorted((luminance(browser, paper), luminance(browser, ink)), reverse=True)
        assert (light + 0.05) / (dim + 0.05) > 7, "the strictest of WCAG's contrasts"


def test_hostile_names_have_done_nothing(opened):
    assert opened.run("document.scripts.length") == 1
    assert "<script>alert(1)</script>" in opened.run(SHOWN)
    assert opened.complaints == []
