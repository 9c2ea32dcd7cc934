"""Put the page together and write it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from importlib import resources
from itertools import chain, count
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from lossnet.files import write_text
from lossnet.report import overview
from lossnet.report.evidence import Fresh, Section, Tell, Trained, collect, load_models
from lossnet.report.markup import Markup, join, missing, tag
from lossnet.report.runs import Comparison, compare, read_run

#: bytes of runs' names in the name of a page
_LONGEST_NAME = 120


def write(
    folders: Sequence[Path | str],
    output: Path | str | None = None,
    data_dir: Path | str | None = None,
    progress: bool = True,
    fresh: Fresh | None = None,
) -> Path:
    """Write the page about one or more runs on the same data, and return its path.

    Args:
        folders: of runs.  Those that differ in their seed alone are shown together.
        output: the HTML file; by default ``report.html`` in the folder of a single run, and
            ``report-A-B.html`` beside the folders A and B of several.  A page about other runs, or any other
            file, is not replaced: there, a default name gets a number, and another one is an error.
        data_dir: where data sets are, to show examples; without data the page shows the rest.
        progress: show on standard error what is being done.
        fresh: models and data that are still in memory, by the folders of their runs; others are read.
    """
    if not folders:
        raise ValueError("give at least one run's folder")
    unique = list({Path(folder).resolve(): folder for folder in folders}.values())
    comparison = compare([read_run(folder) for folder in unique])
    path = _free_path(unique) if output is None else Path(output)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file for the page")
    if not _may_be_written(path, unique):
        what = f"{path} is there already, and is not a page about these runs"
        raise ValueError(f"{what}; give another --output, or remove it")
    with Console(stderr=True, quiet=not progress).status("reading runs") as status:
        about = _about(unique, path)
        page = _page(comparison, data_dir, lambda text: status.update(escape(text)), fresh, about)
    write_text(path, page)
    return path


def _free_path(folders: Sequence[Path | str]) -> Path:
    """Return where a page about these runs goes by default, which is no place of another page."""
    if len(folders) == 1:
        path = Path(folders[0]) / "report.html"
    else:
        absolute = sorted(map(os.path.abspath, folders))
        parent = Path(os.path.commonpath(absolute))
        if parent == Path(parent.anchor) or not os.access(parent, os.W_OK):
            parent = Path.cwd()
        names = []
        for folder in absolute:
            parts = Path(os.path.relpath(folder, parent)).parts
            names.append("-".join(part for part in parts if part != os.pardir) or Path(folder).name)
        joined = "-".join(names)
        if len(os.fsencode(joined)) > _LONGEST_NAME:
            joined = f"{names[0][: _LONGEST_NAME // 4]}-and-{len(names) - 1}-others"
        if not any(map(os.path.isabs, folders)):
            parent = Path(os.path.relpath(parent))
        path = parent / f"report-{joined}.html"
    numbered = (path.with_name(f"{path.stem}-{number}.html") for number in count(2))
    return next(one for one in chain([path], numbered) if _may_be_written(one, folders))


def _may_be_written(path: Path, folders: Sequence[Path | str]) -> bool:
    """Whether there is nothing in a place, or a page about the same runs."""
    if not path.exists():
        return True
    return path.is_file() and _about(folders, path).encode() in path.read_bytes()


def _about(folders: Sequence[Path | str], path: Path) -> Markup:
    """Return an element that says which runs a page is about, from where it is, so that both can be moved."""
    where = path.absolute().parent.resolve()
    runs = sorted(os.path.relpath(Path(folder).resolve(), where) for folder in folders)
    return tag("meta", name="lossnet-runs", content=json.dumps(runs))


def _page(
    comparison: Comparison, data_dir: Path | str | None, tell: Tell, fresh: Fresh | None, about: Markup
) -> str:
    models: list[Trained] = []
    try:
        models = load_models(comparison, fresh)
        evidence = collect(comparison, models, None if data_dir is None else Path(data_dir), tell)
    except (ValueError, OSError, ImportError) as error:
        hint = "Give --data-dir if the data are elsewhere; the rest of this page does not need them."
        panels = [Section("Predictions", missing(f"No examples: {error}. {hint}"))]
    else:
        panels = evidence.subject.model.task.output.panels(evidence, tell)
    choices = overview.choices(comparison)
    sections = [
        Section("Comparison", overview.figures(comparison, models)),
        *([Section("Choice of method", choices)] if choices else []),
        Section("Training", overview.training(comparison, models)),
        Section("Learning curves", overview.curves(comparison)),
        *panels,
        Section("Settings", overview.settings(comparison)),
    ]
    links, parts = [], []
    for title, body in sections:
        name = title.lower().replace(" ", "-")
        links.append(tag("a", title, href=f"#{name}"))
        parts.append(tag("section", tag("h2", title), body, id=name))
    content = join(overview.summary(comparison, models), tag("nav", *links), *parts)
    return document(comparison.title, content, about)


def document(title: str, content: Markup, about: Markup | None = None) -> str:
    """Return the HTML file, which fetches nothing and runs no script but its own."""
    here = resources.files("lossnet.report")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        about,
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("body", tag("main", content), tag("script", Markup(script)))
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"
