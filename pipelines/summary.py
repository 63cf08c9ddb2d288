"""The summary at the end of a run: verdict, reason, durations, next commands."""

from operator import itemgetter

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.assets.resources import SluiceState
from sluice.base.command_lines import make_commands_runnable
from sluice.base.digests import short
from sluice.base.home import Home
from sluice.pipelines.run import RunReport

_NUM_PRINTED_STAGES = 3
"""Number of stages whose duration is printed."""


def print_summary(
    report: RunReport, home: Home, console: Console, *, pipeline: str, program: str
) -> None:
    """Print the summary of a run on ``console``.

    Args:
        report: Report of the run.
        home: State folder.
        console: Where to print.
        pipeline: The name or path given by the user, for the next commands.
        program: The command by which the user starts ``sluice``.
    """
    console.print()
    headline = make_commands_runnable(_headline(report), [pipeline], program=program)
    console.print(headline, highlight=False)
    reason = make_commands_runnable(report.reason, [pipeline], program=program)
    _print_field(console, "why", reason)
    for symptom in report.symptoms:
        if symptom not in report.reason:
            advice = make_commands_runnable(symptom, [pipeline], program=program)
            _print_field(console, "training", advice)
    if not report.gate_passed and report.remedy:
        advice = make_commands_runnable(report.remedy, [pipeline], program=program)
        _print_field(console, "do", advice)
    if not report.created:
        _print_field(
            console,
            "same",
            f"Data, config, code and weights are the same as in version {report.version}, so no "
            "new version was registered.",
        )
    with SluiceState.at(home).ledger() as ledger:
        version = ledger.version(report.pipeline, report.version)
    _print_field(console, "digest", short(version.candidate))
    _print_field(console, "took", _duration_text(report))
    if report.rehearsal:
        style = "" if report.rehearsal_good else "bold red"
        _print_field(console, "rollout", report.rehearsal, style=style)
    console.print()
    console.print(_metrics_table(report))
    console.print()
    console.print("next", style="bold")
    commands = [
        (f"{program} {arguments}", purpose)
        for arguments, purpose in next_commands(report, pipeline)
    ]
    width = max(len(command) for command, _ in commands)
    for command, purpose in commands:
        console.print(f"  {escape(command):<{width}}   {purpose}", highlight=False, soft_wrap=True)


def _print_field(console: Console, label: str, text: str, *, style: str = "") -> None:
    """Print a label and its text; on a terminal, the text is wrapped in its own column."""
    if not console.is_terminal:
        line = Text(f"  {label:<8} {text}", style=style)
        console.print(line, highlight=False, soft_wrap=True)
        return
    field = Table.grid(padding=0)
    field.add_column(width=11)
    field.add_column(overflow="fold")
    field.add_row(Text(f"  {label}", style=style), Text(text, style=style))
    console.print(field)


def next_commands(report: RunReport, pipeline: str) -> list[tuple[str, str]]:
    """Return the suggested next commands, as arguments of ``sluice``, with what each does."""
    commands = [(f"registry show {report.pipeline}", "the version and its receipts")]
    if report.needs_approval:
        approve = f"registry approve {report.pipeline} {report.version} --reason '...'"
        commands.append((approve, "approve the promotion; the sensor or the next run continues"))
    if report.rolls_out:
        commands.append((f"rollout watch {report.pipeline}", "status of the rollout"))
    elif report.production is not None:
        commands.append((f"serve {pipeline}", "serve the production model"))
    return [*commands, (f"dev {pipeline}", "every decision as a page in the Dagster UI")]


def _headline(report: RunReport) -> str:
    name = f"[bold]{report.pipeline}[/bold]"
    number = report.version
    worse_text = f", with worse {escape(report.worse)}" if report.worse else ""
    if report.promoted:
        return f"{name}: [green]PROMOTED[/green]{worse_text}. Version {number} is in production."
    if report.in_production:
        return f"{name}: version {number} is already in production; no decision was needed."
    if report.rolls_out:
        return (
            f"{name}: [green]PROMOTE[/green]{worse_text}. The rollout of version {number} has "
            f"started; version {report.production} stays in production until all steps have passed."
        )
    if report.verdict == "PROMOTE":
        waits_for = escape(report.waits_for)
        return f"{name}: [yellow]PROMOTE, not in production yet[/yellow]{worse_text}. {waits_for}"
    serving = (
        f"version {report.production} stays in production"
        if report.production
        else "no version is in production yet"
    )
    return (
        f"{name}: [red]not promoted[/red] ({report.verdict}). Version {number} is registered; "
        f"{serving}."
    )


def _metrics_table(report: RunReport) -> Table:
    table = Table(
        "metric on the test rows",
        "candidate",
        report.compared_with,
        "better is",
        box=None,
        pad_edge=False,
    )
    for column in table.columns[1:3]:
        column.justify = "right"
    for name, value in report.metrics.items():
        reference_value = report.reference_metrics.get(name)
        unit = f" [{report.loss_unit}]" if name == "loss" and report.loss_unit else ""
        table.add_row(
            f"  {escape(name + unit)}",
            f"{value:.4g}",
            "" if reference_value is None else f"{reference_value:.4g}",
            report.metric_directions.get(name, ""),
        )
    return table


def _duration_text(report: RunReport) -> str:
    """Return the wall time and the longest stages, as text."""
    stages = sorted(report.stage_seconds.items(), key=itemgetter(1), reverse=True)
    longest = ", ".join(
        f"{stage} {seconds:.1f} s" for stage, seconds in stages[:_NUM_PRINTED_STAGES]
    )
    of_which = f", of which {longest}" if longest else ""
    return f"{report.wall_seconds:.1f} s wall time{of_which}"
