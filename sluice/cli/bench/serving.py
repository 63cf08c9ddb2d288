"""``sluice bench serve``: latency and throughput of the server and of a minimal FastAPI app."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from sluice.cli.bench.benchmark_table import Speed, speed_table
from sluice.cli.output import print_json, results_console

if TYPE_CHECKING:
    from sluice.bench.serving.measure import ServerMeasurement

_ROUNDS, _QUICK_ROUNDS = 9, 2
_SECONDS, _QUICK_SECONDS = 3.0, 1.0


def register(group: typer.Typer) -> None:
    """Add ``serve`` to ``sluice bench``."""

    @group.command("serve", epilog="Example: sluice bench serve --quick")
    def serve(
        quick: Annotated[
            bool,
            typer.Option(
                "--quick",
                help="Run two short rounds, for a quick check. Do not report these results.",
            ),
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Measure the server with the default pipeline's model over real sockets.

        All kinds of server are measured in turn, over several rounds; the median over the rounds
        counts, because the load of a machine varies.
        """
        _serve(
            rounds=_QUICK_ROUNDS if quick else _ROUNDS,
            seconds=_QUICK_SECONDS if quick else _SECONDS,
            as_json=as_json,
        )


def _serve(*, rounds: int, seconds: float, as_json: bool) -> None:
    from sluice.bench.serving.measure import measure_kinds  # imports torch and FastAPI

    stderr = Console(stderr=True)
    measurements = measure_kinds(
        rounds=rounds,
        seconds=seconds,
        with_progress=lambda steps: track(steps, "rounds", console=stderr, transient=True),
    )
    speeds = serving_speeds(measurements)
    if as_json:
        content = {
            "servers": {
                kind: measurement.model_dump() for kind, measurement in measurements.items()
            },
            "speeds": [
                speed.model_dump() | {"reaches_target": speed.reaches_target} for speed in speeds
            ],
        }
        print_json(content)
    else:
        results_console().print(_table(measurements), speed_table(speeds))


def serving_speeds(measurements: "dict[str, ServerMeasurement]") -> list[Speed]:
    """Return the measurements that have a target."""
    model, minimal_app = measurements["model alone"], measurements["minimal app"]
    production, canary, shadow = (
        measurements["production"],
        measurements["canary at 50 %"],
        measurements["shadow"],
    )
    return [
        Speed(
            name="router on top of the model, median",
            value=production.p50_ms - model.p50_ms,
            unit="ms",
            target=1.5,
        ),
        Speed(
            name="router on top of the model, 99th percentile",
            value=production.p99_ms - model.p99_ms,
            unit="ms",
            target=4.0,
        ),
        Speed(
            name="99th percentile, with a shadow / without",
            value=shadow.p99_ms / production.p99_ms,
            unit="x",
            target=1.1,
        ),
        Speed(
            name="rate against the minimal app",
            value=production.rate_per_s / minimal_app.rate_per_s,
            unit="x",
            target=0.8,
            higher_is_better=True,
        ),
        Speed(
            name="rate of a canary against the minimal app",
            value=canary.rate_per_s / minimal_app.rate_per_s,
            unit="x",
            target=0.8,
            higher_is_better=True,
        ),
        Speed(
            name="requests failed",
            value=sum(measurement.failed for measurement in measurements.values()),
            unit="requests",
            target=0,
        ),
    ]


def _table(measurements: "dict[str, ServerMeasurement]") -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Default model: 8 GRUs", title_justify="left")
    for name in ("", "p50 [ms]", "p99 [ms]", "8 clients [1/s]", "answers", "failed"):
        table.add_column(escape(name), justify="right" if name else "left")
    for kind, measurement in measurements.items():
        rate = f"{measurement.rate_per_s:,.0f}" if measurement.rate_per_s else ""
        table.add_row(
            kind,
            f"{measurement.p50_ms:.2f}",
            f"{measurement.p99_ms:.2f}",
            rate,
            f"{measurement.answers:,}",
            str(measurement.failed),
        )
    return table
