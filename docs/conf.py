"""Configuration of Sphinx for the documentation site; `make docs` builds it."""

import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

# Import all public names of packages that otherwise import a name when the name is first used,
# because Sphinx documents only names that are already imported.
for package in map(import_module, ("sluice.failfast", "sluice.data.rows")):
    for name in package._MODULES:
        setattr(package, name, getattr(package, name))

project = "Sluice"
author = "the authors of Sluice"
copyright = "the authors of Sluice; Apache License 2.0"
version = release = import_module("sluice").__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "link_check",
    "llms_txt",
    "page_trees",
    "repository_links",
    "versions",
]
# Keep straight quotes, because readers copy texts such as 'module:Class'.
smartquotes = False
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext", "_static", "_templates", "rules/*/*.py"]
suppress_warnings = ["config.cache"]

# Give headings anchors. A link `page.md#section` to a missing section then causes a warning, and
# `make docs` fails on warnings.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

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
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
# The first file is the list of versions, in the parent folder of the site.
html_js_files = ["../../versions.js", "versions.js", "tables.js"]
html_copy_source = True
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#6cb2f7", "color-brand-content": "#6cb2f7"},
    "top_of_page_buttons": [],
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/versions.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
