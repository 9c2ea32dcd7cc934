"""How the documentation is built: ``make docs``."""

import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
# The reference is of this checkout, wherever another one may be installed.
sys.path[:0] = [str(ROOT / "src"), str(DOCS / "tools")]

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "Lossnet"
author = "The Lossnet authors"
project_copyright = f"{author}, Apache-2.0"
release = version = _PROJECT["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "mathml",
    "figures",
    "rooms",
    "commands",
]
exclude_patterns = ["tools"]
nitpicky = True
# Other libraries' names are not linked: their inventories would have to be fetched.
nitpick_ignore_regex = [
    ("py:.*", r"(?!lossnet\.)[a-z_]\w*\..+"),
    ("py:class", r"(Tensor|NDArray|Path)"),
]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# Examples on the command line have comments, paths and patterns that the lexer does not know.
highlight_language = "none"

autodoc_member_order = "bysource"
autodoc_default_options = {"special-members": "__call__"}
# What a class does like its base is said there; torch's own docstrings are not for our pages.
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 110
napoleon_numpy_docstring = False
default_role = "py:obj"
add_module_names = False

html_theme = "furo"
html_title = f"Lossnet {release}"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["lossnet.css"]
html_copy_source = False
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    """Keep a figure and its spread on one line, and the settings out of the estimators' signatures."""
    from lossnet.estimators import MultiLabelClassifier

    for kind in MultiLabelClassifier.__mro__:
        # Written out for scikit-learn; autodoc reads defaults from the source, which has ``**settings``.
        getattr(vars(kind).get("__init__"), "__dict__", {}).pop("__signature__", None)
    app.connect(
        "source-read", lambda app, name, text: text.__setitem__(0, text[0].replace(" ± ", "\u00a0±\u00a0"))
    )
