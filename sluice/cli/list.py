"""``sluice list``: the shipped pipelines."""

import json
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from sluice.base.yaml_text import load_yaml
from sluice.cli.output import results


def register(app: typer.Typer) -> None:
    """Add ``sluice list``."""

    @app.command(name="list")
    def list_pipelines(
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """List the pipelines that other commands accept by name.

        For a pipeline of your own, give the path of its file instead.

        Example: sluice list
        """
        from sluice.config.pipeline import defs_folder, known_pipelines

        folder = defs_folder()
        rows = []
        for name in known_pipelines(folder):
            file = folder / name / "defs.yaml"
            attributes = load_yaml(file.read_text()).get("attributes", {})
            rows.append(
                {
                    "name": name,
                    "description": attributes.get("description", ""),
                    "file": str(file),
                }
            )
        if as_json:
            print(json.dumps(rows, indent=2))
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("pipeline", no_wrap=True)
        table.add_column("description")
        for row in rows:
            table.add_row(row["name"], row["description"])
        results().print(table)
