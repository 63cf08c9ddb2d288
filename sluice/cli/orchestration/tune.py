"""``sluice tune``: searches for better settings of a pipeline, and prints them as YAML."""

import json
import os
import shlex
from dataclasses import replace
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.assets.best_config import BestConfig, search_folder
from sluice.base.home import Home
from sluice.cli.output import results_console
from sluice.cluster.settings import ComputeSettings
from sluice.config.resolved import ResolvedPipeline
from sluice.pipelines.console import RunConsole
from sluice.pipelines.run import search_pipeline
from sluice.reports.folder import save_page
from sluice.tuning.concurrency import describe_idle_workers
from sluice.tuning.live_table import cell_text, short_names
from sluice.tuning.schedule_to_settings import NO_SEARCH_NOTE, changed_settings, settings_yaml
from sluice.tuning.settings import SearchSettings
from sluice.tuning.strategy import plan_search
from sluice.tuning.study_folder import results_path
from sluice.tuning.study_page import study_page
from sluice.tuning.study_summary import STATE_NAMES, StudySummary, display_value

_NUM_BEST_TRIALS = 5


def with_search(
    pipeline: ResolvedPipeline, *, search: dict[str, Any], compute: dict[str, Any]
) -> ResolvedPipeline:
    """Return the pipeline after options of the command line replaced settings of its file.

    A scheduler with a dot or a colon in its name is the import path of a class.

    Raises:
        SettingsError: An option is invalid, or the search space does not fit the pipeline.
    """
    scheduler = str(search.get("scheduler", ""))
    if set(scheduler) & {".", ":"}:
        search = search | {"scheduler": {"class": scheduler}}
    settings = pipeline.settings
    search_in_file = (settings.search or SearchSettings()).model_dump(mode="python")
    options = SearchSettings.parse(search_in_file | search, where="search")
    # Called only for its error if the search space does not fit the pipeline.
    plan_search(pipeline.search.space, options, pipeline.search.trial_settings)
    compute_in_file = settings.compute.model_dump(mode="python")
    update = {
        "search": options,
        "compute": ComputeSettings.parse(compute_in_file | compute, where="compute"),
    }
    return replace(pipeline, settings=settings.model_copy(update=update))


def tune(pipeline: ResolvedPipeline, home: Home, *, as_json: bool) -> None:
    """Run the search and print the result."""
    with RunConsole(Console(stderr=True)) as console:
        best, study = search_pipeline(pipeline, home, console)
    name, compute = pipeline.settings.name, pipeline.settings.compute
    results_location = results_path(search_folder(home, best.subject), compute.storage_path)
    unit = pipeline.workload.loss_unit
    page = save_page(
        study_page(study, title=name, unit=unit, results=results_location),
        f"searches/{name}",
        home=home,
        environ=os.environ,
    )
    if as_json:
        content = study.model_dump(mode="json") | {
            "setup": best.setup.model_dump(mode="json"),
            "found": best.found,  # digest of the pipeline's config with the best settings
            "page": str(page.path),
            "results": results_location,
        }
        print(json.dumps(content, indent=1))
        return
    search = pipeline.settings.search
    idle_note = describe_idle_workers(search, compute) if search else ""
    report = _format_report(
        name, best, study, idle_note, page=str(page.path), results_location=results_location
    )
    results_console().print(report)


def _format_report(
    pipeline: str,
    best: BestConfig,
    study: StudySummary,
    idle_note: str,
    *,
    page: str,
    results_location: str,
) -> Group:
    result = study.result
    sections: list[Any] = [
        Text(
            f"\n{pipeline}: trial {result.best} of {result.num_trials} has the lowest "
            f"validation loss, {result.winner.loss:.4g}.",
            style="bold",
        ),
        Text(f"  {result.strategy.reason}\n"),
        _best_trials(study),
    ]
    sections += [Text(f"\n  note: {line}") for line in (*study.warnings, idle_note) if line]
    new_settings = changed_settings(study.base, best.setup)
    if new_settings:
        sections.append(Text("\nsettings for the pipeline file", style="bold"))
        sections.append(Text(settings_yaml(new_settings)))
        if best.setup.training.changes:  # settings that change during the training
            sections.append(Text(f"note: {NO_SEARCH_NOTE}\n"))
    else:
        sections.append(Text("\nNo trial is better than the settings in the file.\n"))
    sections.append(Text(f"page: {page}"))
    sections.append(Text(f"curves: tensorboard --logdir {shlex.quote(results_location)}"))
    sections.append(
        Text(
            "'sluice run' measures the gain of the settings in the file, on all seeds and on rows "
            "that the search did not use."
        )
    )
    return Group(*sections)


def _best_trials(study: StudySummary) -> Table:
    best_trials = study.ranking[:_NUM_BEST_TRIALS]
    names = short_names(list(dict.fromkeys(path for trial in best_trials for path in trial.params)))
    table = Table("trial", "state", "epochs", "loss", *names.values())
    table.box, table.pad_edge = None, False
    for column in (table.columns[0], *table.columns[2:]):
        column.justify = "right"
    for trial in best_trials:
        table.add_row(
            str(trial.id),
            STATE_NAMES.get(trial.state, trial.state),
            str(len(trial.epochs)),
            cell_text(trial.loss),
            *[escape(cell_text(display_value(trial.params, path))) for path in names],
        )
    return table
