"""Adds the pages of a folder to the navigation below the folder's README.md.

The list of pages is added when Sphinx reads the README.md. The file itself stays plain Markdown,
so that other viewers of Markdown can show it.
"""

from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

_TOCTREE = """

```{{toctree}}
:hidden:

{pages}
```
"""


def _page_names(folder: Path) -> Iterator[str]:
    """Yield the names of the pages below a folder.

    Of a subfolder with a README.md, only the README.md is yielded; it lists its own pages.
    """
    for page in sorted(folder.iterdir()):
        if page.suffix == ".md" and page.name != "README.md":
            yield page.stem
        elif (page / "README.md").is_file():
            yield f"{page.name}/README"
        elif page.is_dir():
            yield from (f"{page.name}/{name}" for name in _page_names(page))


def _add_tree(app: Sphinx, docname: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(docname))
    if path.name == "README.md":
        names = list(_page_names(path.parent))
        if names:
            source[0] += _TOCTREE.format(pages="\n".join(names))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", _add_tree)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
