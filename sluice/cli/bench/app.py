"""``sluice bench``: measures speeds and error rates, and compares them with targets."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from sluice.base.errors import EXIT_GATE_BLOCKED
from sluice.cli.bench import docs, drift, faults, gate, rollout, rows, serving, trace, training
from sluice.cli.bench.benchmark_table import Speed, speed_table
from sluice.cli.output import results_console

if TYPE_CHECKING:
    import pandas as pd

    from sluice.bench.poc.result import PocBenchmarkReport

PIPELINE = "sp500_volatility"
_QUICK_STRIDE = 5
"""With ``--quick``, only every fifth planted defect and every fifth healthy set-up runs, beginning
with the first one."""
_MILLION = 1_000_000
_NUM_TICKS = 5 * _MILLION
_SEED = 0


def register(app: typer.Typer) -> None:
    """Add ``sluice bench`` and its commands."""
    group = typer.Typer(
        name="bench",
        help="Benchmarks of speed and of error rates on this machine.",
        epilog="Example: sluice bench poc --quick",
        no_args_is_help=True,
    )

    @group.callback()
    def bench() -> None:
        """Benchmarks of speed and of error rates on this machine."""

    @group.command("poc", epilog="Example: sluice bench poc --quick")
    def poc(
        quick: Annotated[
            bool,
            typer.Option("--quick", help="Run only every fifth planted defect and healthy set-up."),
        ] = False,
        tables: Annotated[
            bool,
            typer.Option(
                "--tables/--no-tables",
                help="Run the two tables of cases: planted defects and healthy set-ups.",
            ),
        ] = True,
        speeds: Annotated[
            bool, typer.Option("--speeds/--no-speeds", help="Measure the speeds.")
        ] = True,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Run the POC gate's benchmark: planted defects, healthy set-ups, speeds.

        The exit code is 1 if a defect is not caught or a healthy set-up fails. Speeds do not affect
        the exit code, because they depend on the machine.
        """
        _run_poc_benchmark(quick=quick, with_cases=tables, with_speeds=speeds, as_json=as_json)

    training.register(group)
    rows.register(group)
    gate.register(group)
    trace.register(group)
    faults.register(group)
    docs.register(group)
    rollout.register(group)
    drift.register(group)
    serving.register(group)
    app.add_typer(group)


def _run_poc_benchmark(*, quick: bool, with_cases: bool, with_speeds: bool, as_json: bool) -> None:
    from sluice.bench.poc.report import benchmark_page

    stderr = Console(stderr=True)
    report = _run_cases(stderr, every=_QUICK_STRIDE if quick else 1) if with_cases else None
    speeds = []
    if with_speeds:
        with stderr.status("measuring speeds"):
            for speed in measure_speeds():
                speeds.append(speed)
                stderr.print(f"  {speed.name}: {speed.value:,.3g} {speed.unit}", highlight=False)
    if as_json:
        content = {
            "tables": report.model_dump(mode="json") if report else None,
            "speeds": [speed.to_json() for speed in speeds],
        }
        print(json.dumps(content, indent=1))
    else:
        if report is not None:
            results_console().print(benchmark_page(report))
        if speeds:
            results_console().print(speed_table(speeds))
    if report is not None and not report.passed:
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _run_cases(stderr: Console, *, every: int) -> "PocBenchmarkReport":
    """Run every ``every``-th planted defect and healthy set-up, and print each result."""
    from sluice.bench.poc.defects import DEFECTS
    from sluice.bench.poc.healthy import HEALTHY
    from sluice.bench.poc.report import defect_line, healthy_line
    from sluice.bench.poc.result import PocBenchmarkReport
    from sluice.bench.poc.runner import run_defects, run_healthy

    defect_results, healthy_results = [], []
    with Progress(console=stderr, transient=True) as progress:
        bar = progress.add_task("planted defects", total=len(DEFECTS[::every]))
        for defect_result in run_defects(every=every):
            defect_results.append(defect_result)
            progress.console.print(defect_line(defect_result), soft_wrap=True)
            progress.advance(bar)
        bar = progress.add_task("healthy set-ups", total=len(HEALTHY[::every]))
        for healthy_result in run_healthy(every=every):
            healthy_results.append(healthy_result)
            progress.console.print(healthy_line(healthy_result), soft_wrap=True)
            progress.advance(bar)
    return PocBenchmarkReport(defects=tuple(defect_results), healthy=tuple(healthy_results))


def measure_speeds() -> Iterator[Speed]:
    """Yield speeds of the POC gate on the default pipeline, and of data functions on random data.

    The full gate and the minimum gate run twice each. Only the second run counts, because the first
    run fills the disk cache.
    """
    yield from _gate_speeds()
    yield _feature_speed()
    yield _range_bar_speed()
    yield _expectation_speed()


def _gate_speeds() -> Iterator[Speed]:
    from sluice.failfast.gate.timing import WHOLE_GATE_CHECK_ID

    for level, options, target_s in (("full", (), 10.0), ("minimum", ("--minimum",), 5.0)):
        for _ in range(2):
            started = time.perf_counter()
            report = _run_poc_command(*options)
            command_s = time.perf_counter() - started
        checks_s = sum(
            result["seconds"]
            for result in report["results"]
            if result["check_id"] != WHOLE_GATE_CHECK_ID
        )
        yield Speed(
            name=f"all checks of the {level} gate", value=checks_s, unit="s", target=target_s
        )
        if level == "full":
            yield Speed(
                name="sluice poc with the full gate, including imports",
                value=command_s,
                unit="s",
                target=25.0,
            )


def _run_poc_command(*options: str) -> dict[str, Any]:
    """Run ``sluice poc`` in a separate process, and return its JSON report."""
    completed = subprocess.run(
        [sys.executable, "-P", "-m", "sluice", "poc", PIPELINE, "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    report: dict[str, Any] = json.loads(completed.stdout)
    return report


def _feature_speed() -> Speed:
    from sluice.workloads.bars_features import FeatureSettings, nine_features

    bars = _random_bars(_MILLION)
    seconds = _shortest_time(lambda: nine_features(bars, FeatureSettings()))
    return Speed(name="nine features, 1,000,000 rows", value=seconds, unit="s", target=1.0)


def _range_bar_speed() -> Speed:
    import numpy as np
    import pandas as pd

    from sluice.data.bar_rules import RangeBars
    from sluice.data.tick_bars import build_bars

    rng = np.random.default_rng(_SEED)
    price = 100 * np.exp(np.cumsum(rng.normal(scale=1e-5, size=_NUM_TICKS)))
    times = pd.date_range("2020-01-01", periods=_NUM_TICKS, freq="ms", name="time")
    size = rng.integers(1, 100, _NUM_TICKS).astype(float)
    ticks = pd.DataFrame({"price": price, "size": size}, index=times)
    rule = RangeBars(tenths_of_bp=100)
    build_bars(ticks.head(1000), rule)  # the first call compiles or loads the loop
    seconds = _shortest_time(lambda: build_bars(ticks, rule))
    return Speed(
        name="range bars, 5,000,000 ticks",
        value=_NUM_TICKS / seconds,
        unit="ticks/s",
        target=5e6,
        higher_is_better=True,
    )


def _expectation_speed() -> Speed:
    from sluice.checks.expectations import evaluate
    from sluice.workloads.bars_contract import raw_expectations

    bars = _random_bars(_MILLION)
    expectations = raw_expectations(min_rows=100)
    evaluate(bars.head(100), expectations, suite="warm_up")  # imports Great Expectations
    seconds = _shortest_time(lambda: evaluate(bars, expectations, suite="raw_data"))
    return Speed(name="expectations, 1,000,000 rows", value=seconds, unit="s", target=2.0)


def _random_bars(num_rows: int) -> "pd.DataFrame":
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(_SEED)
    close = 100 * np.exp(np.cumsum(rng.normal(scale=1e-3, size=num_rows)))
    open_price = close * np.exp(rng.normal(scale=5e-4, size=num_rows))
    top, bottom = np.maximum(open_price, close), np.minimum(open_price, close)
    return pd.DataFrame(
        {
            "open": open_price,
            "high": top * np.exp(rng.exponential(5e-4, size=num_rows)),
            "low": bottom * np.exp(-rng.exponential(5e-4, size=num_rows)),
            "close": close,
            "volume": rng.lognormal(10, 1, size=num_rows),
        },
        index=pd.date_range("2000-01-01", periods=num_rows, freq="min", name="date"),
    )


def _shortest_time(work: Callable[[], object], num_runs: int = 3) -> float:
    """Return the shortest time of several runs [s]: other programs only lengthen a run."""
    seconds = []
    for _ in range(num_runs):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
