"""Figures on pages are those of the results: one that is changed, as to its neighbour, is noticed."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import blocks  # noqa: E402
import figures  # noqa: E402


def is_of_results(page):
    """Whether all numbers of a page are figures."""
    return page.parent == figures.RESULTS


def places(part, every):
    """Where the figures of a part of a page are."""
    text = figures.NO_TEXT.sub(lambda match: " " * len(match[0]), part)
    sourced = [range(*match.span("figure")) for match in figures.MARKED.finditer(part)]
    numbers = {match.span() for match in figures.NUMBER.finditer(text)}
    if not every and not part.startswith("<!-- made"):
        measured = {match.span() for match in figures.MEASURED.finditer(text)}
        numbers = {span for span in numbers if span in measured or any(span[0] in one for one in sourced)}
    return sorted(numbers)


def changes(part, every):
    """The part with one figure changed, for each: to the next other one there, and in its last digit."""
    spans = places(part, every)
    texts = [part[slice(*span)] for span in spans]
    for number, ((start, end), text) in enumerate(zip(spans, texts, strict=True)):
        neighbours = [*texts[number + 1 :], *reversed(texts[:number])]
        other = next((one for one in neighbours if one.lstrip("+") != text.lstrip("+")), None)
        for new in (other, text[:-1] + str((int(text[-1]) + 1) % 10)):
            if new is not None:
                yield f"{text} → {new}", part[:start] + new + part[end:]


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_figures_are_current_and_have_a_source(page):
    assert figures.problems(page.read_text(encoding="utf-8"), is_of_results(page)) == []


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_changed_figure_is_noticed(page):
    every = is_of_results(page)
    parts = figures.parts(page.read_text(encoding="utf-8"))
    changed = [one for part in parts for one in changes(part, every)]
    assert [what for what, part in changed if not figures.problems(part, every)] == []
    assert changed or not every


def test_a_figure_is_changed_to_its_neighbour():
    part = "| a | 1.5 ± 0.2 | 1.5 ± 0.3 |"
    found = [text for _, text in changes(part, every=True)]
    assert "| a | 0.2 ± 0.2 | 1.5 ± 0.3 |" in found
    assert "| a | 1.5 ± 0.2 | 1.5 ± 0.4 |" in found
    assert len(found) == 8
    source = "2.5<!-- mlc / bibtex / CE, tuned / f1 -->"
    assert [what for what, _ in changes(f"F1 is {source} and 3", every=False)] == ["2.5 → 2.6"]


def test_every_table_of_results_is_on_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in figures.pages())
    assert sorted(re.findall(r"<!-- made: (.*?) -->", pages)) == sorted(blocks.BLOCKS)


@pytest.mark.parametrize("name", ["digits", "implicit", "mlc", "segmentation", "tagging"])
def test_every_run_is_in_a_table(name):
    lines = (figures.RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    titles = {json.loads(line)["title"] for line in lines}
    words = {**blocks.SCENES, **blocks.EARLIER_SCENES, **blocks.NOT_CHOSEN} if name == "segmentation" else {}
    tables = "\n".join(figures.made(block) for block in blocks.BLOCKS if block.partition(" / ")[0] == name)
    assert [title for title in titles if f"| {words.get(title, title)} |" not in tables] == []
