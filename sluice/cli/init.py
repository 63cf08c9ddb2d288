"""``sluice init``: writes a pipeline for a file or a folder of images."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.output import print_json, results_console

if TYPE_CHECKING:
    from sluice.scaffold.create import NewPipeline

_EXAMPLE = "Example: sluice init data.csv --target price"


def register(app: typer.Typer) -> None:
    """Add ``init`` to the command line."""
    app.command("init", epilog=_EXAMPLE)(init)


def init(
    data: Annotated[
        Path,
        typer.Argument(
            help="CSV, Parquet or JSON lines file, or a folder with one subfolder of images per "
            "class.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(help="Column to predict; not for images.", show_default=False),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of the pipeline, and of the new files.")
    ] = "my_model",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a pipeline for your data: NAME.yaml, NAME.py and test_NAME.py.

    The data are inspected. Comments in the files state the reason of each guess: the task, the
    order of the rows, the input columns, and the columns that are left out.
    The files are yours to edit. No file is overwritten.
    """
    from sluice.scaffold.create import create_for_init

    new_pipeline = create_for_init(Path.cwd(), data, target=target, name=name)
    if as_json:
        print_json(
            {
                "files": [str(path) for path in new_pipeline.files],
                "task": new_pipeline.task,
                "inputs": list(new_pipeline.inputs),
                "left_out": dict(new_pipeline.left_out),
            }
        )
        return
    _print_summary(new_pipeline)


def _print_summary(new_pipeline: "NewPipeline") -> None:
    console = results_console(markup=False)
    files = ", ".join(os.path.relpath(path) for path in new_pipeline.files)
    console.print(f"Wrote {files}.", soft_wrap=True)
    console.print(new_pipeline.summary, soft_wrap=True)
    for column, reason in new_pipeline.left_out:
        console.print(f"  left out: {column} ({reason})", soft_wrap=True)
    pipeline = shlex.quote(os.path.relpath(new_pipeline.files[0]))
    console.print(f"Next: sluice run {pipeline}", soft_wrap=True)
