"""The reference: a page for each room of ``src/lossnet``, with what its ``__all__`` names.

Pages are written to ``docs/api`` before each build.  A new room needs no line here.
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


def setup(app: Sphinx) -> dict[str, bool]:
    """Writes the pages when a build begins, and finds what docstrings mean by short names."""
    app.connect("config-inited", lambda app, config: write(Path(app.srcdir) / "api"))
    app.connect("autodoc-process-docstring", name_bases)
    app.connect("autodoc-skip-member", generated)
    app.connect("autodoc-process-signature", readable)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def generated(app: Sphinx, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    """Leaves out the methods that scikit-learn gives estimators for routing metadata."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def rooms() -> list[ModuleType]:
    """Modules of the package, and packages at any depth, that say what is theirs."""
    found = [module for module in modules() if module.__name__.count(".") == 1 or hasattr(module, "__path__")]
    return sorted((module for module in found if hasattr(module, "__all__")), key=lambda room: room.__name__)


@cache
def modules() -> list[ModuleType]:
    """All modules of the package, but for those that run when they are imported or need a GPU's Triton."""
    names = [info.name for info in pkgutil.walk_packages(lossnet.__path__, "lossnet.")]
    left_out = "lossnet.__main__", "lossnet.ops._triton."
    return [importlib.import_module(name) for name in names if not name.startswith(left_out)]


def write(folder: Path) -> None:
    """Writes a page for each room, and one that lists them; what is older goes."""
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
    """The module that assigns a value with a ``#:`` comment; the room itself for classes and functions."""
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
    lines = [
        _title("API reference"),
        "One page for each room of ``src/lossnet``, made from docstrings. ``import lossnet`` has at hand",
        ",\n".join(f":py:obj:`{name} <{_home(name)}>`" for name in lossnet.__all__) + ".",
    ]
    lines += ["", ".. list-table::", "   :widths: auto", ""]
    for room in found:
        what = (inspect.getdoc(room) or "").split("\n\n")[0].replace("\n", " ")
        what = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", what)  # short names would be those of this page
        lines += [f"   * - :doc:`{room.__name__}`", f"     - {what}"]
    lines += ["", ".. toctree::", "   :hidden:", ""]
    lines += [f"   {room.__name__}" for room in found]
    return "\n".join(lines) + "\n"


def _home(name: str) -> str:
    """Where what ``import lossnet`` has under a name is at home."""
    found = getattr(lossnet, name)
    return str(found.__name__) if inspect.ismodule(found) else f"{found.__module__}.{found.__qualname__}"


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n"


def name_bases(app: Sphinx, what: str, name: str, found: type, options: object, lines: list[str]) -> None:
    """Says after a class's first paragraph which of our classes it extends; others' are of no use here."""
    bases = [base for base in getattr(found, "__bases__", ()) if base.__module__.startswith("lossnet.")]
    if what == "class" and bases:
        names = ", ".join(f":py:obj:`~{base.__module__}.{base.__qualname__}`" for base in bases)
        end = lines.index("") if "" in lines else len(lines)
        lines[end:end] = ["", f"Extends {names}.", ""]


def readable(
    app: Sphinx, what: str, name: str, found: object, options: object, signature: str | None, returned: str
) -> tuple[str, str] | None:
    """A dataclass's signature without ``<factory>``, which is no Python and keeps types from being read."""
    return (signature.replace("<factory>", "..."), returned) if signature else None


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.TextElement
) -> nodes.Element | None:
    """What a name in a docstring stands for: `NCE` is ``lossnet.losses.NCE``, whatever page it is on.

    A name that is ours but on no page stays without a link; one that we do not have is left to Sphinx, which
    complains.
    """
    if node.get("refdomain") != "py":
        return None
    domain = env.domains["py"]
    assert isinstance(domain, PythonDomain)
    target: str = node["reftarget"]
    here = f"{node.get('py:module')}."
    found = [
        name
        for name, place in domain.objects.items()
        if not place.aliased and (name == target or name.endswith(f".{target}"))
    ]
    if not found:
        return contnode if target.rpartition(".")[2] in _names() else None
    name = min(found, key=lambda name: (not name.startswith(here), len(name)))
    place = domain.objects[name]
    uri = f"{app.builder.get_relative_uri(node['refdoc'], place.docname)}#{place.node_id}"
    return nodes.reference("", "", contnode, internal=True, refuri=uri, reftitle=name)


@cache
def _names() -> frozenset[str]:
    """The names of all modules, of what is defined in them, and of what is defined in their classes."""
    found: set[str] = set()
    for module in modules():
        found.add(module.__name__.rpartition(".")[2])
        for name, value in vars(module).items():
            found.add(name)
            if inspect.isclass(value) and value.__module__.startswith("lossnet."):
                found.update(dir(value))
    return frozenset(found)
