"""Creates the HTML page of a search: the winner, the importance of parameters, and all trials."""

import base64
import math
import shlex
from html import escape

from sluice.base.pluralize import pluralize
from sluice.reports.page import html_page, table, tag
from sluice.tuning.live_table import short_names
from sluice.tuning.plots import (
    curves_png,
    importance_png,
    sensitivity_png,
    strategy_text,
    trials_png,
)
from sluice.tuning.records import TrialRecord
from sluice.tuning.study_summary import StudySummary, display_value, trial_rows

_REASON_COLUMN = "why it ended"
"""Name of the table column with the reason of a trial's end."""
_STYLE = """img{max-width:100%;height:auto;background:#fff;border-radius:6px}
td:nth-child(2){white-space:nowrap}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:4px 18px}
"""


def study_page(summary: StudySummary, *, title: str, unit: str, results: str = "") -> str:
    """Return the HTML document of a finished search.

    Args:
        summary: Summary of the search.
        title: Title as plain text, such as the name of the pipeline.
        unit: Unit of the losses.
        results: Folder or URL of Ray Tune's results; if empty, the page does not mention them.
    """
    result, importance = summary.result, summary.importance
    heading = f"Search of {title}"
    parts = [
        f"<h1>{escape(heading)} {tag(pluralize(result.num_trials, 'trial'), 'good')}</h1>",
        f'<p class="soft">{escape(_strategy_text(summary))}</p>',
        f'<div class="card good"><h3>Trial {result.best} has the lowest validation loss, '
        f"{result.winner.loss:.4g} {escape(unit)}</h3>{_winner_table(summary)}"
        '<p class="soft">The best loss of many trials is optimistically biased. For an unbiased '
        "loss, train with these settings on all seeds and folds, and score rows outside the "
        "search.</p>"
        "</div>",
        *(f'<div class="card unsure">{escape(line)}</div>' for line in summary.warnings),
        "<h2>Trials</h2>",
        _image(trials_png(result, unit=unit), "loss of every trial"),
        "<h2>Learning curves</h2>",
        _image(curves_png(result, unit=unit), "validation loss of every trial over its epochs"),
        "<h2>Which parameters mattered</h2>",
        _image(importance_png(importance), "share of importance by parameter"),
    ]
    if importance.parameters:
        parts.append('<h2>Sensitivity</h2><div class="pair">')
        for report in importance.parameters:
            plot = sensitivity_png(
                report, result, summary.space, at_epoch=importance.at_epoch, unit=unit
            )
            parts.append(_image(plot, f"loss over {report.path}"))
        parts.append("</div>")
    parts += ["<h2>Every trial, the best first</h2>", _trial_table(summary)]
    if len(result.winner.schedule) > 1:
        parts += [f"<h2>Schedule of trial {result.best}</h2>", _schedule_table(summary)]
    if result.exploits:
        parts += ["<h2>Exploits of PBT</h2>", _exploit_table(summary)]
    if results:
        parts += ["<h2>Files</h2>", _files_card(results)]
    return html_page(heading, "\n".join(parts), style=_STYLE)


def _strategy_text(summary: StudySummary) -> str:
    result = summary.result
    num_pruned = sum(trial.state == "pruned" for trial in result.trials)
    stopped_text = f"; {pluralize(num_pruned, 'trial')} stopped early" if num_pruned else ""
    exploits_text = (
        f"; {pluralize(len(result.exploits), 'exploit')} of PBT" if result.exploits else ""
    )
    return (
        f"{result.strategy.reason} {strategy_text(result.strategy).capitalize()}"
        f"{stopped_text}{exploits_text}; {result.seconds:.0f} s of worker time."
    )


def _trial_table(summary: StudySummary) -> str:
    rows = trial_rows(summary.ranking)
    ids_without_reason = {
        trial.id for trial in summary.ranking if not _needs_reason(summary, trial)
    }
    names = [
        name for name in rows[0] if name != _REASON_COLUMN or len(ids_without_reason) < len(rows)
    ]
    numeric_columns = frozenset(range(len(names))) - {names.index("state")}
    numeric_columns -= {names.index(_REASON_COLUMN)} if _REASON_COLUMN in names else set()
    cells = [
        [
            ""
            if name == _REASON_COLUMN and row["trial"] in ids_without_reason
            else _cell(row[name])
            for name in names
        ]
        for row in rows
    ]
    return f'<div class="card">{table(names, cells, numbers=numeric_columns)}</div>'


def _needs_reason(summary: StudySummary, trial: TrialRecord) -> bool:
    """Return whether the state and the number of epochs do not explain the end of a trial."""
    has_all_epochs = len(trial.epochs) == summary.base.training.max_epochs
    is_explained = trial.state == "pruned" or (trial.state == "finished" and has_all_epochs)
    return not is_explained


def _schedule_table(summary: StudySummary) -> str:
    steps = summary.result.winner.schedule
    first_params = steps[0].params
    paths = [p for p, v in first_params.items() if any(s.params.get(p) != v for s in steps)]
    rows = [
        [str(step.from_epoch + 1), *[_cell(display_value(step.params, path)) for path in paths]]
        for step in steps
    ]
    numeric_columns = frozenset(range(len(paths) + 1))
    schedule_table = table(["from epoch", *map(escape, paths)], rows, numbers=numeric_columns)
    return f'<div class="card">{schedule_table}</div>'


def _files_card(results: str) -> str:
    return (
        '<div class="card"><p>Ray Tune\'s results: a folder for each trial, with its parameters, '
        f"reports, checkpoints and curves.</p><p><code>{escape(results)}</code></p><p>Curves in "
        f"TensorBoard: <code>tensorboard --logdir {escape(shlex.quote(results))}</code></p></div>"
    )


def _winner_table(summary: StudySummary) -> str:
    winner, first_trial = summary.result.winner, summary.result.trials[0]
    file_values = {path: summary.base.value(path) for path in winner.params}
    rows = [
        [
            escape(path),
            _cell(_display_file_value(file_values[path])),
            _cell(display_value(winner.params, path)),
        ]
        for path in winner.params
    ]
    header = ["parameter", "value in the file", "value of the best trial"]
    html = table(header, rows, numbers=frozenset({1, 2}))
    file_params = {path: value for path, value in file_values.items() if path in first_trial.params}
    has_file_settings = first_trial.params == file_params
    if first_trial.id != winner.id and has_file_settings:
        html += (
            '<p class="soft">Loss with the settings of the file: '
            f"{first_trial.loss:.4g} (trial 0).</p>"
        )
    return html


def _exploit_table(summary: StudySummary) -> str:
    changing = summary.result.strategy.changing
    paths = short_names([path for path in summary.space.parameters if path in changing])
    rows = [
        [
            str(exploit.epoch),
            str(exploit.trial),
            str(exploit.donor),
            *[_cell(display_value(exploit.params, path)) for path in paths],
        ]
        for exploit in summary.result.exploits
    ]
    header = ["after epoch", "trial", "copied trial", *map(escape, paths.values())]
    exploit_table = table(header, rows, numbers=frozenset(range(len(header))))
    return f'<div class="card">{exploit_table}</div>'


def _display_file_value(value: object) -> object:
    return "not set" if value is None else value


def _image(png: bytes, alt: str) -> str:
    content = base64.b64encode(png).decode()
    return f'<p><img alt="{escape(alt)}" src="data:image/png;base64,{content}"></p>'


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "-"
    return escape(str(value))
