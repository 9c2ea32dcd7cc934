"""What the README and the pages under docs/ show must run."""

import dataclasses
import importlib
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lossnet import cli, run
from lossnet.build import METHODS
from lossnet.settings import Settings

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("**/*.md"))


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


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


def shown(page):
    """What a page says that each of its Python blocks prints, None where it does not say."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n.*?^```\n(?:\n```text\n(.*?)^```\n)?", text, re.DOTALL | re.MULTILINE)
    return [match[1] for match in found]


def check_printed(printed, said):
    """The same words in the same order, and numbers that differ by little: other machines round otherwise."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", said).split()
    numbers = ([float(number) for number in NUMBER.findall(text)] for text in (printed, said))
    assert next(numbers) == pytest.approx(next(numbers), abs=0.05, rel=0.05)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_python_in_a_page_runs_from_top_to_bottom_and_prints_what_it_says(
    page, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code, said in zip(blocks(page), shown(page), strict=True):
        exec(compile(code, str(page), "exec"), names)
        printed = capsys.readouterr().out
        if said is not None:
            check_printed(printed, said)


def test_what_is_printed_is_compared():
    check_printed("F1 0.83 of 3\n", "F1  0.81 of 3")
    for other in ("F1 0.93 of 3", "F1 0.83 of 4", "IoU 0.83 of 3"):
        with pytest.raises(AssertionError):
            check_printed("F1 0.83 of 3", other)


def commands(page):
    """The ``lossnet`` commands in a page's shell blocks, as words."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if match := re.match(r"(?:torchrun .* -m |srun .* )?lossnet (.*)", line):
                yield shlex.split(match[1].replace("…", "DATA"), comments=True)


def test_commands_in_the_pages_have_arguments_that_exist():
    parsers = cli.parsers()
    given = [words for page in (README, *PAGES) for words in commands(page)]
    assert len(given) > 50
    for command, *arguments in given:
        parsers[command].parse_args(arguments)  # exits for an unknown argument


@pytest.mark.parametrize("name", ["labels", "tags", "masks", "ten-labels"])
def test_the_notebook_of_a_tutorial_is_its_page(name):
    """Its cells are the very blocks that run above."""
    page, notebook = (ROOT / "docs" / "tutorials" / f"{name}.{kind}" for kind in ("md", "ipynb"))
    written = notebook.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(written)["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) for cell in cells] == [code.strip("\n") for code in blocks(page)]
    assert not any(cell["outputs"] for cell in cells)
    made = runpy.run_path(str(ROOT / "docs" / "tools" / "notebooks.py"))["text"](name)
    assert written == made, "the page has changed: make notebooks"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_page_with_its_equation(method):
    text = (ROOT / "docs" / "methods" / f"{method}.md").read_text(encoding="utf-8")
    assert text.count("$$") >= 2
    assert f"--method {method}" in text


def test_every_loss_is_explained():
    pages = {
        name: ROOT / "docs" / "methods" / f"{name}.md"
        for name in ("losses", "cross-entropy", "crf", "laco", "sgm", "rules", "structured-tuning")
    }
    text = "".join(page.read_text(encoding="utf-8") for page in pages.values())
    losses = {loss for entry in METHODS.values() for loss in entry.losses}
    assert [loss for loss in losses - {"likelihood"} if f"| `{loss}` |" not in text] == []


def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path):
    arguments = ["--fail-on-warning", "--keep-going", "--quiet", "-b", "html", ROOT / "docs", tmp_path]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.glob("**/*.html")}
    fetched = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^>]*>""")
    for name, path in pages.items():
        text = path.read_text(encoding="utf-8")
        assert fetched.findall(text) == [], name
    for path in tmp_path.glob("**/*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import", path.read_text(encoding="utf-8")), path
    assert "<math" in pages["methods/seal.html"].read_text(encoding="utf-8")
    commands = pages["reference/command-line.html"].read_text(encoding="utf-8")
    assert [
        name for name in cli.parsers() if f"lossnet {name}</h2>" not in re.sub("<a .*?</a>", "", commands)
    ] == []
    flags = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Settings)]
    assert [flag for flag in flags if f'id="cmdoption-lossnet-train-{flag[2:]}"' not in commands] == []
    rooms = {name: path for name, path in pages.items() if name.startswith("api/lossnet.")}
    assert len(rooms) > 20
    for name, path in rooms.items():
        text = path.read_text(encoding="utf-8")
        room = importlib.import_module(name.removeprefix("api/").removesuffix(".html"))
        absent = [name for name in room.__all__ if not re.search(rf'id="lossnet\.[\w.]*\b{name}"', text)]
        assert absent == [], room


def test_links_of_the_readme_work_on_pypi():
    """They are absolute, and those into the repository name files that it has."""
    links = re.findall(r"\]\(([^)]+)\)", README.read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith("https://")] == []
    ours = re.compile(
        r"https://(?:raw\.githubusercontent|github)\.com/lossnet/lossnet/(?:(?:blob|tree)/)?main/(.+)"
    )
    paths = [match[1] for match in map(ours.match, links) if match]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_messages_in_troubleshooting_are_those_of_the_library():
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [
        message
        for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        for message in re.findall("`(.*?)`", row)
    ]
    assert len(quoted) > 15
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").glob("**/*.py"))
    assert [message for message in quoted if message not in source] == []


def test_there_is_python_to_run():
    assert len(blocks(README)) == 4
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
