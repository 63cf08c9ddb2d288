"""Adds the pages of a folder to the navigation below the folder's README.md.

The README itself stays plain Markdown, which any viewer of the repository shows.
"""

from pathlib import Path

from sphinx.application import Sphinx

TREE = """

```{{toctree}}
:hidden:

{pages}
```
"""


def _add_tree(app: Sphinx, docname: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(docname))
    if path.name == "README.md":
        names = sorted(
            page.relative_to(path.parent).with_suffix("").as_posix()
            for page in path.parent.rglob("*.md")
            if page != path
        )
        if names:
            source[0] += TREE.format(pages="\n".join(names))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", _add_tree)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
