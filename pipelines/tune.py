"""``sluice tune``: search for a pipeline's settings, and say what to write into its file."""

import json
import os
from typing import Any

import yaml
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.assets.best_config import BestConfig
from sluice.commands.output import results
from sluice.home import Home
from sluice.pipeline import PipelineSettings
from sluice.pipelines.console import RunConsole
from sluice.pipelines.run import search_pipeline
from sluice.reports.folder import save_page
from sluice.tuning.lanes import idle_workers
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Setup
from sluice.tuning.strategy import plan_search
from sluice.tuning.study import Study, shown
from sluice.tuning.study_page import study_page

_BEST = 5


def with_search(
    pipeline: PipelineSettings, *, search: dict[str, Any], compute: dict[str, Any]
) -> PipelineSettings:
    """Return the pipeline with options of the command line in place of what its file says.

    Raises:
        SettingsError: An option has a value that the settings refuse, or the space does not suit
            the pipeline.
    """
    own = (pipeline.search or SearchSettings()).model_dump(mode="python")
    options = SearchSettings.parse(own | search, where="search")
    plan_search(pipeline.searched, options, pipeline.setup)
    machines = pipeline.compute.model_dump(mode="python")
    return pipeline.model_copy(
        update={
            "search": options,
            "compute": type(pipeline.compute).parse(machines | compute, where="compute"),
        }
    )


def tune(pipeline: PipelineSettings, home: Home, *, as_json: bool) -> None:
    """Search, and print what was found."""
    with RunConsole(Console(stderr=True)) as console:
        best, study = search_pipeline(pipeline, home, console)
    page = save_page(
        study_page(study, title=pipeline.name, unit=pipeline.loaded_workload.loss_unit),
        f"searches/{pipeline.name}",
        home=home,
        environ=os.environ,
    )
    if as_json:
        told = study.model_dump(mode="json") | {
            "setup": best.setup.model_dump(mode="json"),
            "found": best.found,
            "page": str(page.path),
        }
        print(json.dumps(told, indent=1))
        return
    results().print(_report(pipeline, best, study, page=str(page.path)))


def differing(base: Setup, found: Setup) -> dict[str, dict[str, Any]]:
    """Return the settings that the search changed, as they are written in a pipeline's file."""
    changed: dict[str, dict[str, Any]] = {}
    for group in ("model", "training"):
        # What is null is left out: no search finds it, and a change names what it changes alone.
        own = getattr(base, group).model_dump(mode="json", exclude_none=True)
        new = getattr(found, group).model_dump(mode="json", exclude_none=True)
        parts = {name: value for name, value in new.items() if value != own.get(name)}
        if parts:
            changed[group] = parts
    settings = {
        name: value
        for name, value in found.workload_settings.items()
        if value != base.workload_settings.get(name)
    }
    return changed | ({"workload_settings": settings} if settings else {})


def _report(pipeline: PipelineSettings, best: BestConfig, study: Study, *, page: str) -> Group:
    result = study.result
    parts: list[Any] = [
        Text(
            f"\n{pipeline.name}: trial {result.best} of {result.num_trials} has the lowest "
            f"validation loss, {result.winner.loss:.4g}.",
            style="bold",
        ),
        Text(f"  {result.strategy.reason}\n"),
        _best_trials(study),
    ]
    idle = idle_workers(pipeline.search, pipeline.compute) if pipeline.search else ""
    parts += [Text(f"\n  note: {line}") for line in (*study.warnings, idle) if line]
    changed = differing(study.base, best.setup)
    if changed:
        parts.append(Text("\nto write into the pipeline's file", style="bold"))
        parts.append(Text(yaml.safe_dump(changed, sort_keys=False, default_flow_style=None)))
    else:
        parts.append(Text("\nNothing found is better than the settings as written.\n"))
    parts.append(Text(f"page: {page}"))
    parts.append(
        Text(
            "What the winner is worth, on all seeds and on rows the search never saw, 'sluice run' "
            "measures."
        )
    )
    return Group(*parts)


def _best_trials(study: Study) -> Table:
    ranking = study.ranking[:_BEST]
    paths = sorted({path for trial in ranking for path in trial.params})
    table = Table("trial", "state", "epochs", "loss", *[p.partition(".")[2] for p in paths])
    table.box, table.pad_edge = None, False
    for column in (table.columns[0], *table.columns[2:]):
        column.justify = "right"
    for trial in ranking:
        values = [shown(trial.params, path) for path in paths]
        table.add_row(
            str(trial.id),
            trial.state,
            str(len(trial.epochs)),
            f"{trial.loss:.4g}",
            *[escape(f"{v:.4g}" if isinstance(v, float) else str(v)) for v in values],
        )
    return table
