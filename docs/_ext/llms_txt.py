"""Writes `llms.txt`, a list of the pages for language models, in the order of the navigation.

Each entry links the Markdown source of a page and describes it by its first paragraph
(https://llmstxt.org).
"""

from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ABOUT = (
    "A gated pipeline from data to a served PyTorch model: checks before cost, promotion on "
    "evidence, receipts, bitwise resume, canary and rollback. Dagster orchestrates it."
)
_MAX_LENGTH = 200
"""Maximum length of the first paragraph of a page; longer paragraphs are shortened [characters]."""


def page_order(app: Sphinx) -> Iterator[tuple[str, str]]:
    """Yield (name, caption of its section of the navigation) of every page, in order."""
    root = app.config.root_doc
    for tree in app.env.get_doctree(root).findall(addnodes.toctree):
        for top_page in tree["includefiles"]:
            for name in _with_children(app, top_page):
                yield name, tree["caption"] or ""


def describe(app: Sphinx, name: str) -> str:
    """Return the first paragraph of a page, shortened at the end of a sentence or word."""
    for paragraph in app.env.get_doctree(name).findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        if len(text) <= _MAX_LENGTH:
            return text
        cut = text[:_MAX_LENGTH]
        return cut[: cut.rfind(". ") + 1] or f"{cut[: cut.rfind(' ')]} ..."
    return ""


def render(app: Sphinx) -> str:
    """Return the text of `llms.txt`."""
    lines = [f"# {app.config.project}", "", f"> {ABOUT}"]
    last_caption, listed_names = None, set()
    for name, caption in page_order(app):
        if name in listed_names:
            continue
        listed_names.add(name)
        if caption != last_caption:
            lines += ["", f"## {caption}", ""]
            last_caption = caption
        title = app.env.titles[name].astext()
        lines.append(f"- [{title}](_sources/{name}.md.txt): {describe(app, name)}")
    return "\n".join(lines) + "\n"


def _with_children(app: Sphinx, name: str) -> Iterator[str]:
    """Yield the name of a page and the names of all pages below it in the navigation."""
    yield name
    for child in app.env.toctree_includes.get(name, []):
        yield from _with_children(app, child)


def _write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        (Path(app.outdir) / "llms.txt").write_text(render(app))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("build-finished", _write_llms_txt)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
