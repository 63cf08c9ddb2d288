"""``sluice gate``: runs the promotion gate on files of losses."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sluice.base.errors import EXIT_GATE_BLOCKED, SettingsError
from sluice.base.files import write_atomic
from sluice.base.format_number import format_number
from sluice.base.format_range import format_range
from sluice.cli.output import print_json, results_console
from sluice.evaluation.settings import GateSettings

if TYPE_CHECKING:
    from sluice.evaluation.losses import LossTable
    from sluice.verdicts.verdict import Verdict

_DEFAULTS = GateSettings()
_EXAMPLE = "Example: sluice gate --baseline production.parquet --candidate new.csv --horizon 1"


def register(app: typer.Typer) -> None:
    """Add ``gate`` to the command line."""
    app.command("gate", epilog=_EXAMPLE)(gate)


def gate(
    baseline: Annotated[
        Path,
        typer.Option(
            help="Losses of the production model: Parquet or CSV with the columns seed, fold, row, "
            "loss. The column seed is empty for a rule without seeds. An optional column cluster "
            "groups dependent rows, such as the assets of one day.",
            show_default=False,
        ),
    ],
    candidate: Annotated[
        list[Path],
        typer.Option(
            help="Losses of the candidate on the same rows; may be repeated. Several candidates "
            "are tested together, with Holm's correction.",
            show_default=False,
        ),
    ],
    horizon: Annotated[
        int,
        typer.Option(
            min=0,
            help="Forecast horizon of the target [rows]; 0 when rows are independent.",
        ),
    ] = 1,
    alpha: Annotated[
        float, typer.Option(help="One-sided rate of false promotions, in (0, 0.5).")
    ] = _DEFAULTS.alpha,
    min_gain: Annotated[
        float,
        typer.Option(
            help="Mean gain that a candidate must significantly exceed to be promoted [loss units]."
        ),
    ] = _DEFAULTS.min_gain,
    margin_share: Annotated[
        float,
        typer.Option(help="Equivalence margin, as a fraction of the baseline's mean loss."),
    ] = _DEFAULTS.equivalence_margin_share,
    min_seeds: Annotated[
        int,
        typer.Option(
            help="Minimum number of seeds; with fewer seeds, the verdict is INCONCLUSIVE."
        ),
    ] = _DEFAULTS.min_seeds,
    min_rows: Annotated[
        int,
        typer.Option(
            help="Minimum number of test rows; with fewer rows, the verdict is INCONCLUSIVE."
        ),
    ] = _DEFAULTS.min_rows,
    block_length: Annotated[
        int | None,
        typer.Option(
            help="Minimum block length [rows]. A longer estimated block length is used instead.",
            show_default=False,
        ),
    ] = None,
    explore: Annotated[
        bool,
        typer.Option(
            "--explore",
            help="For ablations: show which candidates differ from the baseline, at a false "
            "discovery rate of alpha (Benjamini-Hochberg), without a decision.",
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Also write a report with figures to this HTML file; requires a single candidate.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test whether the candidate is better than the baseline.

    Exit code 0 if the verdict on at least one candidate is PROMOTE, else 1. With --explore always
    0.
    """
    if html is not None and len(candidate) > 1:
        raise SettingsError(
            f"A report requires a single candidate, got {len(candidate)}.",
            fix="Leave --html out, or run the command once per candidate.",
        )
    # Imported here, because pandas and scipy take a second to import, and --help needs neither.
    from sluice.evaluation.comparison import compare
    from sluice.evaluation.loss_sources import losses_of
    from sluice.evaluation.multiplicity import adjust_cohort

    settings = GateSettings.parse(
        {
            "alpha": alpha,
            "min_gain": min_gain,
            "equivalence_margin_share": margin_share,
            "min_seeds": min_seeds,
            "min_rows": min_rows,
            "block_length": block_length,
        },
        where="sluice gate",
    )
    baseline_losses = losses_of(baseline, what="baseline")
    candidate_tables = [losses_of(path, what="candidate") for path in candidate]
    verdicts = [
        compare(candidate_losses, baseline_losses, settings, horizon_rows=horizon)
        for candidate_losses in candidate_tables
    ]
    if html is not None:
        title = f"{candidate[0].name} against {baseline.name}"
        _write_report(
            html,
            title,
            verdicts[0],
            candidate_tables[0],
            baseline_losses,
            settings,
            horizon_rows=horizon,
        )
    if explore:
        _print_exploration(verdicts, candidate, as_json=as_json)
        return
    if len(verdicts) > 1:
        verdicts = list(adjust_cohort(verdicts, alpha=alpha))
    if as_json:
        content = [verdict.model_dump(mode="json") for verdict in verdicts]
        print_json(content[0] if len(content) == 1 else content)
    elif len(verdicts) == 1:
        _print_verdict(verdicts[0], results_console())
    else:
        _print_cohort(verdicts, candidate, results_console(markup=False))
    if not any(verdict.passed for verdict in verdicts):
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _write_report(
    path: Path,
    title: str,
    verdict: "Verdict",
    candidate: "LossTable",
    baseline: "LossTable",
    settings: GateSettings,
    *,
    horizon_rows: int,
) -> None:
    # Imported here, because figures are rarely requested.
    from sluice.evaluation.gate_page import gate_page_of

    page = gate_page_of(
        verdict, candidate, baseline, settings, title=title, horizon_rows=horizon_rows
    )
    write_atomic(path, page.encode())
    typer.echo(f"report: {path}", err=True)


def _print_exploration(
    verdicts: Sequence["Verdict"], files: Sequence[Path], *, as_json: bool
) -> None:
    """Print which candidates differ from the baseline, at a false discovery rate of alpha."""
    from sluice.evaluation.multiplicity import benjamini_hochberg

    # Convert one-sided to two-sided p-values, because a candidate may be better or worse.
    p_values = [2 * min(verdict.p_value, 1 - verdict.p_value) for verdict in verdicts]
    adjusted_p_values = benjamini_hochberg(p_values)
    rows: list[dict[str, Any]] = [
        {
            "candidate": file.name,
            "gain": verdict.gain,
            "effect_size": verdict.effect_size,
            "p_value": p_value,
            "adjusted_p": adjusted_p,
            "differs": adjusted_p <= verdict.alpha and not verdict.lacking,
        }
        for file, verdict, p_value, adjusted_p in zip(
            files, verdicts, p_values, adjusted_p_values, strict=True
        )
    ]
    if as_json:
        print_json(rows)
        return
    table = Table(title="Exploratory comparison, without a decision", title_justify="left")
    for name in ("candidate", "gain", "effect size", "p", "p, Benjamini-Hochberg", "differs"):
        table.add_column(name, justify="left" if name == "candidate" else "right")
    for row in rows:
        numbers = (
            format_number(row[name], ".3g")
            for name in ("gain", "effect_size", "p_value", "adjusted_p")
        )
        table.add_row(str(row["candidate"]), *numbers, "yes" if row["differs"] else "")
    results_console(markup=False).print(table)


def _print_cohort(verdicts: Sequence["Verdict"], files: Sequence[Path], console: Console) -> None:
    from sluice.evaluation.multiplicity import holm

    table = Table(title=f"{len(verdicts)} candidates, tested together", title_justify="left")
    for name in ("candidate", "verdict", "gain", "low", "high", "p", "p, Holm"):
        table.add_column(name, justify="left" if name in ("candidate", "verdict") else "right")
    adjusted_p_values = holm([verdict.p_value for verdict in verdicts])
    for file, verdict, adjusted_p in zip(files, verdicts, adjusted_p_values, strict=True):
        bounds = (verdict.lower_bound, verdict.upper_bound)
        numbers = (verdict.gain, *bounds, verdict.p_value, adjusted_p)
        cells = (format_number(number, ".3g") for number in numbers)
        table.add_row(file.name, verdict.outcome, *cells)
    console.print(table)
    for file, verdict in zip(files, verdicts, strict=True):
        console.print(f"{file.name}: {verdict.reason}")


def _print_verdict(verdict: "Verdict", console: Console) -> None:
    confidence_text = f"{1 - verdict.alpha:.4g} one-sided"
    seeds = str(verdict.num_reference_seeds or "none")
    rows = (
        (
            "loss, candidate / baseline",
            f"{format_number(verdict.candidate_loss, '.6g')} / "
            f"{format_number(verdict.reference_loss, '.6g')}",
        ),
        ("gain", f"{format_number(verdict.gain)}, required > {verdict.required:.4g}"),
        (
            f"bounds ({confidence_text})",
            format_range(format_number(verdict.lower_bound), format_number(verdict.upper_bound)),
        ),
        (
            "standard error",
            f"{format_number(verdict.standard_error, '.3g')} "
            f"(seeds {format_number(verdict.seed_se, '.3g')}, "
            f"rows {format_number(verdict.row_se, '.3g')})",
        ),
        ("p-value, one-sided", format_number(verdict.p_value, ".3g")),
        ("effect size (Cohen's d)", format_number(verdict.effect_size, ".3g")),
        ("seeds, candidate / baseline", f"{verdict.num_seeds} / {seeds}"),
        ("test rows", verdict.rows_summary),
    )
    table = Table(title=verdict.outcome, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    fold_table = Table(title="By fold", title_justify="left")
    for name in ("fold", "gain", "low", "high", "rows"):
        fold_table.add_column(name, justify="right")
    for fold in verdict.folds:
        numbers = (format_number(value) for value in (fold.gain, fold.low, fold.high))
        fold_table.add_row(str(fold.fold_id), *numbers, str(fold.num_rows))
    console.print(table, fold_table)
    console.print(f"{verdict.reason} {verdict.remedy}", markup=False)
