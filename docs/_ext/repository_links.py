"""Adds Markdown files from outside docs/ to the site, and rewrites the links to them.

In the sources, links are paths in the repository, so that they also work in a viewer of the
repository.
"""

import posixpath
import re
from pathlib import Path

from sphinx.application import Sphinx

PAGES = {
    "CONTRIBUTING.md": "docs/project/contributing.md",
    "CHANGELOG.md": "docs/project/changelog.md",
    "SECURITY.md": "docs/project/security-policy.md",
    "README.md": "docs/index.md",
}
"""Page of the site by path in the repository."""

_LINK = re.compile(r"\]\(((?!\w+:|#)[^)#\s]+)((?:#[^)\s]*)?)\)")


def rewrite_links(text: str, path: str, page: str) -> str:
    """Return Markdown of the repository with its links rewritten for a page of the site.

    Args:
        text: The Markdown.
        path: Path of its file in the repository.
        page: Path of its page, as if it were a file in the repository.

    >>> rewrite_links("[how](../SECURITY.md#x)", "docs/security.md", "docs/security.md")
    '[how](project/security-policy.md#x)'
    >>> rewrite_links("[a](docs/a.md)", "CONTRIBUTING.md", "docs/project/contributing.md")
    '[a](../a.md)'
    """

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
        if path == page and target not in PAGES:
            return link[0]
        relative = posixpath.relpath(PAGES.get(target, target), posixpath.dirname(page))
        return f"]({relative}{link[2]})"

    return _LINK.sub(rewrite, text)


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    page = f"docs/{docname}.md"
    # The start page has its own text; README.md is not included, only links to it are rewritten.
    path_by_page = {page: path for path, page in PAGES.items() if page != "docs/index.md"}
    path = path_by_page.get(page, page)
    if path != page:
        file = Path(app.srcdir).parent / path
        app.env.note_dependency(file, docname=docname)
        source[0] = file.read_text()
    source[0] = rewrite_links(source[0], path, page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
