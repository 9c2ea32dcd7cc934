"""Pages for people: what a server is for, and a form to try it, which fetch nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

import lossnet
from lossnet.build import names_title
from lossnet.model import Model
from lossnet.outputs import Labels

#: labels and columns that a page names, and characters of an example on a command line
_MOST_NAMES, _MOST_CHARACTERS = 50, 2000
_SET_LABELS = '<a href="try">set labels</a> '


def home(model: Model, name: str, address: str, guarded: bool) -> str:
    """Return the page about a model that is served at an address, under a name."""
    trained = f"Trained by {names_title(*model.names)}"
    about = f"Predicts {model.task.title}. {trained}; served by Lossnet {lossnet.__version__}."
    names, wanted = model.label_names, model.task.input.wanted()
    parts = [
        f"<h1>{escape(name or model.task.title)}</h1>",
        f"<p>{escape(about)}</p>",
        f'<nav>{_SET_LABELS * sets_labels(model)}<a href="docs">try it</a> <a href="health">health</a> '
        '<a href="metrics">metrics</a> <a href="openapi.json">OpenAPI</a></nav>',
    ]
    if names:
        parts += ["<h2>What it predicts</h2>", f"<p>{_some(names)}</p>"]
    if wanted:
        more = f"; {len(wanted) - _MOST_NAMES} more are not shown" * (len(wanted) > _MOST_NAMES)
        about = f"An instance needs each of {len(wanted)} columns, null where a value is missing{more}."
        about += " Other columns are passed over."
        parts += [
            "<h2>Columns wanted</h2>",
            f"<p>{about}</p>",
            _table(("column", "holds"), wanted[:_MOST_NAMES]),
        ]
    request = example(model)
    if len(request) <= _MOST_CHARACTERS:
        given, before = shlex.quote(request), ""
    else:
        given, before = "@request.json", "<p>With this in <code>request.json</code>, shortened here:</p>"
        before += f"<pre>{escape(request[:_MOST_CHARACTERS])} …</pre>"
    lines = [f"curl -s {shlex.quote(address + 'predict')}", "-H 'content-type: application/json'"]
    lines += ["-H 'authorization: Bearer TOKEN'"] * guarded + [f"-d {given}"]
    command = " \\\n  ".join(lines)
    parts += ["<h2>Ask it</h2>", before, f'<pre class="wrap">{escape(command)}</pre>']
    return _document(name or "Lossnet", parts)


def sets_labels(model: Model) -> bool:
    """Whether labels of a model can be set and ruled out on a page."""
    return model.conditional is not None and isinstance(model.task.output, Labels)


def partly(model: Model, name: str, guarded: bool) -> str:
    """Return the page on which labels are set or ruled out, and the chances of the others move at once."""
    from lossnet.report.draw import pixel_places

    sample = model.task.input.sample()
    given = escape(json.dumps(sample, ensure_ascii=False))
    token = (
        '<label for="token">Token</label><input id="token" name="token" type="password" autocomplete="off">'
    )
    places = pixel_places(model.label_names)
    kind = "labels" if places is None else "labels pixels"
    top, left = (0, 0) if places is None else map(min, zip(*places, strict=True))
    buttons = []
    for number, label in enumerate(model.label_names):
        at = ""
        if places is not None:
            row, column = places[number]
            at = f' style="grid-area: {row - top + 1} / {column - left + 1}"'
        text = escape(label)
        buttons.append(
            f'<button type="button" data-label="{text}" data-state="open"{at}>{text} '
            "<output></output></button>"
        )
    parts = [
        f"<h1>{escape(name or model.task.title)}</h1>",
        "<p>Click a label once if it is there, twice if it is not, three times to leave it open.</p>",
        '<nav><a href=".">about the model</a> <a href="docs">requests</a></nav>',
        f'<div class="{kind}">{"".join(buttons)}</div>',
        '<p id="said" role="status"></p><button type="button" id="open">Leave all open</button>',
        f'<form>{token * guarded}<label for="request">Instance</label>',
        f'<textarea id="request" name="request" rows="6" spellcheck="false">{given}</textarea>',
        "<button>Predict</button></form>",
    ]
    return _document(name or "Lossnet", parts, script="try.js")


def docs(model: Model, openapi: Mapping[str, Any], guarded: bool) -> str:
    """Return the page about an application's OpenAPI document, with a form that asks for predictions."""
    info = openapi["info"]
    token = (
        '<label for="token">Token</label><input id="token" name="token" type="password" autocomplete="off">'
    )
    request = escape(json.dumps(json.loads(example(model)), indent=1, ensure_ascii=False))
    rows = min(request.count("\n") + 2, 25)
    parts = [
        f"<h1>{escape(info['title'])}</h1>",
        f"<p>{escape(info.get('summary', ''))} Version {escape(info['version'])}.</p>",
        '<nav><a href=".">about the model</a> <a href="openapi.json">OpenAPI</a></nav>',
        "<h2>Try it</h2>",
        f'<form>{token * guarded}<label for="request">Request to /predict</label>',
        f'<textarea id="request" name="request" rows="{rows}" spellcheck="false">{request}</textarea>',
        '<button>Send</button></form><p id="said" role="status"></p><pre id="answer" hidden></pre>',
    ]
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            parts += _operation(path, method, operation)
    return _document(f"{info['title']}: requests", parts, script="page.js")


def example(model: Model) -> str:
    """Return the JSON of an example request."""
    sample = model.task.input.sample()
    return json.dumps({"instances": [] if sample is None else [sample]}, ensure_ascii=False)


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterable[str]:
    yield f'<h2><span class="method">{escape(method.upper())}</span> <code>{escape(path)}</code></h2>'
    yield f"<p>{escape(operation.get('description', ''))}</p>"
    body = operation.get("requestBody")
    if body is not None:
        yield f"<details><summary>schema of a request</summary>{_schema(body)}</details>"
    rows = []
    for status, response in operation["responses"].items():
        rows.append((status, response["description"]))
        if status == "200" and _schema(response):
            yield f"<details><summary>schema of an answer</summary>{_schema(response)}</details>"
    yield _table(("status", "when"), rows)


def _schema(part: Mapping[str, Any]) -> str:
    content = part.get("content", {}).get("application/json", {}).get("schema")
    return f"<pre>{escape(json.dumps(content, indent=1, ensure_ascii=False))}</pre>" if content else ""


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"<code>{escape(name)}</code>" for name in names[:_MOST_NAMES])
    return shown + f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heading = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table></div>'


def _document(title: str, parts: Iterable[str], script: str = "") -> str:
    """Return a page that runs no script but its own, and asks no other server for anything."""
    here = resources.files("lossnet.serve")
    style, code = (here.joinpath(name).read_text("utf-8") if name else "" for name in ("page.css", script))
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; script-src 'sha256-{digest}'"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{style}</style></head>'
        f"<body><main>{''.join(parts)}</main>{f'<script>{code}</script>' if code else ''}</body></html>\n"
    )
