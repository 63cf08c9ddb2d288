"""What a person reads at the end of a run: the verdict and why, the time, what to open next."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluice.assets.resources import State
from sluice.base.command_lines import runnable
from sluice.base.digests import short
from sluice.base.home import Home
from sluice.pipelines.run import RunReport


def summary(
    report: RunReport, home: Home, console: Console, *, pipeline: str, program: str
) -> None:
    """Print the end of a run on ``console``.

    Args:
        report: Of the run.
        home: State folder.
        console: Where to print.
        pipeline: The name or path that was asked for; other commands need the same.
        program: How the user starts ``sluice``.
    """
    console.print()
    console.print(_headline(report), highlight=False)
    why = runnable(report.reason, [pipeline], program=program)
    console.print(f"  why      {escape(why)}", highlight=False)
    if not report.created:
        console.print(
            "  same     Nothing changed since that version was made: same data, config, code and "
            "weights; no new version was written.",
            highlight=False,
        )
    with State.at(home).ledger() as ledger:
        version = ledger.version(report.pipeline, report.version)
    console.print(f"  digest   {short(version.candidate)}", highlight=False)
    if report.rehearsal:
        style = "" if report.rehearsal_good else "bold red"
        console.print(
            f"  rollout  {report.rehearsal}",
            markup=False,
            highlight=False,
            style=style,
        )
    console.print()
    console.print(_metrics(report))
    console.print()
    console.print(_times(report))
    console.print()
    console.print("next", style="bold")
    commands = [
        (f"{program} {arguments}", does) for arguments, does in next_commands(report, pipeline)
    ]
    width = max(len(command) for command, _ in commands)
    for command, does in commands:
        console.print(f"  {escape(command):<{width}}   {does}", highlight=False, soft_wrap=True)


def next_commands(report: RunReport, pipeline: str) -> list[tuple[str, str]]:
    """Return what a person may do now, as arguments of ``sluice``, and what each does."""
    steps = [(f"registry show {report.pipeline}", "the version and its receipts")]
    if report.rolls_out:
        steps.append((f"rollout watch {report.pipeline}", "where its rollout stands"))
    elif report.production is not None:
        steps.append((f"serve {pipeline}", "answers with what is in production"))
    return [*steps, (f"dev {pipeline}", "every decision as a page in the Dagster UI")]


def _headline(report: RunReport) -> str:
    name = f"[bold]{report.pipeline}[/bold]"
    number = report.version
    price = f", with worse {escape(report.worse)}" if report.worse else ""
    if report.promoted:
        return f"{name}: [green]PROMOTED[/green]{price}. Version {number} is in production."
    if report.in_production:
        return f"{name}: version {number} is in production already; nothing to decide."
    if report.rolls_out:
        return (
            f"{name}: [green]PROMOTE[/green]{price}. The rollout of version {number} has begun; "
            f"version {report.production} stays in production until every step held."
        )
    if report.verdict == "PROMOTE":
        return f"{name}: [yellow]PROMOTE, and not in production yet[/yellow]{price}. {report.waits}"
    serving = f"version {report.production}" if report.production else "no version"
    return (
        f"{name}: [red]not promoted[/red] ({report.verdict}). Version {number} is registered; "
        f"{serving} stays in production."
    )


def _metrics(report: RunReport) -> Table:
    table = Table("on the test rows", "candidate", report.compared_with, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, value in report.metrics.items():
        other = report.reference_metrics.get(name)
        table.add_row(f"  {name}", f"{value:.4g}", "" if other is None else f"{other:.4g}")
    return table


def _times(report: RunReport) -> Table:
    table = Table("where the time went", "s", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for stage, seconds in report.stage_seconds.items():
        table.add_row(f"  {stage}", f"{seconds:.1f}")
    table.add_row("  everything around the stages", f"{report.overhead_seconds:.1f}")
    table.add_row("[bold]  wall time[/bold]", f"[bold]{report.wall_seconds:.1f}[/bold]")
    return table
