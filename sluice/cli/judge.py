"""``sluice judge``: measures which answers a language model prefers, and how reliably."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from sluice.base.errors import EXIT_GATE_BLOCKED, SettingsError
from sluice.cli.output import print_json, results_console
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
            help="File of pairs of answers, Parquet or CSV. Columns: prompt, candidate, baseline; "
            "optionally human, a person's choice ('candidate', 'baseline', 'tie' or empty).",
            show_default=False,
        ),
    ],
    judge_path: Annotated[
        str,
        typer.Option(
            "--judge",
            help="Your function, as 'module:name'. It takes (question, temperature) and returns "
            "the answer of the model.",
            show_default=False,
        ),
    ],
    min_self_agreement: Annotated[
        float,
        typer.Option(
            help="The share of pairs on which all answers of the model are the same must be "
            "significantly above this value."
        ),
    ] = _DEFAULTS.min_self_agreement,
    min_human_agreement: Annotated[
        float,
        typer.Option(
            help="The share of labelled pairs on which the model agrees with the person must be "
            "significantly above this value."
        ),
    ] = _DEFAULTS.min_human_agreement,
    min_labelled: Annotated[
        int,
        typer.Option(
            help="The choices of the model count as reliable only with at least this number of "
            "labelled pairs."
        ),
    ] = _DEFAULTS.min_labelled,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure which answers a language model prefers, and whether its choices are reliable.

    The model is asked about each pair six times at temperature 0: three times in each order of the
    two answers. Exit code 0 when its choices are reliable, else 1.
    """
    from rich.console import Console
    from rich.progress import Progress

    from sluice.base.imports import import_object
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
    answer_pairs = read_pairs(pairs)
    ask_model = import_object(judge_path, what="judge")
    if not callable(ask_model):
        raise SettingsError(
            f"The judge '{judge_path}' must be a function, got an object of type "
            f"{type(ask_model).__name__}.",
            fix="Name a function that takes (question, temperature) and returns the model's "
            "answer.",
        )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("pairs", total=len(answer_pairs))
        report = judge_pairs(
            ask_model,
            answer_pairs,
            settings,
            on_pair=lambda count: progress.update(task, completed=count),
        )
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if report.trust != "trusted":
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _print_report(report: "JudgeReport") -> None:
    table = Table("", "", box=None, show_header=False, pad_edge=False)
    first_place_share = report.first_place_share
    first_place_text = (
        "-" if first_place_share is None else f"{first_place_share:.0%} (50% is unbiased)"
    )
    for name, value in (
        ("agrees with itself", report.self_agreement),
        ("agrees in both orders", report.order_agreement),
        ("agrees with people", report.human_agreement),
        ("prefers the first answer", first_place_text),
        ("answers that cannot be read", f"{report.unparsed_answers} of {report.num_answers}"),
        ("candidate better", report.candidate_wins),
        ("baseline better", report.baseline_wins),
        ("tie, or the orders disagree", report.ties),
        ("no readable choice", report.undecided),
        ("p-value of equal preference", f"{report.p_value:.3g}"),
        ("preferred", report.preferred or "not reported, because the judge is not reliable"),
    ):
        table.add_row(name, str(value))
    console = results_console(markup=False)
    console.print(Text(report.trust, style="bold"))
    console.print(report.reason)
    console.print(table)
