"""A verdict as one page for who reviews it: numbers, pictures, and what other tests say."""

import base64
import math
from html import escape

import numpy as np

from sluice.base.digests import short
from sluice.evaluation.companions import Companions
from sluice.evaluation.estimate import Arm, mean_gain
from sluice.evaluation.gate_plots import difficulty_png, power_png
from sluice.evaluation.losses import LossTable
from sluice.evaluation.plots import fold_gains_png, loss_over_time_png
from sluice.reports.page import Tone, html_page, table, tag
from sluice.verdicts.verdict import Verdict

_TONE: dict[str, Tone] = {
    "PROMOTE": "good",
    "REJECT": "bad",
    "EQUIVALENT": "plain",
    "INCONCLUSIVE": "unsure",
    "pass": "good",
    "fail": "bad",
    "insufficient": "unsure",
}
_STYLE = "img{max-width:100%;height:auto;background:#fff;border-radius:6px}"
_WORST = 8
"""Rows in the list of the candidate's worst."""


def gate_page(
    verdict: Verdict,
    companions: Companions,
    candidate: LossTable,
    reference: LossTable,
    *,
    title: str,
    advised_power: float,
) -> str:
    """Return the whole document.

    Args:
        verdict: What the gate said.
        companions: What other tests say of the same losses.
        candidate: The losses that were judged.
        reference: Those of the other arm.
        title: Plain text, such as the names of the two files.
        advised_power: The chance that the power curve marks as enough [rate].
    """
    heading = f"Promotion gate: {title}"
    tone = _TONE[verdict.outcome]
    parts = [
        f"<h1>{escape(heading)} {tag(verdict.outcome, tone)}</h1>",
        f'<p class="soft">Candidate {escape(short(verdict.candidate))} against '
        f"{escape(short(verdict.reference))} on window {escape(short(verdict.window))}.</p>",
        f'<div class="card {tone}"><p><b>{escape(verdict.reason)}</b></p>'
        f"<p>{escape(verdict.remedy)}</p>",
        *(f"<p>{escape(caveat)}</p>" for caveat in verdict.caveats),
        "</div>",
        "<h2>The decision</h2>",
        f'<div class="card">{_decision(verdict)}</div>',
        _guards(verdict),
        "<h2>Gain per fold</h2>",
        _image(fold_gains_png(verdict), "gain per fold with its interval"),
        "<h2>Where the gain comes from</h2>",
        _image(loss_over_time_png(candidate, reference, unit=verdict.unit), "cumulative gain"),
        _image(difficulty_png(candidate, reference, unit=verdict.unit), "gain by difficulty"),
        "<h2>Where the candidate loses most</h2>",
        f'<div class="card">{_worst_rows(candidate, reference, verdict.unit)}</div>',
        "<h2>Is the evidence enough?</h2>",
        _image(power_png(verdict, power=advised_power), "chance of a promotion by true gain"),
        "<h2>What other tests say</h2>",
        '<p class="soft">Shown for comparison; none of them decides. Each leaves something out '
        "that the bound above does not.</p>",
        f'<div class="card">{_companions(verdict, companions)}</div>',
    ]
    return html_page(heading, "\n".join(parts), style=_STYLE)


def _decision(v: Verdict) -> str:
    seeds = f"{v.num_seeds} / {v.num_reference_seeds or 'none'}"
    diverged = len(v.diverged_seeds) + len(v.diverged_reference_seeds)
    rows = (
        ("Gain", f"{_number(v.gain)} {v.unit}", f"required above {_number(v.required)}"),
        (
            "Bounds",
            f"{_number(v.lower_bound)} to {_number(v.upper_bound)}",
            f"each one-sided at {v.alpha:.3g}; the lower one decides",
        ),
        (
            "Mean loss",
            f"{_number(v.candidate_loss)} / {_number(v.reference_loss)}",
            "candidate / reference",
        ),
        (
            "Standard error",
            _number(v.standard_error),
            f"seeds {_number(v.seed_se)}, rows {_number(v.row_se)}; "
            f"{_number(v.degrees_of_freedom)} degrees of freedom",
        ),
        ("p-value", _number(v.p_value), "one-sided, of a true gain no larger than required"),
        ("Effect size", _number(v.effect_size), "Cohen's d over rows"),
        ("Seeds", seeds, f"candidate / reference; {diverged} diverged"),
        ("Test rows", v.evidence_words, ""),
        ("Alpha", v.spending, "what the decision may spend"),
    )
    return table(("number", "value", ""), [[escape(cell) for cell in row] for row in rows])


def _guards(verdict: Verdict) -> str:
    if not verdict.guards:
        return ""
    rows = [
        [escape(guard.name), tag(guard.result, _TONE[guard.result]), escape(guard.reason)]
        for guard in verdict.guards
    ]
    shown = table(("guard", "", "why"), rows)
    return f'<h2>Guards</h2>\n<div class="card">{shown}</div>'


def _companions(v: Verdict, c: Companions) -> str:
    rows = (
        (
            "Two-way percentile bootstrap",
            f"{_number(c.percentile_low)} to {_number(c.percentile_high)}",
            f"seeds and blocks drawn again {c.resamples:,} times; too narrow with few seeds",
        ),
        ("Sign flips of seeds and blocks", f"p {_number(c.sign_flip_p)}", "one-sided"),
        (
            "Diebold-Mariano, corrected for small samples",
            f"p {_number(c.diebold_mariano_p)}",
            f"statistic {_number(c.diebold_mariano)}; leaves out the seeds, and dependence beyond "
            "the horizon",
        ),
        (
            "Probability of improvement",
            f"{_number(c.improvement)} ({_number(c.improvement_low)} to "
            f"{_number(c.improvement_high)})",
            "how often a network of the candidate is the better one on a row; 0.5 is no difference",
        ),
        (
            "Cohen's d over seeds",
            _number(c.seed_effect_size),
            f"gain over the spread of the seeds; {_number(v.effect_size)} over rows",
        ),
    )
    return table(("test", "result", ""), [[escape(cell) for cell in row] for row in rows])


def _worst_rows(candidate: LossTable, reference: LossTable, unit: str) -> str:
    reference = reference.aligned_to(candidate)
    ours, theirs = Arm.of(candidate), Arm.of(reference)
    gain_N = mean_gain(ours, theirs)
    worst = [at for at in np.argsort(gain_N, kind="stable")[:_WORST] if gain_N[at] < 0]
    if not worst:
        return "<p>On no row that could be compared.</p>"
    rows = [
        [
            escape(f"{candidate.fold_N[at]}"),
            escape(str(candidate.label_N[at])),
            *(
                _number(float(values_N[at]))
                for values_N in (ours.loss_SN.mean(axis=0), theirs.loss_SN.mean(axis=0), gain_N)
            ),
        ]
        for at in worst
    ]
    names = ("fold", "row", "candidate's loss", "reference's loss", f"gain [{unit}]")
    return table(names, rows, numbers=frozenset({2, 3, 4}))


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "not computable"


def _image(png: bytes, what: str) -> str:
    content = base64.b64encode(png).decode()
    return (
        f'<div class="card"><img alt="{escape(what)}" src="data:image/png;base64,{content}"></div>'
    )
