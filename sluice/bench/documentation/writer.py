"""Writes the generated pages of the documentation."""

from pathlib import Path

import typer

from sluice.bench.documentation.check_pages import check_page
from sluice.bench.documentation.command_pages import command_page
from sluice.bench.documentation.error_rates import read_rates
from sluice.bench.documentation.fault_pages import fault_pages
from sluice.bench.documentation.markdown import NOTICE
from sluice.bench.documentation.metric_pages import event_page, metric_page
from sluice.bench.documentation.rule_pages import rule_pages
from sluice.bench.documentation.setting_pages import setting_page

FOLDERS = ("rules", "faults", "checks")
"""Folders of the documentation in which every page is generated."""

SHARED_FOLDER = "reference"
"""Folder with both generated and manually written pages. The generated pages begin with
``markdown.NOTICE``."""


def generated_pages(docs: Path, app: typer.Typer) -> dict[str, str]:
    """Return the text of every generated page, by its path in the documentation.

    Args:
        docs: Folder of the documentation, which contains the example programs and error rates.
        app: The typer app of the command line.
    """
    return {
        **rule_pages(docs, read_rates(docs)),
        **fault_pages(),
        **check_page(),
        **setting_page(),
        **command_page(app),
        **metric_page(),
        **event_page(),
    }


def stored_pages(docs: Path) -> dict[str, str]:
    """Return the text of every generated page on disk, by its path in the documentation."""
    paths = [path for folder in FOLDERS for path in sorted((docs / folder).rglob("*.md"))]
    shared_paths = [
        path
        for path in sorted((docs / SHARED_FOLDER).glob("*.md"))
        if path.read_text().startswith(NOTICE)
    ]
    return {path.relative_to(docs).as_posix(): path.read_text() for path in (*paths, *shared_paths)}


def write_pages(docs: Path, app: typer.Typer) -> tuple[str, ...]:
    """Write new and changed pages, and remove outdated pages.

    Returns:
        The paths of the written and the removed pages.
    """
    generated_texts, stored_texts = generated_pages(docs, app), stored_pages(docs)
    outdated_paths = sorted(stored_texts.keys() - generated_texts.keys())
    for path in outdated_paths:
        (docs / path).unlink()
    changed_paths = tuple(
        path for path, text in generated_texts.items() if stored_texts.get(path) != text
    )
    for path in changed_paths:
        (docs / path).parent.mkdir(parents=True, exist_ok=True)
        (docs / path).write_text(generated_texts[path])
    return (*changed_paths, *outdated_paths)
