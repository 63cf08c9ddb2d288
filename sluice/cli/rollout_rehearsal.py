"""``sluice rollout rehearse``: see a rollout go through, or come back, before one is needed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sluice.base.errors import GATE_SAID_NO, SettingsError
from sluice.base.home import Home
from sluice.base.settings import nearest
from sluice.cli.output import print_json, results
from sluice.cli.registry_access import AsJson, artifact_store, open_ledger

if TYPE_CHECKING:
    from sluice.rehearsal.faults import Fault
    from sluice.rehearsal.result import Rehearsal
    from sluice.rehearsal.run import Tell
    from sluice.rehearsal.traffic import Counts
    from sluice.rollout_control.standing import Standing

DEFAULT_PIPELINE = "sp500_volatility"


def rehearse(
    pipeline: Annotated[
        str, typer.Argument(help="A pipeline's name, or the path of its defs.yaml.")
    ] = DEFAULT_PIPELINE,
    fault: Annotated[
        str,
        typer.Option(
            help="What is wrong with the challenger: none, errors, latency, nan, drift, quality, "
            "crash, or silence when nobody asks anything."
        ),
    ] = "none",
    seconds: Annotated[
        float, typer.Option(help="How long a healthy rollout may take, from 10 on.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Draws users and what the fault hits.")] = 0,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the server; 0 takes a free one.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Send held-out rows through a real server and a challenger with a fault, in a sandbox.

    The challenger is a twin of what is in production. The real registry and what is in production
    stay as they are. Exit code 0 when it ended as it should, 1 when not.
    """
    from sluice.config.pipeline import defs_folder, find_pipeline
    from sluice.rehearsal.page import save_rehearsal
    from sluice.rehearsal.run import rehearse as run

    planted = _fault(fault)
    settings = find_pipeline(pipeline, defs_folder())
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    with watching(Console(stderr=True), quiet=as_json) as tell, open_ledger() as ledger:
        found = run(
            settings,
            ledger,
            artifact_store(),
            fault=planted,
            seconds=seconds,
            seed=seed,
            port=port,
            tell=tell,
        )
    report = str(save_rehearsal(found, home=home, environ=os.environ).path)
    if as_json:
        content = found.model_dump(mode="json")
        judged = {"as_expected": found.as_expected, "flaws": found.flaws, "report": report}
        print_json(content | judged)
    else:
        _show(found, report)
    if not found.as_expected:
        raise typer.Exit(GATE_SAID_NO)


@contextmanager
def watching(console: Console, *, quiet: bool) -> "Iterator[Tell]":
    """Yield what draws each look: one picture on a terminal, else a line a transition.

    The table of them all is the result's, and goes where results go.
    """
    from sluice.rollout_control.view import standing_view, transition_line

    if not console.is_terminal or quiet:
        told = 0

        def say(standing: "Standing", _counts: "Counts", _drift: str) -> None:
            nonlocal told
            for news in () if quiet else standing.transitions[told:]:
                line = transition_line(news, since=standing.rollout.started_at)
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            told = len(standing.transitions)

        yield say
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        live.update(Text("The server and its challenger start ..."), refresh=True)

        def draw(standing: "Standing", counts: "Counts", drift: str) -> None:
            live.update(
                Group(standing_view(standing, drift=drift), Text(""), _traffic(counts)),
                refresh=True,
            )

        yield draw


def _traffic(counts: "Counts") -> Text:
    return Text.assemble(
        f"requests     {counts.sent:,} sent, {counts.answered:,} answered, ",
        (f"{counts.failed:,} failed", "red" if counts.failed else ""),
    )


def _fault(name: str) -> "Fault":
    from sluice.rehearsal.faults import Fault

    known = list(get_args(Fault))
    if name not in known:
        raise SettingsError(
            f"A rehearsal knows the faults {', '.join(known)}, got '{name}'.{nearest(name, known)}",
            fix="Name one of them with --fault.",
        )
    return cast("Fault", name)


def _show(found: "Rehearsal", report: str) -> None:
    from sluice.rehearsal.page import PLANTED
    from sluice.rollout_control.view import transitions_table

    console = results(markup=True)
    colour = "green" if found.as_expected else "red"
    word = "as it should" if found.as_expected else "NOT as it should"
    console.print()
    console.print(f"[bold]{found.model}[/bold]: [{colour}]{word}[/{colour}].")
    console.print(f"  end      {found.summary}", markup=False)
    console.print(f"  planted  {PLANTED[found.fault]}")
    console.print(f"  why      {found.reason}", markup=False)
    for flaw in found.flaws:
        console.print(f"  flaw     {flaw}", markup=False, style="red")
    for problem in found.problems:
        console.print(f"  server   {problem}", markup=False)
    console.print()
    console.print(transitions_table(found.transitions, since=found.transitions[0].at))
    console.print()
    console.print(f"  report   {report}", markup=False, soft_wrap=True)
