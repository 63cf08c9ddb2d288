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

_NUM_ROUNDS, _NUM_QUICK_ROUNDS = 9, 2
_LOAD_S, _QUICK_LOAD_S = 3.0, 1.0
"""Duration of the constant-rate load on each server, in each round [s]."""


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
        """Measure latency and throughput of a server with the default pipeline's model.

        Servers with and without a rollout, and a minimal FastAPI app, answer requests over real
        sockets. They are measured in turn, in several rounds. The median over the rounds is
        reported, because the load of a machine varies.
        """
        _run_benchmark(
            num_rounds=_NUM_QUICK_ROUNDS if quick else _NUM_ROUNDS,
            load_s=_QUICK_LOAD_S if quick else _LOAD_S,
            as_json=as_json,
        )


def _run_benchmark(*, num_rounds: int, load_s: float, as_json: bool) -> None:
    from sluice.bench.serving.measure import measure_servers

    stderr = Console(stderr=True)
    measurements = measure_servers(
        num_rounds=num_rounds,
        load_s=load_s,
        with_progress=lambda rounds: track(rounds, "rounds", console=stderr, transient=True),
    )
    speeds = serving_speeds(measurements)
    if as_json:
        content = {
            "servers": {
                name: measurement.model_dump() for name, measurement in measurements.items()
            },
            "speeds": [speed.to_json() for speed in speeds],
        }
        print_json(content)
    else:
        results_console().print(_table(measurements), speed_table(speeds))


def serving_speeds(measurements: "dict[str, ServerMeasurement]") -> list[Speed]:
    """Return the speeds that have a target. The keys of ``measurements`` are names of servers."""
    model, minimal_app = measurements["model alone"], measurements["minimal app"]
    production, canary, shadow = (
        measurements["production"],
        measurements["canary at 50 %"],
        measurements["shadow"],
    )
    return [
        Speed(
            name="median latency: server minus model alone",
            value=production.p50_ms - model.p50_ms,
            unit="ms",
            target=1.5,
        ),
        Speed(
            name="99th percentile of latency: server minus model alone",
            value=production.p99_ms - model.p99_ms,
            unit="ms",
            target=4.0,
        ),
        Speed(
            name="ratio of the 99th percentiles of latency: with shadow to without",
            value=shadow.p99_ms / production.p99_ms,
            unit="x",
            target=1.1,
        ),
        Speed(
            name="ratio of throughputs: server to minimal app",
            value=production.rate_per_s / minimal_app.rate_per_s,
            unit="x",
            target=0.8,
            higher_is_better=True,
        ),
        Speed(
            name="ratio of throughputs: server with a canary to minimal app",
            value=canary.rate_per_s / minimal_app.rate_per_s,
            unit="x",
            target=0.8,
            higher_is_better=True,
        ),
        Speed(
            name="failed requests",
            value=sum(measurement.num_failed for measurement in measurements.values()),
            unit="requests",
            target=0,
        ),
    ]


def _table(measurements: "dict[str, ServerMeasurement]") -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Default model: 8 GRUs. Latency at 100 requests/s, throughput with 8 clients",
        title_justify="left",
    )
    for header in ("", "p50 [ms]", "p99 [ms]", "throughput [requests/s]", "responses", "failed"):
        table.add_column(escape(header), justify="right" if header else "left")
    for name, measurement in measurements.items():
        rate = f"{measurement.rate_per_s:,.0f}" if measurement.rate_per_s else ""
        table.add_row(
            name,
            f"{measurement.p50_ms:.2f}",
            f"{measurement.p99_ms:.2f}",
            rate,
            f"{measurement.num_responses:,}",
            str(measurement.num_failed),
        )
    return table
