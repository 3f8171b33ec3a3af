"""Settings of the documentation site; `make site` builds it into build/site."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extension"))

project = "Placewright"
author = "The Placewright developers"
copyright = "the Placewright developers, Apache-2.0"
version = release = installed_version("placewright")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_copybutton",
    "reference_pages",
    "dead_links",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["extension", "results/*.json"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Pages link to rows and source files, which the site does not render: they point to the repository.
myst_url_schemes = {"https": None, "http": None, "mailto": None}

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False
default_role = "code"  # docstrings write `name` for code

copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "Placewright"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
smartquotes = False  # a quoted word may be pasted into a shell
highlight_language = "none"  # of a block that names no language
pygments_style = "a11y-light"
pygments_dark_style = "a11y-dark"
