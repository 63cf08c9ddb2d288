"""Configuration of Sphinx for the documentation site; `make docs` builds it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from sluice import __version__  # noqa: E402

project = "Sluice"
author = "the authors of Sluice"
copyright = "the authors of Sluice; Apache License 2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "link_check",
    "llms_txt",
    "page_trees",
    "versions",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext", "_static", "_templates", "rules/*/*.py"]
suppress_warnings = ["config.cache"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
# `see [page](page.md#section)` must name a section that exists: -W makes it an error.
nitpicky = False

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = "$ "

templates_path = ["_templates"]
html_theme = "furo"
html_title = f"Sluice {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["../../versions.js", "versions.js"]
html_copy_source = True
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#6cb2f7", "color-brand-content": "#6cb2f7"},
    "top_of_page_buttons": [],
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
