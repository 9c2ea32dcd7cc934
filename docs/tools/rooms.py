"""The reference: the public API, and a page for each room of ``src/lossnet`` with what its ``__all__`` names.

Pages are written to ``docs/api`` before each build.  A new room or public name needs no line here: it comes
after those that `PUBLIC` and `ORDER` name.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path
from types import ModuleType

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer

import lossnet

#: what most people import, by purpose
PUBLIC = {
    "Estimators for scikit-learn": ("MultiLabelClassifier", "SequenceTagger", "Segmenter"),
    "Runs and their models": ("train", "Run", "Settings", "load", "Model", "Ensemble"),
    "Rules and parts of your own": ("rule", "OwnParts"),
    "Your own training": ("LearnedLoss", "Trainer", "MultiLabel", "Tags", "Mask"),
}
#: rooms from the concepts of the papers outwards; `LAST` are of use inside the library alone
ORDER = (
    *("spaces", "scores", "decoding", "nets", "energies", "losses", "inference", "hypergradient", "methods"),
    *("learned_loss", "training", "inputs", "outputs", "task", "data", "loading", "settings", "recipes"),
    *("own", "build", "model", "prediction", "card", "run", "runs", "tune", "export", "stream", "serve"),
    *("report", "analysis", "estimators", "integrations", "cli"),
)
LAST = ("spans", "brackets", "trees", "ops", "files", "warn")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages when a build begins, and resolve the short names of docstrings."""
    app.connect("config-inited", lambda app, config: write(Path(app.srcdir) / "api"))
    app.connect("autodoc-process-docstring", name_bases)
    app.connect("autodoc-skip-member", generated)
    app.connect("autodoc-process-signature", readable)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def generated(app: Sphinx, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    """Leave out the methods that scikit-learn gives estimators for routing metadata."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def rooms() -> list[ModuleType]:
    """Return modules of the package, and packages at any depth, that have an ``__all__``, in our order."""
    candidates = (one for one in modules() if one.__name__.count(".") == 1 or hasattr(one, "__path__"))
    return sorted((module for module in candidates if hasattr(module, "__all__")), key=_place)


def _place(room: ModuleType) -> tuple[int, str]:
    """Return what rooms are sorted by: rooms inside another one follow it."""
    name = room.__name__.split(".")[1]
    order = (*ORDER, None, *LAST)
    return order.index(name if name in order else None), room.__name__


@cache
def modules() -> list[ModuleType]:
    """Return all modules of the package that can be imported without running and without Triton."""
    names = [info.name for info in pkgutil.walk_packages(lossnet.__path__, "lossnet.")]
    left_out = "lossnet.__main__", "lossnet.ops._triton."
    return [importlib.import_module(name) for name in names if not name.startswith(left_out)]


def write(folder: Path) -> None:
    """Write a page for each room, and one that lists them; remove older ones."""
    pages = {f"{room.__name__}.rst": _page(room) for room in rooms()}
    pages["index.rst"] = _index(rooms())
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _page(room: ModuleType) -> str:
    name = room.__name__
    lines = [_title(name), f".. automodule:: {name}", "   :members:", ""]
    for other in room.__all__:
        home = _assigned(other, room)
        if home != name:  # what a package only passes on has its comment in the file that assigns it
            lines += [f".. autodata:: {home}.{other}", ""]
    return "\n".join(lines)


def _assigned(name: str, room: ModuleType) -> str:
    """Return the module that assigns a value with a ``#:`` comment; for classes and functions, the room."""
    value = getattr(room, name)
    if inspect.isroutine(value) or inspect.isclass(value) or not hasattr(room, "__path__"):
        return room.__name__
    for module in modules():
        home, _, _ = module.__name__.rpartition(".")
        if (
            home == room.__name__
            and ("", name) in ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
        ):
            return module.__name__
    return room.__name__


def _index(found: list[ModuleType]) -> str:
    listed = {name for names in PUBLIC.values() for name in names}
    modules = [name for name in lossnet.__all__ if inspect.ismodule(getattr(lossnet, name))]
    others = [name for name in lossnet.__all__ if name not in listed and name not in modules]
    lines = [_title("API reference"), "Everything here is made from docstrings.", ""]
    lines += [_title("Public API", "-"), "What ``import lossnet`` has at hand; modules among it:"]
    lines += [", ".join(f":doc:`lossnet.{name} <lossnet.{name}>`" for name in modules) + ".", ""]
    for purpose, names in {**PUBLIC, "More": others}.items():
        if names:
            entries = {f":py:obj:`lossnet.{name} <{_home(name)}>`": getattr(lossnet, name) for name in names}
            lines += [f"**{purpose}**", "", *_table(entries)]
    lines += [_title("Rooms", "-"), "A page for each room of ``src/lossnet``.", ""]
    lines += _table({f":doc:`{room.__name__}`": room for room in found})
    lines += [".. toctree::", "   :hidden:", ""]
    lines += [f"   {room.__name__}" for room in found]
    return "\n".join(lines) + "\n"


def _table(entries: dict[str, object]) -> list[str]:
    """Return a table of links, each with the first paragraph of a docstring."""
    lines = [".. list-table::", "   :widths: auto", ""]
    for link, value in entries.items():
        what = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
        what = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", what)  # short names would be those of this page
        lines += [f"   * - {link}", f"     - {what}"]
    return [*lines, ""]


def _home(name: str) -> str:
    """Return the name that a public class or function has on the page of its room."""
    value = getattr(lossnet, name)
    return f"{'.'.join(value.__module__.split('.')[:2])}.{name}"


def _title(text: str, under: str = "=") -> str:
    return f"{text}\n{under * len(text)}\n"


def name_bases(app: Sphinx, what: str, name: str, found: type, options: object, lines: list[str]) -> None:
    """Say after a class's first paragraph which of our classes it extends; others' are of no use here."""
    bases = [base for base in getattr(found, "__bases__", ()) if base.__module__.startswith("lossnet.")]
    if what == "class" and bases:
        names = ", ".join(f":py:obj:`~{base.__module__}.{base.__qualname__}`" for base in bases)
        end = lines.index("") if "" in lines else len(lines)
        lines[end:end] = ["", f"Extends {names}.", ""]


def readable(
    app: Sphinx, what: str, name: str, found: object, options: object, signature: str | None, returned: str
) -> tuple[str, str] | None:
    """Return a dataclass's signature without ``<factory>``, which is no Python and hides types."""
    return (signature.replace("<factory>", "..."), returned) if signature else None


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.TextElement
) -> nodes.Element | None:
    """Resolve a name in a docstring: `NCE` is ``lossnet.losses.NCE``, whatever page it is on.

    A name that is ours but on no page stays without a link; one that we do not have is left to Sphinx, which
    complains.
    """
    if node.get("refdomain") != "py":
        return None
    domain = env.domains["py"]
    assert isinstance(domain, PythonDomain)
    target: str = node["reftarget"]
    here = f"{node.get('py:module')}."
    names = [
        name
        for name, place in domain.objects.items()
        if not place.aliased and (name == target or name.endswith(f".{target}"))
    ]
    if not names:
        return contnode if target.rpartition(".")[2] in _names() else None
    name = min(names, key=lambda name: (not name.startswith(here), len(name)))
    place = domain.objects[name]
    uri = f"{app.builder.get_relative_uri(node['refdoc'], place.docname)}#{place.node_id}"
    return nodes.reference("", "", contnode, internal=True, refuri=uri, reftitle=name)


@cache
def _names() -> frozenset[str]:
    """Return the names of all modules, of what they define, and of what their classes define."""
    names: set[str] = set()
    for module in modules():
        names.add(module.__name__.rpartition(".")[2])
        for name, value in vars(module).items():
            names.add(name)
            if inspect.isclass(value) and value.__module__.startswith("lossnet."):
                names.update(dir(value))
    return frozenset(names)
