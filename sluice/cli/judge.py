"""``sluice judge``: which answers a language model prefers, and whether its word counts (LLM-1)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from sluice.base.errors import GATE_SAID_NO, SettingsError
from sluice.cli.output import print_json, results
from sluice.evaluation.llm_judge.settings import JudgeSettings

if TYPE_CHECKING:
    from sluice.evaluation.llm_judge.report import JudgeReport

_DEFAULTS = JudgeSettings()
_EXAMPLE = "Example: sluice judge pairs.csv --judge my_models:ask"


def register(app: typer.Typer) -> None:
    """Add ``judge`` to the command line."""
    app.command("judge", epilog=_EXAMPLE)(judge)


def judge(
    pairs: Annotated[
        Path,
        typer.Argument(
            help="Pairs of answers, Parquet or CSV: prompt, candidate, baseline, and where a "
            "person said so human ('candidate', 'baseline' or 'tie').",
            show_default=False,
        ),
    ],
    asked: Annotated[
        str,
        typer.Option(
            "--judge",
            help="Your function 'module:name' from (question, temperature) to the model's answer.",
            show_default=False,
        ),
    ],
    min_self_agreement: Annotated[
        float, typer.Option(help="Share of pairs on which all its answers must agree.")
    ] = _DEFAULTS.min_self_agreement,
    min_human_agreement: Annotated[
        float, typer.Option(help="Share of labelled pairs on which it must agree with the person.")
    ] = _DEFAULTS.min_human_agreement,
    min_labelled: Annotated[
        int, typer.Option(help="With fewer labelled pairs it is not trusted [pairs].")
    ] = _DEFAULTS.min_labelled,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Say which answers a language model prefers, and whether it may be trusted.

    It is asked about each pair in both orders, three times each, at temperature 0. Leaves with 0
    when it is trusted, else with 1.
    """
    from rich.console import Console
    from rich.progress import Progress

    from sluice.base.imports import import_named
    from sluice.evaluation.llm_judge.pairs import read_pairs
    from sluice.evaluation.llm_judge.report import judge_pairs

    settings = JudgeSettings.parse(
        {
            "min_self_agreement": min_self_agreement,
            "min_human_agreement": min_human_agreement,
            "min_labelled": min_labelled,
        },
        where="sluice judge",
    )
    given = read_pairs(pairs)
    ask = import_named(asked, what="judge")
    if not callable(ask):
        raise SettingsError(
            f"The judge '{asked}' must be a function, got one of type {type(ask).__name__}.",
            fix="Name a function from (question, temperature) to the model's answer.",
        )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("pairs", total=len(given))
        report = judge_pairs(
            ask, given, settings, heard=lambda done: progress.update(task, completed=done)
        )
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report.trust != "trusted":
        raise typer.Exit(GATE_SAID_NO)


def _print(report: "JudgeReport") -> None:
    table = Table("", "", box=None, show_header=False, pad_edge=False)
    place = report.first_place_share
    for name, value in (
        ("agrees with itself", report.self_agreement),
        ("agrees in both orders", report.order_agreement),
        ("agrees with people", report.human_agreement),
        ("for what stood first", "-" if place is None else f"{place:.0%}, 50% is no bias"),
        ("answers without a word", f"{report.unread_answers} of {report.num_answers}"),
        ("candidate better", report.candidate_wins),
        ("baseline better", report.baseline_wins),
        ("neither, or the orders differ", report.ties),
        ("undecided", report.undecided),
        ("p of equal chances", f"{report.p_value:.3g}"),
        ("preferred", report.preferred or "nothing is said, because it is not trusted"),
    ):
        table.add_row(name, str(value))
    console = results(markup=False)
    console.print(Text(report.trust, style="bold"))
    console.print(report.reason)
    console.print(table)
