"""``sluice pack``: writes a stream of records once to shards with random access."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sluice.base.pluralize import pluralize
from sluice.cli.output import print_json, results_console

if TYPE_CHECKING:
    from sluice.data.packing.pack import PackProgress, PackResult

_MIB = 2**20
_EXAMPLE = "Example: sluice pack 's3://bucket/reviews-*.jsonl.gz' data/reviews"


def register(app: typer.Typer) -> None:
    """Add ``pack`` to the command line."""
    app.command("pack", epilog=_EXAMPLE)(pack)


def pack(
    source: Annotated[
        str,
        typer.Argument(
            help="Path or URL (fsspec) of a JSON lines, CSV or Parquet file, or of a tar archive. "
            "A quoted pattern such as 'part-*.csv' reads all matching files, in order of their "
            "names. ${NAME} is replaced by the environment variable.",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of the shards: a new folder, or the folder of an interrupted packing, "
            "which is then continued.",
            show_default=False,
        ),
    ],
    format: Annotated[
        Literal["jsonl", "csv", "tar", "parquet"] | None,
        typer.Option(
            help="Format of the source. Default: from the ending of its name.", show_default=False
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="Type of a column as NAME=TYPE, such as price=float64; may be repeated. Default: "
            "inferred from the first records.",
            show_default=False,
        ),
    ] = None,
    shard_mb: Annotated[
        int, typer.Option(min=1, max=2048, help="Size at which a shard is closed [MiB].")
    ] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a stream of records once to shards with random access.

    A training reads rows in a shuffled order, and must be able to resume in the middle of an epoch.
    A stream supports neither. The shards are Arrow files of bounded size with an index file;
    ShardRows, ImageShardRows and TableRows read them. Each file of a tar archive becomes a record
    with its path and content.

    To continue an interrupted packing, repeat the command. Finished shards are verified and kept,
    and the result is the same as without an interruption.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from sluice.data.packing.column_types import parse_columns
    from sluice.data.packing.pack import pack as pack_source

    declared_columns = parse_columns(column or ())
    console = Console(stderr=True)
    progress_columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*progress_columns, console=console, transient=True) as progress:
        task = progress.add_task("packing", total=None)

        def report_progress(pack_progress: "PackProgress") -> None:
            if pack_progress.message:
                console.print(pack_progress.message, highlight=False, markup=False, soft_wrap=True)
            progress.update(
                task,
                description=f"{pluralize(pack_progress.rows, 'record')} in "
                f"{pluralize(pack_progress.shards, 'shard')}, "
                f"{pack_progress.bytes_read / _MIB:,.0f} MiB read",
            )

        packed = pack_source(
            source,
            folder,
            environ=os.environ,
            format=format,
            columns=declared_columns,
            max_shard_bytes=shard_mb * _MIB,
            on_progress=report_progress,
        )
    if as_json:
        print_json(packed)
    else:
        _print_summary(packed)


def _print_summary(packed: "PackResult") -> None:
    console = results_console(markup=False)
    kept_note = (
        f", {packed.kept_shards} of them from an earlier packing" if packed.kept_shards else ""
    )
    console.print(
        f"{pluralize(packed.rows, 'record')} in {pluralize(packed.shards, 'shard')}{kept_note}, "
        f"{packed.num_bytes:,} bytes: {packed.folder}",
        soft_wrap=True,
    )
    for name, column_type in packed.columns.items():
        console.print(f"  {name}: {column_type}", soft_wrap=True)
