"""``sluice bench faults``: the tracer's detection rate on planted faults, and its false alarms."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Console
from rich.progress import Progress

from sluice.base.cpu_count import count_cores
from sluice.base.errors import EXIT_GATE_BLOCKED, ContractError
from sluice.cli.output import results_console

if TYPE_CHECKING:
    from sluice.bench.tracer.case import FaultCase
    from sluice.bench.tracer.running import BenchmarkRun
    from sluice.bench.tracer.scoring import FaultReport

_NUM_EXTRA_HEALTHY_SEEDS = 2
"""Number of additional seeds of the healthy programs. False alarms are rare, so their rate can only
be estimated from many runs."""


def register(group: typer.Typer) -> None:
    """Add ``faults`` to ``sluice bench``."""

    @group.command("faults", epilog="Example: sluice bench faults --faults 16,17 --nets mlp,cnn")
    def faults(
        faults: Annotated[
            str,
            typer.Option(
                "--faults",
                help="Comma-separated numbers of fault programs. Default: all fault programs and "
                "all healthy programs.",
            ),
        ] = "",
        nets: Annotated[
            str,
            typer.Option(
                "--nets", help="Comma-separated networks: some of mlp, cnn, gru and transformer."
            ),
        ] = "mlp,cnn,gru,transformer",
        seeds: Annotated[
            str,
            typer.Option(
                "--seeds",
                help="Comma-separated seeds. The tracer's thresholds were chosen on seeds 0,1,2; "
                "published results use 100,101,102. Healthy programs also run with the two seeds "
                "after the highest one.",
            ),
        ] = "0,1,2",
        baselines: Annotated[
            bool,
            typer.Option(
                "--baselines/--no-baselines",
                help="Also run all programs with other monitors, for comparison.",
            ),
        ] = True,
        check_bits: Annotated[
            bool,
            typer.Option(
                "--check-bits",
                help="Also run all programs untraced, and compare the final weights.",
            ),
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Run programs with one planted fault each, and healthy programs; report what is detected.

        The exit code is 1 if a rate is significantly worse than its target, if traced and untraced
        weights differ, or if a program failed.
        """
        runs = _plan_runs(
            _parse_numbers(faults, "--faults"), _split_words(nets), _parse_numbers(seeds, "--seeds")
        )
        report = _execute_and_score(
            Console(stderr=True), runs, baselines=baselines, check_bits=check_bits
        )
        _print_report(report, as_json=as_json)
        if not report.passed:
            raise typer.Exit(EXIT_GATE_BLOCKED)


def _plan_runs(
    fault_numbers: list[int], nets: list[str], seeds: list[int]
) -> "tuple[BenchmarkRun, ...]":
    from sluice.bench.tracer.case import NetName
    from sluice.bench.tracer.faults.library import FAULT_CASES
    from sluice.bench.tracer.healthy.library import HEALTHY_CASES
    from sluice.bench.tracer.running import plan_runs

    permitted_nets = get_args(NetName)
    requested_nets: list[NetName] = [net for net in permitted_nets if net in nets]
    _reject_unknown_values("--nets", nets, permitted_nets)
    _reject_unknown_values("--faults", fault_numbers, [case.number for case in FAULT_CASES])
    if not seeds or min(seeds) < 0:
        raise ContractError(
            f"--seeds must be non-negative integers; got {seeds or 'none'}.",
            fix="Give at least one, such as --seeds 0,1,2",
        )
    cases: Sequence[FaultCase] = [
        case for case in FAULT_CASES if not fault_numbers or case.number in fault_numbers
    ]
    max_seed = max(seeds)
    return plan_runs(
        cases,
        () if fault_numbers else HEALTHY_CASES,
        nets=requested_nets,
        seeds=seeds,
        more_seeds=range(max_seed + 1, max_seed + 1 + _NUM_EXTRA_HEALTHY_SEEDS),
    )


def _execute_and_score(
    stderr: Console, runs: "Sequence[BenchmarkRun]", *, baselines: bool, check_bits: bool
) -> "FaultReport":
    from sluice.bench.tracer.running import execute_runs
    from sluice.bench.tracer.scoring import score
    from sluice.bench.tracer.table import run_line

    results = []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder_name,
        Progress(console=stderr, transient=True) as progress,
    ):
        bar = progress.add_task("runs", total=len(runs))
        for result in execute_runs(
            runs,
            Path(folder_name),
            workers=count_cores(),
            with_baselines=baselines,
            checks_bits=check_bits,
        ):
            results.append(result)
            line = run_line(result)
            if line is not None:
                progress.console.print(line, soft_wrap=True)
            progress.advance(bar)
    return score(results)


def _print_report(report: "FaultReport", *, as_json: bool) -> None:
    from sluice.bench.tracer.table import report_page

    if as_json:
        print(json.dumps(report.model_dump(mode="json"), indent=1))
    else:
        results_console().print(report_page(report))


def _split_words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _parse_numbers(text: str, option: str) -> list[int]:
    try:
        return [int(word) for word in _split_words(text)]
    except ValueError:
        raise ContractError(
            f"{option} must be comma-separated integers; got '{text}'.",
            fix=f"Write them as in {option} 1,2",
        ) from None


def _reject_unknown_values(
    option: str, requested_values: Sequence[object], permitted_values: Sequence[object]
) -> None:
    """Reject values that are not permitted. Only --nets must not be empty."""
    unknown_values = [value for value in requested_values if value not in permitted_values]
    if unknown_values or (option == "--nets" and not requested_values):
        raise ContractError(
            f"{option} must be some of {', '.join(map(str, permitted_values))}; got "
            f"{', '.join(map(str, unknown_values)) or 'none'}.",
            fix="Give one or more of these, separated by commas.",
        )
