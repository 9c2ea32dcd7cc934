"""Put the page together and write it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from lossnet.files import write_text
from lossnet.report import overview
from lossnet.report.evidence import Fresh, Section, Tell, collect
from lossnet.report.markup import Markup, join, missing, tag
from lossnet.report.runs import Comparison, compare, read_run


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
        output: the HTML file; ``report.html`` in the first folder by default.
        data_dir: where data sets are, to show examples; without data the page shows the rest.
        progress: show on standard error what is being done.
        fresh: models and data that are still in memory, by the folders of their runs; others are read.
    """
    if not folders:
        raise ValueError("give at least one run's folder")
    unique = list({Path(folder).resolve(): folder for folder in folders}.values())
    comparison = compare([read_run(folder) for folder in unique])
    path = Path(folders[0]) / "report.html" if output is None else Path(output)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file for the page")
    with Console(stderr=True, quiet=not progress).status("reading runs") as status:
        page = _page(comparison, data_dir, lambda text: status.update(escape(text)), fresh)
    write_text(path, page)
    return path


def _page(comparison: Comparison, data_dir: Path | str | None, tell: Tell, fresh: Fresh | None) -> str:
    sections = [
        Section("Comparison", overview.figures(comparison)),
        Section("Learning curves", overview.curves(comparison)),
    ]
    try:
        evidence = collect(comparison, None if data_dir is None else Path(data_dir), tell, fresh)
    except (ValueError, OSError, ImportError) as error:
        hint = "Give --data-dir if the data are elsewhere; the rest of this page does not need them."
        sections.append(Section("Predictions", missing(f"No examples: {error}. {hint}")))
    else:
        sections += evidence.subject.model.task.output.panels(evidence, tell)
    sections.append(Section("Settings", overview.settings(comparison)))
    links, parts = [], []
    for title, body in sections:
        name = title.lower().replace(" ", "-")
        links.append(tag("a", title, href=f"#{name}"))
        parts.append(tag("section", tag("h2", title), body, id=name))
    return _document(comparison.title, join(overview.summary(comparison), tag("nav", *links), *parts))


def _document(title: str, content: Markup) -> str:
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
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("body", tag("main", content), tag("script", Markup(script)))
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"
