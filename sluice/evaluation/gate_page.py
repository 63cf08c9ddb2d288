"""Creates the HTML report of a verdict, with numbers, plots and secondary tests."""

import base64
from collections.abc import Mapping
from html import escape

from sluice.base.digests import short
from sluice.base.format_number import format_number
from sluice.base.format_range import format_range
from sluice.evaluation.estimate import ArmLosses, mean_gain
from sluice.evaluation.gate_plots import difficulty_png, power_png
from sluice.evaluation.losses import LossTable
from sluice.evaluation.plots import cumulative_gain_png, fold_gains_png
from sluice.evaluation.secondary_tests import (
    SecondaryTests,
    SecondaryTestSettings,
    run_secondary_tests,
)
from sluice.evaluation.settings import GateSettings
from sluice.evaluation.worst_rows import find_worst_rows
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


def gate_page(
    verdict: Verdict,
    tests: SecondaryTests,
    candidate: LossTable,
    reference: LossTable,
    *,
    title: str,
    advised_power: float,
    row_descriptions: Mapping[str, str] | None = None,
) -> str:
    """Return the HTML document.

    Args:
        verdict: Verdict of the gate.
        tests: Results of the secondary tests on the same losses.
        candidate: Losses of the candidate.
        reference: Losses of the reference.
        title: Title in plain text, such as the names of the two files.
        advised_power: Power that the power plot marks with a line [rate].
        row_descriptions: Descriptions of rows by index label, such as paths of images, for the
            table of the worst rows.
    """
    heading = f"Promotion gate: {title}"
    tone = _TONE[verdict.outcome]
    worst_rows = _worst_rows_table(candidate, reference, verdict.unit, row_descriptions or {})
    sections = [
        f"<h1>{escape(heading)} {tag(verdict.outcome, tone)}</h1>",
        f'<p class="soft">Candidate {escape(short(verdict.candidate))} against '
        f"{escape(short(verdict.reference))} on window {escape(short(verdict.window))}.</p>",
        f'<div class="card {tone}"><p><b>{escape(verdict.reason)}</b></p>'
        f"<p>{escape(verdict.remedy)}</p>",
        *(f"<p>{escape(caveat)}</p>" for caveat in verdict.caveats),
        "</div>",
        "<h2>Decision</h2>",
        f'<div class="card">{_decision_table(verdict)}</div>',
        _guards_section(verdict),
        "<h2>Gain per fold</h2>",
        _image(fold_gains_png(verdict), "gain per fold with its interval"),
        "<h2>Gain by row and by difficulty</h2>",
        _image(cumulative_gain_png(candidate, reference, unit=verdict.unit), "cumulative gain"),
        _image(difficulty_png(candidate, reference, unit=verdict.unit), "gain by difficulty"),
        "<h2>Rows with the largest deterioration</h2>",
        f'<div class="card">{worst_rows}</div>',
        "<h2>Power of the comparison</h2>",
        _image(power_png(verdict, power=advised_power), "probability of a promotion by true gain"),
        "<h2>Secondary tests</h2>",
        '<p class="soft">These tests are shown for comparison and do not affect the decision.</p>',
        f'<div class="card">{_secondary_tests_table(verdict, tests)}</div>',
    ]
    return html_page(heading, "\n".join(sections), style=_STYLE)


def gate_page_of(
    verdict: Verdict,
    candidate: LossTable,
    reference: LossTable,
    settings: GateSettings,
    *,
    title: str,
    horizon_rows: int,
) -> str:
    """Return the HTML document of a verdict with the secondary tests on the same losses."""
    tests = run_secondary_tests(
        verdict, candidate, reference, SecondaryTestSettings(), horizon_rows=horizon_rows
    )
    return gate_page(
        verdict, tests, candidate, reference, title=title, advised_power=settings.advised_power
    )


def _decision_table(verdict: Verdict) -> str:
    seed_counts = f"{verdict.num_seeds} / {verdict.num_reference_seeds or 'none'}"
    num_diverged = len(verdict.diverged_seeds) + len(verdict.diverged_reference_seeds)
    rows = (
        (
            "Gain",
            f"{format_number(verdict.gain)} {verdict.unit}",
            f"required above {format_number(verdict.required)}",
        ),
        (
            "Bounds",
            format_range(format_number(verdict.lower_bound), format_number(verdict.upper_bound)),
            f"each one-sided at alpha {verdict.alpha:.3g}; a PROMOTE requires a lower bound above "
            "the required gain",
        ),
        (
            "Mean loss",
            f"{format_number(verdict.candidate_loss)} / {format_number(verdict.reference_loss)}",
            "candidate / reference",
        ),
        (
            "Standard error",
            format_number(verdict.standard_error),
            f"seeds {format_number(verdict.seed_se)}, rows {format_number(verdict.row_se)}; "
            f"{format_number(verdict.degrees_of_freedom)} degrees of freedom",
        ),
        (
            "p-value",
            format_number(verdict.p_value),
            "one-sided; null hypothesis: the true gain is at most the required gain",
        ),
        ("Effect size", format_number(verdict.effect_size), "Cohen's d over rows"),
        ("Seeds", seed_counts, f"candidate / reference; {num_diverged} diverged"),
        ("Test rows", verdict.rows_summary, ""),
        ("Alpha", verdict.alpha_summary, "false promotion rate spent on this decision"),
    )
    return table(("quantity", "value", "details"), [[escape(cell) for cell in row] for row in rows])


def _guards_section(verdict: Verdict) -> str:
    if not verdict.guards:
        return ""
    rows = [
        [escape(guard.name), tag(guard.result, _TONE[guard.result]), escape(guard.reason)]
        for guard in verdict.guards
    ]
    guards_table = table(("guard", "result", "reason"), rows)
    return f'<h2>Guards</h2>\n<div class="card">{guards_table}</div>'


def _secondary_tests_table(verdict: Verdict, tests: SecondaryTests) -> str:
    rows = (
        (
            "Two-way percentile bootstrap",
            format_range(format_number(tests.percentile_low), format_number(tests.percentile_high)),
            f"{tests.resamples:,} resamples of seeds and blocks; the interval is too "
            "narrow with few seeds",
        ),
        (
            "Sign-flip test of seeds and blocks",
            f"p {format_number(tests.sign_flip_p)}",
            "one-sided",
        ),
        (
            "Diebold-Mariano, corrected for small samples",
            f"p {format_number(tests.diebold_mariano_p)}",
            f"statistic {format_number(tests.diebold_mariano)}; ignores the seed variance, and "
            "dependence beyond the horizon",
        ),
        (
            "Probability of improvement",
            f"{format_number(tests.improvement)} ({format_number(tests.improvement_low)} to "
            f"{format_number(tests.improvement_high)})",
            "probability that a network of the candidate has the lower loss on a row; 0.5: no "
            "difference",
        ),
        (
            "Cohen's d over seeds",
            format_number(tests.seed_effect_size),
            f"gain / standard deviation over seeds; {format_number(verdict.effect_size)} over rows",
        ),
    )
    return table(("test", "result", "details"), [[escape(cell) for cell in row] for row in rows])


def _worst_rows_table(
    candidate: LossTable, reference: LossTable, unit: str, descriptions: Mapping[str, str]
) -> str:
    worst_positions = find_worst_rows(candidate, reference)
    reference = reference.aligned_to(candidate)
    candidate_arm, reference_arm = ArmLosses.of(candidate), ArmLosses.of(reference)
    gain_N = mean_gain(candidate_arm, reference_arm)
    if not worst_positions.size:
        return "<p>The candidate is not worse on any row.</p>"
    rows = [
        [
            escape(f"{candidate.fold_N[row]}"),
            escape(str(candidate.label_N[row])),
            *(
                format_number(float(values_N[row]))
                for values_N in (
                    candidate_arm.loss_SN.mean(axis=0),
                    reference_arm.loss_SN.mean(axis=0),
                    gain_N,
                )
            ),
            *([escape(descriptions.get(str(candidate.label_N[row]), ""))] if descriptions else []),
        ]
        for row in worst_positions
    ]
    example_column = ("example",) if descriptions else ()
    names = ("fold", "row", "candidate loss", "reference loss", f"gain [{unit}]", *example_column)
    return table(names, rows, numbers=frozenset({2, 3, 4}))


def _image(png: bytes, alt: str) -> str:
    content = base64.b64encode(png).decode()
    return (
        f'<div class="card"><img alt="{escape(alt)}" src="data:image/png;base64,{content}"></div>'
    )
