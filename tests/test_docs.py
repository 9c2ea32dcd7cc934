"""What the README and the pages under docs/ show must run."""

import re
from pathlib import Path

import pytest

from lossnet import run

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("**/*.md"))


def blocks(page):
    """The Python of a page, each block at the lines that it has there, so that errors point to them."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in found]


@pytest.mark.parametrize("code", blocks(README))
def test_python_in_the_readme_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "recipe_settings", lambda *names: {"epochs": 1, "task_hidden": 8})
    exec(compile(code, str(README), "exec"), {})


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_python_in_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), names)


def test_there_is_python_to_run():
    assert len(blocks(README)) == 3
    assert any(blocks(page) for page in PAGES)


def test_the_saddle_is_solved_as_the_page_says(capsys):
    """The last block of the page on implicit gradients prints what stands under it."""
    page = ROOT / "docs" / "hypergradient.md"
    names = {}
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), names)
    numbers = re.compile(r"-?\d+\.\d*")
    printed = [[float(n) for n in numbers.findall(line)] for line in capsys.readouterr().out.splitlines()]
    lines = re.findall(r"^    \w+ +\[(.*?)\]", page.read_text(encoding="utf-8"), re.MULTILINE)
    written = [[float(n) for n in numbers.findall(line)] for line in lines]
    assert len(written) == 6
    assert written == [pytest.approx(row, abs=0.006) for row in printed]
