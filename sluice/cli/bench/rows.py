"""``sluice bench rows``: measures the speed of row sources, of shuffling and of padding."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from sluice.base.settings import Record
from sluice.cli.bench.benchmark_table import (
    Speed,
    collect_measurements,
    speed_at_least,
    speed_table,
)
from sluice.cli.output import results_console

_SEED = 0


def register(group: typer.Typer) -> None:
    """Add ``rows`` to ``sluice bench``."""

    @group.command("rows", epilog="Example: sluice bench rows --quick")
    def rows(
        quick: Annotated[
            bool,
            typer.Option(
                "--quick",
                help="Use less data and fewer rounds, for a quick check. Do not report these "
                "results.",
            ),
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Measure the speed of every row source, of shuffling rows, and of padded texts.

        Each source is compared with a minimal loop that reads the same rows without Sluice. Kinds
        of padding are compared by the speed of training on texts.
        """
        _run_benchmark(measure_rows(quick=quick), as_json=as_json)


def measure_rows(*, quick: bool) -> Iterator[Record | Speed]:
    """Yield records of the measurements, and the speeds that have a target."""
    from sluice.bench.rows.padding import measure_padding
    from sluice.bench.rows.row_sources import measure_feistel, measure_sources

    speed = measure_feistel(num_rows=10**10, seed=_SEED, repeats=100 if quick else 1_000)
    yield speed_at_least("shuffling 10^10 rows without an index array", speed, "rows/s", 20e6)
    num_rounds = 3 if quick else 9
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder_name:
        folder = Path(folder_name)
        for measurement in measure_sources(
            num_rows=2_000 if quick else 50_000, num_rounds=num_rounds, seed=_SEED, folder=folder
        ):
            yield measurement
            yield speed_at_least(
                f"ratio of speeds: {measurement.source} to {measurement.baseline}",
                measurement.ratio,
                "x",
                0.97,
            )
        padding = measure_padding(
            num_batches=16 if quick else 128, num_rounds=num_rounds, seed=_SEED, folder=folder
        )
    yield padding
    yield speed_at_least(
        "ratio of speeds: padding to the longest document, to padding to the maximum",
        padding.longest_ratio,
        "x",
        1.5,
    )
    yield speed_at_least(
        "ratio of speeds: batches of similar length, to padding to the maximum",
        padding.bucketed_ratio,
        "x",
        1.5,
    )


def _run_benchmark(measurements: Iterator[Record | Speed], *, as_json: bool) -> None:
    speeds, records = collect_measurements(measurements, "measuring rows")
    if as_json:
        rows = [speed.to_json() for speed in speeds]
        print(json.dumps({"speeds": rows, "measured": records}, indent=1))
    else:
        results_console().print(speed_table(speeds))
