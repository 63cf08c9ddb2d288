"""``sluice doctor randomness``, ``learning-rate`` and ``batch-size``: training diagnostics."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.base.errors import EXIT_GATE_BLOCKED
from sluice.base.home import Home
from sluice.cli.output import results_console

if TYPE_CHECKING:
    from sluice.config.resolved import ResolvedPipeline
    from sluice.training.batch_size_search import BatchSizeResult
    from sluice.training.randomness_report import RandomnessReport
    from sluice.training.range_test import RangeTest
    from sluice.workloads.examples import Examples
    from sluice.workloads.workload import Workload

_GIB = 2**30
_Pipeline = Annotated[str, typer.Argument(help="A pipeline's name, or the path of its YAML file.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def add_training_doctors(group: typer.Typer) -> None:
    """Add the diagnostics of a pipeline's training to ``sluice doctor``."""

    @group.command()
    def randomness(pipeline: _Pipeline, as_json: _Json = False) -> None:
        """List every source of randomness of a training, and whether it is seeded.

        The command runs each part of the workload once, and trains for one epoch on one batch. It
        lists, with file and line, the code that draws from a global generator, and the operations
        without a deterministic implementation. The exit code is 0 for any result.

        Example: sluice doctor randomness sp500_volatility
        """
        from sluice.training.randomness_report import examine_randomness

        resolved = _resolve_pipeline(pipeline)
        settings = resolved.settings
        report = examine_randomness(
            resolved.workload, settings.model, settings.training, seed=settings.seeds[0]
        )
        _print(report.model_dump_json(indent=1), _randomness_tables(report), as_json=as_json)

    @group.command()
    def learning_rate(
        pipeline: _Pipeline,
        steps: Annotated[
            int, typer.Option(help="Number of learning rates, one per step.", min=20)
        ] = 200,
        as_json: _Json = False,
    ) -> None:
        """Run a range test: find the learning rate at which the loss falls most steeply.

        The curve is also saved as a page in SLUICE_HOME/reports. Exit code 1 when the loss does not
        fall at any learning rate.

        Example: sluice doctor learning-rate sp500_volatility --steps 400
        """
        resolved = _resolve_pipeline(pipeline)
        result = _run_range_test(resolved, steps)
        _save_curve(result, resolved)
        summary = Text("\n".join(part for part in (result.summary, result.fix) if part))
        _print(result.model_dump_json(indent=1), summary, as_json=as_json)
        if result.rate is None:
            raise typer.Exit(EXIT_GATE_BLOCKED)

    @group.command()
    def batch_size(
        pipeline: _Pipeline,
        limit_rows: Annotated[
            int, typer.Option(help="Maximum batch size to try [rows].", min=1)
        ] = 4096,
        memory_gib: Annotated[
            float | None,
            typer.Option(
                help="Memory limit of the training [GiB]. Default: half of the free memory."
            ),
        ] = None,
        as_json: _Json = False,
    ) -> None:
        """Find the largest batch that fits into memory, by running training steps.

        Example: sluice doctor batch-size sp500_volatility --memory-gib 2
        """
        result = _search_batch(_resolve_pipeline(pipeline), limit_rows, memory_gib)
        _print(result.model_dump_json(indent=1), _batch_table(result), as_json=as_json)


def _resolve_pipeline(pipeline: str) -> "ResolvedPipeline":
    from sluice.config.pipeline import defs_folder, find_pipeline
    from sluice.config.resolved import resolve

    return resolve(find_pipeline(pipeline, defs_folder()))


def _print(json_text: str, content: Group | Text, *, as_json: bool) -> None:
    if as_json:
        print(json_text)
    else:
        results_console().print(content)


def _fit_first_fold(workload: "Workload") -> "tuple[Workload, Examples]":
    """Return the workload, fitted on the first fold, and the train rows of this fold."""
    from sluice.workloads.fitted_state import fit_workload

    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    fitted_workload = fit_workload(workload, frame, fold)
    return fitted_workload, fitted_workload.examples(frame, fold.train)


def _run_range_test(pipeline: "ResolvedPipeline", steps: int) -> "RangeTest":
    from sluice.base.seeding import deterministic
    from sluice.training.descent import RangeTestSettings
    from sluice.training.range_test import range_test
    from sluice.workloads.prepare_model import prepare_model

    test_settings = RangeTestSettings.parse({"num_steps": steps}, where="--steps")
    settings = pipeline.settings
    workload, train = _fit_first_fold(pipeline.workload)
    with deterministic():
        model = prepare_model(workload, settings.model, train, seed=settings.seeds[0])
        return range_test(
            model,
            workload.loss,
            train,
            test_settings,
            training=settings.training,
            seed=settings.seeds[0],
            groups=workload.parameter_groups(model.network),
        )


def _save_curve(result: "RangeTest", pipeline: "ResolvedPipeline") -> None:
    import base64
    from html import escape as html_escape

    from sluice.reports.folder import save_page
    from sluice.reports.page import html_page
    from sluice.training.range_test_plot import range_test_png

    settings = pipeline.settings
    encoded_png = base64.b64encode(range_test_png(result, unit=pipeline.workload.loss_unit))
    title = f"Learning rates of {settings.name}"
    body = (
        f"<h1>{html_escape(title)}</h1>\n<p>{html_escape(result.summary)}</p>\n"
        f"<p>{html_escape(result.fix)}</p>\n"
        f"<p class=soft>Learning rate in the settings: {settings.training.learning_rate:g}.</p>\n"
        f'<div class="card"><img alt="loss over learning rate" '
        f'src="data:image/png;base64,{encoded_png.decode()}"></div>'
    )
    page = save_page(
        html_page(title, body),
        f"learning_rate/{settings.name}/range_test",
        home=Home.from_environment(os.environ, cwd=Path.cwd()),
        environ=os.environ,
    )
    print(f"page: {page.path}", file=sys.stderr)


def _search_batch(
    pipeline: "ResolvedPipeline", limit_rows: int, memory_gib: float | None
) -> "BatchSizeResult":
    import torch

    from sluice.base.memory import available_bytes
    from sluice.training.batch_size_search import find_largest_batch
    from sluice.training.device import resolve_device

    settings = pipeline.settings
    device = resolve_device(settings.training.device)
    if memory_gib is not None:
        memory_bytes = int(memory_gib * _GIB)
    elif device.type == "cuda":
        memory_bytes = torch.cuda.mem_get_info(device)[0] // 2
    else:
        memory_bytes = available_bytes() // 2
    workload, train = _fit_first_fold(pipeline.workload)
    return find_largest_batch(
        workload,
        settings.model,
        train,
        settings.training,
        limit_rows=limit_rows,
        memory_bytes=memory_bytes,
        gap_share=0.1,
        device=device,
        seed=settings.seeds[0],
    )


def _randomness_tables(report: "RandomnessReport") -> Group:
    source_table = Table("source", "status", "detail", box=None, pad_edge=False)
    for source in report.audit.sources:
        colour = "green" if source.status in ("seeded", "not started") else "yellow"
        source_table.add_row(
            source.name, f"[{colour}]{source.status}[/{colour}]", escape(source.detail)
        )
    draw_table = Table("operation", "draws from", box=None, pad_edge=False)
    for draw in report.draws:
        draw_table.add_row(draw.operation, escape(", ".join(draw.moved)) or "nothing")
    findings = "\n".join(report.findings) or "Every source of randomness has its own seed."
    return Group(source_table, Text(), draw_table, Text(), Text(findings))


def _batch_table(result: "BatchSizeResult") -> Group:
    attempt_table = Table(
        "rows", "fits", "peak memory", "seconds", "problem", box=None, pad_edge=False
    )
    for attempt in result.attempts:
        attempt_table.add_row(
            f"{attempt.rows:,}",
            "yes" if attempt.fits else "no",
            f"{attempt.peak_bytes / _GIB:.3f} GiB",
            f"{attempt.seconds:.2f}",
            escape(attempt.problem),
        )
    limit_text = (
        "memory" if result.bound == "memory" else "--limit-rows or the number of train rows"
    )
    summary = (
        f"The largest batch that ran has {result.rows:,} rows, limited by {limit_text} "
        f"(memory limit: {result.memory_bytes / _GIB:.2f} GiB)."
    )
    return Group(attempt_table, Text(), Text(summary))
