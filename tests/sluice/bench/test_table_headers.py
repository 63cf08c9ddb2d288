"""Table headers of benchmarks show units in brackets, which rich could interpret as markup."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from sluice.bench.rollout.report import rollout_table
from sluice.cli.bench.serving import _table as serving_table


@pytest.mark.parametrize(
    ("table", "headers"),
    [
        (rollout_table([]), ("median delay [s]", "p90 delay [s]", "rolled back [%]")),
        (serving_table({}), ("p50 [ms]", "p99 [ms]", "throughput [requests/s]")),
    ],
)
def test_table_header_shows_units(table: Table, headers: tuple[str, ...]) -> None:
    console = Console(width=200, file=io.StringIO())

    console.print(table)

    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert all(header in shown for header in headers)
