"""Formulas as MathML, which browsers draw themselves: no script, no LaTeX, no network.

docutils brings the translation from TeX.  A formula that it cannot read is a warning, and so an error of the
build.
"""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the renderer; ``html_math_renderer = "mathml"`` chooses it."""
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    translator.body.append(_markup(node, as_block=False))
    raise nodes.SkipNode


def display(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on its own, which scrolls where it is wider than the page."""
    translator.body.append(f'<div class="math">{_markup(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def _markup(node: nodes.Element, as_block: bool) -> str:
    try:
        return str(tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        logger.warning("cannot read the formula %r: %s", node.astext(), error, location=node)
        return f"<code>{node.astext()}</code>"
