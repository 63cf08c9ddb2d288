"""Adds Markdown files from outside docs/ to the site, and rewrites the links to these files.

In the Markdown files, all links are paths in the repository, so that the links also work where the
repository is browsed.
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
"""Path of the page in docs/, by path of the Markdown file in the repository."""

_LINK = re.compile(r"\]\(((?!\w+:|#)[^)#\s]+)((?:#[^)\s]*)?)\)")
"""Markdown link to a file. The groups are its path, and the section with ``#`` or nothing."""


def rewrite_links(text: str, path: str, page: str) -> str:
    """Return Markdown with its links rewritten from a file of the repository to a page of the site.

    Args:
        text: The Markdown.
        path: Path of the Markdown file in the repository.
        page: Path of the page in docs/. Equal to ``path`` if the file is itself in docs/.

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


def _read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    page = f"docs/{docname}.md"
    # README.md does not become a page. Only the links to it are rewritten: they lead to the start
    # page, whose text is docs/index.md.
    path_by_page = {page: path for path, page in PAGES.items() if page != "docs/index.md"}
    path = path_by_page.get(page, page)
    if path != page:
        file = Path(app.srcdir).parent / path
        app.env.note_dependency(file, docname=docname)
        source[0] = file.read_text()
    source[0] = rewrite_links(source[0], path, page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", _read_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
