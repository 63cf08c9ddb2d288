"""``sluice bench trace``: overhead of the tracer, by program."""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sluice.base.errors import EXIT_GATE_BLOCKED
from sluice.cli.bench.benchmark_table import Speed, speed_table
from sluice.cli.output import results_console

_RUNS, _TURNS, _QUICK_TURNS = 5, 12, 4


def register(group: typer.Typer) -> None:
    """Add ``trace`` to ``sluice bench``."""

    @group.command("trace", epilog="Example: sluice bench trace --quick")
    def trace(
        quick: Annotated[
            bool,
            typer.Option(
                "--quick",
                help="Run one process per program, for a quick check. Do not report these results.",
            ),
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Train six programs traced and untraced in turns: overhead, and equality of the weights.

        Each process trains in turns of some epochs, half of them traced. The ratio of the times is
        reported with its 95 % interval. Exit code 1 when weights differ between traced and untraced
        training; the overhead depends on the machine.
        """
        runs, turns = (1, _QUICK_TURNS) if quick else (_RUNS, _TURNS)
        _trace(runs=runs, turns=turns, as_json=as_json)


def _trace(*, runs: int, turns: int, as_json: bool) -> None:
    from sluice.bench.tracer.overhead import measure_overhead
    from sluice.trace.settings import TraceSettings

    stderr, measurements = Console(stderr=True), []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as name,
        stderr.status("training traced and untraced in turns"),
    ):
        settings = TraceSettings()
        for measurement in measure_overhead(Path(name), runs=runs, turns=turns, settings=settings):
            measurements.append(measurement)
            weights_text = "same weights" if measurement.has_same_weights else "OTHER WEIGHTS"
            stderr.print(
                f"  {measurement.program}: {measurement.ratio:.3f} x ({measurement.low:.3f} to "
                f"{measurement.high:.3f}), {measurement.plain_us:,.0f} us a step, {weights_text}",
                highlight=False,
            )
    ratios = [measurement.ratio for measurement in measurements]
    speeds = [
        Speed(
            name="tracing, median program", value=statistics.median(ratios), unit="x", target=1.03
        ),
        Speed(name="tracing, worst program", value=max(ratios), unit="x", target=1.10),
    ]
    if as_json:
        rows = [speed.model_dump() | {"reaches_target": speed.reaches_target} for speed in speeds]
        programs = [measurement.model_dump(mode="json") for measurement in measurements]
        print(json.dumps({"speeds": rows, "programs": programs}, indent=1))
    else:
        results_console().print(speed_table(speeds))
    if not all(measurement.has_same_weights for measurement in measurements):
        raise typer.Exit(EXIT_GATE_BLOCKED)
