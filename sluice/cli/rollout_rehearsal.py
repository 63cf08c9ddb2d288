"""``sluice rollout rehearse``: runs an end-to-end rollout in a sandbox."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sluice.base.errors import EXIT_GATE_BLOCKED, SettingsError
from sluice.base.home import Home
from sluice.base.settings import suggest_nearest
from sluice.cli.output import print_json, results_console
from sluice.cli.registry_access import AsJson, artifact_store, open_ledger

if TYPE_CHECKING:
    from sluice.rehearsal.faults import InjectedFault
    from sluice.rehearsal.result import Rehearsal
    from sluice.rehearsal.run import OnSample
    from sluice.rehearsal.traffic import RequestCounts
    from sluice.rollout_control.status import RolloutStatus

DEFAULT_PIPELINE = "sp500_volatility"


def rehearse(
    pipeline: Annotated[
        str, typer.Argument(help="A pipeline's name, or the path of its YAML file.")
    ] = DEFAULT_PIPELINE,
    fault: Annotated[
        str,
        typer.Option(
            help="Fault planted in the challenger: none, errors, latency, nan, drift, quality, "
            "crash, or no_traffic for a server without requests."
        ),
    ] = "none",
    seconds: Annotated[
        float,
        typer.Option(
            help="Planned duration of a rollout without a fault, 20 to 3600 [s]. The steps are "
            "shortened to fit. The rehearsal stops after twice this time plus a minute."
        ),
    ] = 60.0,
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Seed of the simulated users, and of the choice of requests with the fault."
        ),
    ] = 0,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the server; 0 selects a free one.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Rehearse a rollout in a sandbox: a real server answers held-out rows.

    The challenger is a copy of the production model with the planted fault. The real registry and
    production are not changed. Exit code 0 when the rollout ended as expected, else 1.
    """
    from sluice.config.pipeline import defs_folder, find_pipeline
    from sluice.config.resolved import resolve
    from sluice.rehearsal.page import save_rehearsal
    from sluice.rehearsal.run import rehearse as run_rehearsal

    planted_fault = _parse_fault(fault)
    resolved = resolve(find_pipeline(pipeline, defs_folder()))
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    with sample_display(Console(stderr=True), quiet=as_json) as on_sample, open_ledger() as ledger:
        rehearsal = run_rehearsal(
            resolved,
            ledger,
            artifact_store(),
            fault=planted_fault,
            seconds=seconds,
            seed=seed,
            port=port,
            on_sample=on_sample,
        )
    report_path = str(save_rehearsal(rehearsal, home=home, environ=os.environ).path)
    if as_json:
        content = rehearsal.model_dump(mode="json")
        outcome = {
            "as_expected": rehearsal.is_as_expected,
            "flaws": rehearsal.deviations,  # differences from the expected result
            "remedy": rehearsal.remedy,
            "report": report_path,
        }
        print_json(content | outcome)
    else:
        _print_result(rehearsal, report_path)
    if not rehearsal.is_as_expected:
        raise typer.Exit(EXIT_GATE_BLOCKED)


@contextmanager
def sample_display(console: Console, *, quiet: bool) -> "Iterator[OnSample]":
    """Yield the function that displays the state of the rollout after each check of the controller.

    On a terminal, the function updates a live view. Otherwise, it prints one line per new
    transition. With ``quiet``, it displays nothing.
    """
    from sluice.rollout_control.view import status_view, transition_line

    if not console.is_terminal or quiet:
        num_printed = 0

        def print_changes(status: "RolloutStatus", _counts: "RequestCounts", _drift: str) -> None:
            nonlocal num_printed
            for transition in () if quiet else status.transitions[num_printed:]:
                line = transition_line(transition, since=status.rollout.started_at)
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            num_printed = len(status.transitions)

        yield print_changes
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        live.update(Text("The server and its challenger start ..."), refresh=True)

        def update_view(status: "RolloutStatus", counts: "RequestCounts", drift: str) -> None:
            live.update(
                Group(status_view(status, drift_text=drift), Text(""), _traffic(counts)),
                refresh=True,
            )

        yield update_view


def _traffic(counts: "RequestCounts") -> Text:
    return Text.assemble(
        f"requests     {counts.num_sent:,} sent, {counts.num_answered:,} answered, ",
        (f"{counts.num_failed:,} failed", "red" if counts.num_failed else ""),
    )


def _parse_fault(name: str) -> "InjectedFault":
    from sluice.rehearsal.faults import InjectedFault

    known_faults = list(get_args(InjectedFault))
    if name not in known_faults:
        raise SettingsError(
            f"--fault must be one of {', '.join(known_faults)}, got "
            f"'{name}'.{suggest_nearest(name, known_faults)}",
            fix="Give one of these names.",
        )
    return cast("InjectedFault", name)


def _print_result(rehearsal: "Rehearsal", report_path: str) -> None:
    from sluice.rehearsal.page import FAULT_DESCRIPTIONS
    from sluice.rollout_control.view import transitions_table

    console = results_console(markup=True)
    colour = "green" if rehearsal.is_as_expected else "red"
    conclusion = "as expected" if rehearsal.is_as_expected else "NOT as expected"
    console.print()
    console.print(f"[bold]{rehearsal.model}[/bold]: [{colour}]{conclusion}[/{colour}].")
    console.print(f"  end      {rehearsal.summary}", markup=False)
    console.print(f"  planted  {FAULT_DESCRIPTIONS[rehearsal.fault]}")
    console.print(f"  why      {rehearsal.reason}", markup=False)
    for deviation in rehearsal.deviations:
        console.print(f"  differs  {deviation}", markup=False, style="red")
    if rehearsal.remedy:
        console.print(f"  do       {rehearsal.remedy}", markup=False)
    for problem in rehearsal.problems:
        console.print(f"  server   {problem}", markup=False)
    console.print()
    console.print(transitions_table(rehearsal.transitions, since=rehearsal.transitions[0].at))
    console.print()
    console.print(f"  report   {report_path}", markup=False, soft_wrap=True)
