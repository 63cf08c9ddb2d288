"""A search as one page for people: the winner, the parameters, every trial."""

import base64
from html import escape

from sluice.reports.page import html_page, table, tag
from sluice.tuning.plots import importance_png, sensitivity_png, trials_png
from sluice.tuning.study import Study, shown, trial_rows

_STYLE = """img{max-width:100%;height:auto;background:#fff;border-radius:6px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:4px 18px}
"""


def study_page(study: Study, *, title: str, unit: str) -> str:
    """Return the whole document.

    Args:
        study: What is shown.
        title: Plain text, such as the pipeline's name.
        unit: Of the losses.
    """
    result, importance = study.result, study.importance
    heading = f"Search of {title}"
    parts = [
        f"<h1>{escape(heading)} {tag(f'{result.num_trials} trials', 'good')}</h1>",
        f'<p class="soft">{escape(_strategy(study))}</p>',
        f'<div class="card good"><h3>Trial {result.best} has the lowest validation loss, '
        f"{result.winner.loss:.4g} {escape(unit)}</h3>{_winner(study)}"
        '<p class="soft">The best of many is flattered by the choice: what it is worth is measured '
        "by training it on all seeds and folds and judging it on rows the search never saw.</p>"
        "</div>",
        *(f'<div class="card unsure">{escape(line)}</div>' for line in study.warnings),
        "<h2>Trials</h2>",
        _image(trials_png(result, unit=unit), "loss of every trial"),
        "<h2>Which parameters mattered</h2>",
        _image(importance_png(importance), "share of importance by parameter"),
    ]
    if importance.parameters:
        parts.append('<h2>Sensitivity</h2><div class="pair">')
        for report in importance.parameters:
            drawn = sensitivity_png(
                report, result, study.space, at_epoch=importance.at_epoch, unit=unit
            )
            parts.append(_image(drawn, f"loss over {report.path}"))
        parts.append("</div>")
    rows = trial_rows(study.ranking)
    names = list(rows[0])
    numbers = frozenset(range(len(names) - 1)) - {names.index("state")}
    cells = [[_cell(row[name]) for name in names] for row in rows]
    parts += [
        "<h2>Every trial, the best first</h2>",
        f'<div class="card">{table(names, cells, numbers=numbers)}</div>',
    ]
    if result.exploits:
        parts += ["<h2>Steps of the population</h2>", _exploits(study)]
    return html_page(heading, "\n".join(parts), style=_STYLE)


def _strategy(study: Study) -> str:
    strategy = study.result.strategy
    pruned = sum(trial.state == "pruned" for trial in study.result.trials)
    return (
        f"{strategy.reason} Proposals: {strategy.proposals}; {strategy.scheduler} stopped "
        f"{pruned} early; {study.result.seconds:.0f} s of work."
    )


def _winner(study: Study) -> str:
    own = study.result.trials[0] if study.result.trials[0].id != study.result.best else None
    winner = study.result.winner
    base = {path: study.base.value(path) for path in winner.params}
    rows = [
        [escape(path), _cell(base[path]), _cell(shown(winner.params, path))]
        for path, value in winner.params.items()
    ]
    numbers = frozenset({1, 2})
    told = table(["parameter", "as written", "found"], rows, numbers=numbers)
    if own is not None and own.params == {p: v for p, v in base.items() if p in own.params}:
        told += f'<p class="soft">As written the loss is {own.loss:.4g} (trial 0).</p>'
    return told


def _exploits(study: Study) -> str:
    rows = [
        [
            str(step.epoch),
            str(step.trial),
            str(step.donor),
            escape(", ".join(f"{path} {_cell(value)}" for path, value in step.params.items())),
        ]
        for step in study.result.exploits
    ]
    told = table(["epoch", "trial", "took over from", "and went on with"], rows)
    return f'<div class="card">{told}</div>'


def _image(png: bytes, alt: str) -> str:
    content = base64.b64encode(png).decode()
    return f'<p><img alt="{escape(alt)}" src="data:image/png;base64,{content}"></p>'


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
