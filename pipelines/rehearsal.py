"""Rehearses a rollout at the end of a run that promoted a version."""

import os
import time

from rich.console import Console

from sluice.assets.resources import SluiceState
from sluice.base.errors import SluiceError
from sluice.base.home import Home
from sluice.config.resolved import ResolvedPipeline
from sluice.pipelines.run import RunReport
from sluice.rehearsal.settings import MIN_SECONDS


def with_rehearsal(
    report: RunReport, pipeline: ResolvedPipeline, home: Home, console: Console
) -> RunReport:
    """Return the report with the result of a rehearsal, if the run promoted a served model.

    A failed rehearsal is reported and does not undo the promotion.

    Args:
        report: Report of the run.
        pipeline: The pipeline.
        home: State folder.
        console: Receives one line with the outcome and the duration.
    """
    if not report.promoted or not pipeline.workload.is_served:
        return report
    from sluice.rehearsal.page import save_rehearsal
    from sluice.rehearsal.run import rehearse

    start_s = time.perf_counter()
    state = SluiceState.at(home)
    try:
        with state.ledger() as ledger:
            rehearsal = rehearse(
                pipeline,
                ledger,
                state.store,
                fault="none",
                seconds=MIN_SECONDS,
                seed=0,
                port=0,
                on_sample=lambda *_: None,
            )
        page = save_rehearsal(rehearsal, home=home, environ=os.environ)
    except SluiceError as error:
        is_as_expected, text = False, f"the rehearsal did not run: {error}"
    else:
        is_as_expected = rehearsal.is_as_expected
        text = " ".join(
            [
                f"rehearsed, fault {rehearsal.summary}.",
                *rehearsal.deviations,
                *([f"What to do: {rehearsal.remedy}"] if rehearsal.remedy else []),
                f"Report: {page.path}",
            ]
        )
    seconds = time.perf_counter() - start_s
    mark = "[green]ok[/green]" if is_as_expected else "[red]no[/red]"
    console.print(f"  {mark}  {'rehearsal':<42} {seconds:6.1f} s", highlight=False)
    return report.model_copy(
        update={
            "rehearsal": text,
            "rehearsal_good": is_as_expected,
            "stage_seconds": report.stage_seconds | {"rehearsal": seconds},
            "wall_seconds": report.wall_seconds + seconds,
        }
    )
