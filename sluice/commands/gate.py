"""``sluice gate``: judge two files of losses, as the pipeline's promotion gate would."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sluice.commands.output import results
from sluice.digests import digest_frame
from sluice.errors import GATE_SAID_NO
from sluice.evaluation.comparison import compare
from sluice.evaluation.losses import LossTable, read_losses
from sluice.evaluation.settings import GateSettings
from sluice.evaluation.verdict import Verdict
from sluice.files import write_atomic

_DEFAULTS = GateSettings()
_EXAMPLE = "Example: sluice gate --baseline production.parquet --candidate new.csv --horizon 1"


def register(app: typer.Typer) -> None:
    """Add ``gate`` to the command line."""
    app.command("gate", epilog=_EXAMPLE)(gate)


def gate(
    baseline: Annotated[
        Path,
        typer.Option(
            help="Losses of what is in production: Parquet or CSV with the columns seed, fold, "
            "row, loss; seed empty for a rule without seeds.",
            show_default=False,
        ),
    ],
    candidate: Annotated[
        Path,
        typer.Option(help="Losses of the candidate on the same rows.", show_default=False),
    ],
    horizon: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many rows ahead a target looks [rows]; 0 when rows are independent.",
        ),
    ] = 1,
    alpha: Annotated[
        float, typer.Option(help="One-sided rate of false promotions, in (0, 0.5).")
    ] = _DEFAULTS.alpha,
    min_gain: Annotated[
        float, typer.Option(help="Smallest mean gain worth a promotion [loss units].")
    ] = _DEFAULTS.min_gain,
    margin_share: Annotated[
        float,
        typer.Option(help="Gains below this share of the baseline's mean loss do not matter."),
    ] = _DEFAULTS.equivalence_margin_share,
    min_seeds: Annotated[
        int, typer.Option(help="Fewer seeds decide nothing.")
    ] = _DEFAULTS.min_seeds,
    min_rows: Annotated[
        int, typer.Option(help="Fewer test rows decide nothing [rows].")
    ] = _DEFAULTS.min_rows,
    block_length: Annotated[
        int | None,
        typer.Option(
            help="Rows of a bootstrap block; estimated when left out.", show_default=False
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write a report with pictures to this file.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Say whether the candidate is proven better than the baseline.

    Leaves with 0 for PROMOTE and 1 for REJECT, EQUIVALENT or INCONCLUSIVE.
    """
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
    ours, theirs = _read(candidate), _read(baseline)
    verdict = compare(ours, theirs, settings, horizon_rows=horizon)
    if html is not None:
        title = f"{candidate.name} against {baseline.name}"
        _write_report(html, title, verdict, ours, theirs, settings, horizon_rows=horizon)
    if as_json:
        typer.echo(json.dumps(_plain(verdict), indent=2))
    else:
        _show(verdict, results())
    if not verdict.passed:
        raise typer.Exit(GATE_SAID_NO)


def _write_report(
    path: Path,
    title: str,
    verdict: Verdict,
    candidate: LossTable,
    baseline: LossTable,
    settings: GateSettings,
    *,
    horizon_rows: int,
) -> None:
    # Imported here: pictures are asked for rarely.
    from sluice.evaluation.companions import CompanionSettings, accompany
    from sluice.evaluation.gate_page import gate_page

    companions = accompany(
        verdict, candidate, baseline, CompanionSettings(), horizon_rows=horizon_rows
    )
    page = gate_page(
        verdict,
        companions,
        candidate,
        baseline,
        title=title,
        advised_power=settings.advised_power,
    )
    write_atomic(path, page.encode())
    typer.echo(f"report: {path}", err=True)


def _read(path: Path) -> LossTable:
    """Name the losses by their own digest, so that a file and its copy are one model."""
    table = read_losses(path, subject="")
    return replace(table, subject=digest_frame(table.to_frame()))


def _plain(verdict: Verdict) -> dict[str, object]:
    """Return the verdict as strict JSON data: numbers that are not finite become null."""
    values: dict[str, object] = json.loads(
        verdict.model_dump_json(), parse_constant=lambda _constant: None
    )
    return values


def _show(verdict: Verdict, console: Console) -> None:
    bound = f"{1 - verdict.alpha:.4g} one-sided"
    seeds = str(verdict.num_reference_seeds or "none")
    rows = (
        (
            "loss, candidate / baseline",
            f"{verdict.candidate_loss:.6g} / {verdict.reference_loss:.6g}",
        ),
        ("gain", f"{verdict.gain:.4g}, required > {verdict.required:.4g}"),
        (f"bounds ({bound})", f"{verdict.lower_bound:.4g} to {verdict.upper_bound:.4g}"),
        (
            "standard error",
            f"{verdict.standard_error:.3g} "
            f"(seeds {verdict.seed_se:.3g}, rows {verdict.row_se:.3g})",
        ),
        ("p-value, one-sided", f"{verdict.p_value:.3g}"),
        ("effect size (Cohen's d)", f"{verdict.effect_size:.3g}"),
        ("seeds, candidate / baseline", f"{verdict.num_seeds} / {seeds}"),
        ("test rows", f"{verdict.num_rows} in blocks of {verdict.block_length}"),
    )
    table = Table(title=verdict.outcome, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    folds = Table(title="By fold", title_justify="left")
    for name in ("fold", "gain", "low", "high", "rows"):
        folds.add_column(name, justify="right")
    for fold in verdict.folds:
        numbers = (f"{value:.4g}" for value in (fold.gain, fold.low, fold.high))
        folds.add_row(str(fold.fold_id), *numbers, str(fold.num_rows))
    console.print(table, folds)
    console.print(f"{verdict.reason} {verdict.remedy}", markup=False)
