"""The end of a run that promoted: what is new in production goes through a rollout once."""

import os
import time

from rich.console import Console

from sluice.assets.resources import State
from sluice.base.errors import SluiceError
from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.pipelines.run import RunReport
from sluice.rehearsal.settings import FEWEST_SECONDS


def with_rehearsal(
    report: RunReport, pipeline: PipelineSettings, home: Home, console: Console
) -> RunReport:
    """Return the report with how a healthy rehearsal went, when the run moved production.

    A rehearsal that fails undoes nothing; it is said.

    Args:
        report: Of the run.
        pipeline: Its settings.
        home: State folder.
        console: Hears how long it took.
    """
    if not report.promoted:
        return report
    from sluice.rehearsal.page import save_rehearsal
    from sluice.rehearsal.run import rehearse

    began = time.perf_counter()
    state = State.at(home)
    try:
        with state.ledger() as ledger:
            found = rehearse(
                pipeline,
                ledger,
                state.store,
                fault="none",
                seconds=FEWEST_SECONDS,
                seed=0,
                port=0,
                tell=lambda *_: None,
            )
        page = save_rehearsal(found, home=home, environ=os.environ)
    except SluiceError as error:
        is_good, said = False, f"the rehearsal did not run: {error}"
    else:
        is_good = found.as_expected
        said = " ".join(
            [f"rehearsed, fault {found.summary}.", *found.flaws, f"Report: {page.path}"]
        )
    seconds = time.perf_counter() - began
    mark = "[green]ok[/green]" if is_good else "[red]no[/red]"
    console.print(f"  {mark}  {'rehearsal':<24} {seconds:6.1f} s", highlight=False)
    return report.model_copy(
        update={
            "rehearsal": said,
            "rehearsal_good": is_good,
            "stage_seconds": report.stage_seconds | {"rehearsal": seconds},
            "wall_seconds": report.wall_seconds + seconds,
        }
    )
