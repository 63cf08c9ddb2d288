"""``sluice list``: lists the pipelines of the working folder, and the shipped pipelines."""

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich import box
from rich.table import Table

from sluice.base.yaml_text import load_yaml
from sluice.cli.output import results_console


def register(app: typer.Typer) -> None:
    """Add ``sluice list``."""

    @app.command(name="list")
    def list_pipelines(
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """List the pipelines that other commands accept by name.

        These are the pipeline files NAME.yaml of the working folder, and the shipped pipelines. For
        any other pipeline, give the path of its file instead.

        Example: sluice list
        """
        from sluice.config.pipeline import defs_folder, known_pipelines
        from sluice.config.pipeline_file import pipeline_files

        folder = defs_folder()
        shipped_names = known_pipelines(folder)
        # A shipped pipeline takes precedence over a file of the same name.
        local_files = [
            file for file in pipeline_files(Path.cwd()) if file.stem not in shipped_names
        ]
        files = [(file.stem, file) for file in local_files]
        files += [(name, folder / name / "defs.yaml") for name in shipped_names]
        rows = [
            {"name": name, "description": _description(file), "file": str(file)}
            for name, file in files
        ]
        if as_json:
            print(json.dumps(rows, indent=2))
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("pipeline", no_wrap=True)
        table.add_column("description")
        for row in rows:
            table.add_row(row["name"], row["description"])
        results_console().print(table)


def _description(file: Path) -> str:
    """Return the description in a pipeline file; empty if the file is not valid."""
    try:
        document = load_yaml(file.read_text(encoding="utf-8"))
        return str(document["attributes"].get("description", ""))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return ""
