"""``sluice bench trace``: the tracer's overhead, and whether it changes the trained weights."""

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

_NUM_PROCESSES, _NUM_TURNS, _NUM_QUICK_TURNS = 5, 12, 4
"""Number of processes per program, and numbers of traced turns per process: without and with
``--quick``. The number of untraced turns is the same."""


def register(group: typer.Typer) -> None:
    """Add ``trace`` to ``sluice bench``."""

    @group.command("trace", epilog="Example: sluice bench trace --quick")
    def trace(
        quick: Annotated[
            bool,
            typer.Option(
                "--quick",
                help="Run one short process per program, for a quick check. Do not report these "
                "results.",
            ),
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Measure the overhead of tracing on six programs, and compare the trained weights.

        A timed process trains in turns of a few epochs. Half of the turns are traced. The ratio of
        traced to untraced time is reported with its 95 % interval. The exit code is 1 if traced
        and untraced trainings end with different weights. The overhead does not affect the exit
        code, because it depends on the machine.
        """
        num_processes, num_turns = (1, _NUM_QUICK_TURNS) if quick else (_NUM_PROCESSES, _NUM_TURNS)
        _run_benchmark(num_processes=num_processes, num_turns=num_turns, as_json=as_json)


def _run_benchmark(*, num_processes: int, num_turns: int, as_json: bool) -> None:
    from sluice.bench.tracer.overhead import measure_overhead
    from sluice.trace.settings import TraceSettings

    stderr, measurements = Console(stderr=True), []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder_name,
        stderr.status("training traced and untraced in turns"),
    ):
        settings = TraceSettings()
        for measurement in measure_overhead(
            Path(folder_name), num_processes=num_processes, num_turns=num_turns, settings=settings
        ):
            measurements.append(measurement)
            weights_text = "same" if measurement.has_same_weights else "DIFFERENT"
            stderr.print(
                f"  {measurement.program}: {measurement.ratio:.3f} x ({measurement.low:.3f} to "
                f"{measurement.high:.3f}), {measurement.plain_us:,.0f} us per untraced step, "
                f"{weights_text} weights",
                highlight=False,
            )
    ratios = [measurement.ratio for measurement in measurements]
    speeds = [
        Speed(
            name="ratio of time with tracing to time without, median program",
            value=statistics.median(ratios),
            unit="x",
            target=1.03,
        ),
        Speed(
            name="ratio of time with tracing to time without, worst program",
            value=max(ratios),
            unit="x",
            target=1.10,
        ),
    ]
    if as_json:
        rows = [speed.to_json() for speed in speeds]
        programs = [measurement.model_dump(mode="json") for measurement in measurements]
        print(json.dumps({"speeds": rows, "programs": programs}, indent=1))
    else:
        results_console().print(speed_table(speeds))
    if not all(measurement.has_same_weights for measurement in measurements):
        raise typer.Exit(EXIT_GATE_BLOCKED)
