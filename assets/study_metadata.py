"""Metadata of a finished search: results, plots, and the settings for the pipeline's YAML."""

import os
import shlex

import dagster as dg

from sluice.assets.metadata import picture, table
from sluice.base.home import Home
from sluice.reports.folder import save_page
from sluice.tuning.plots import curves_png, importance_png, sensitivity_png, trials_png
from sluice.tuning.schedule_to_settings import NO_SEARCH_NOTE, changed_settings, settings_yaml
from sluice.tuning.study_page import study_page
from sluice.tuning.study_summary import StudySummary, display_value, trial_rows

MAX_TABLE_TRIALS = 12
MAX_SENSITIVITY_PLOTS = 3


def study_metadata(
    study: StudySummary, pipeline: str, home: Home, *, unit: str, results: str
) -> dict[str, dg.MetadataValue | str | int | float]:
    """Return the metadata of a search, with a link to the page of the search.

    Args:
        study: The finished search.
        pipeline: Name of the pipeline.
        home: State folder.
        unit: Unit of the losses.
        results: Path or URL of the results of Ray Tune.
    """
    result, importance = study.result, study.importance
    page = save_page(
        study_page(study, title=pipeline, unit=unit, results=results),
        f"searches/{pipeline}",
        home=home,
        environ=os.environ,
    )
    winner_values = [
        {"parameter": path, "value": display_value(result.winner.params, path)}
        for path in result.winner.params
    ]
    pictures = [
        picture(
            sensitivity_png(report, result, study.space, at_epoch=importance.at_epoch, unit=unit),
            f"loss over {report.path}",
        ).value
        for report in importance.parameters[:MAX_SENSITIVITY_PLOTS]
    ]
    return {
        "trials": result.num_trials,
        "best trial": result.best,
        "validation loss": result.winner.loss,
        "values of the best trial": table(winner_values),
        **(
            {"settings for the pipeline's YAML": _yaml_settings(study)}
            if study.base != result.setup
            else {}
        ),
        "warnings": dg.MetadataValue.md("\n".join(f"- {line}" for line in study.warnings) or "-"),
        "strategy": result.strategy.reason,
        "study report": dg.MetadataValue.url(page.url),
        "TensorBoard": f"tensorboard --logdir {shlex.quote(results)}",
        "trial losses": picture(trials_png(result, unit=unit), "validation loss of every trial"),
        "learning curves": picture(
            curves_png(result, unit=unit), "validation loss of every trial by epoch"
        ),
        "parameter importance": picture(importance_png(importance), "importance by parameter"),
        **({"sensitivity": dg.MetadataValue.md("\n\n".join(pictures))} if pictures else {}),
        f"best {MAX_TABLE_TRIALS} trials": table(trial_rows(study.ranking[:MAX_TABLE_TRIALS])),
    }


def _yaml_settings(study: StudySummary) -> dg.MetadataValue:
    best_settings = study.result.setup
    lines = settings_yaml(changed_settings(study.base, best_settings))
    # ``changes`` are changes of settings during the training, as a PBT search selects them.
    note = f"\n\n{NO_SEARCH_NOTE}" if best_settings.training.changes else ""
    return dg.MetadataValue.md(f"```yaml\n{lines}```{note}")
