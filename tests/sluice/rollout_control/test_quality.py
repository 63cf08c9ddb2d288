"""Decisions of the promotion gate on a rollout as labels arrive (ROLL-2)."""

import io

import numpy as np
import pandas as pd
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.evaluation.alpha_spending import spent_alpha
from sluice.evaluation.losses import LossTable
from sluice.evaluation.settings import GateSettings
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.settings import RolloutSettings
from sluice.rollout_control.controller import reconcile
from sluice.rollout_control.quality import decide_on_quality, evaluate_live_quality
from sluice.verdicts.verdict import Verdict
from tests.sluice.registry.ledger_samples import MODEL
from tests.sluice.rollout_control.controller_samples import (
    FIRST_UNSEEN_ROW,
    PIPELINE,
    QUICK,
    WORKLOAD,
    after_last_check,
    begin_rollout,
    echo_frame,
    make_paired_samples,
    read_rollout,
    report,
)

ROWS = range(FIRST_UNSEEN_ROW, FIRST_UNSEEN_ROW + 300)


def evaluate(ledger: RolloutLedger, store: ArtifactStore, num_rows: int = 899) -> Verdict | None:
    """Evaluate the rollout when the first ``num_rows`` rows have labels."""
    frame = echo_frame(num_rows)
    return evaluate_live_quality(
        ledger, MODEL, WORKLOAD, PIPELINE.gate, store, frame, after_last_check(ledger)
    )


def test_challenger_with_significantly_larger_loss_is_rolled_back(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    rollout = begin_rollout(ledger)
    report(
        ledger,
        at=after_last_check(ledger),
        samples=make_paired_samples(rollout, ROWS, challenger_error=2.0),
    )
    verdict = evaluate(ledger, store)

    assert verdict is not None
    assert verdict.outcome == "REJECT"
    assert (verdict.candidate, verdict.reference) == (rollout.candidate, rollout.production)
    assert verdict.gain == pytest.approx(1 - 4, abs=0.4)  # mean squares of the simulated errors
    transition = reconcile(ledger, MODEL, now=after_last_check(ledger))
    assert transition is not None
    assert (transition.outcome, transition.quality) == ("roll_back", "REJECT")
    assert transition.reason.startswith(
        "Labelled rows show that the challenger is worse: Significantly worse"
    )
    assert evaluate(ledger, store) is None  # the rollout is over


def test_ab_rollout_advances_only_after_verdict_promote(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    settings = RolloutSettings(strategy="ab", min_step_s=0, min_requests=1, quality_rows=60)
    rollout = begin_rollout(ledger, settings)
    report(
        ledger,
        at=after_last_check(ledger),
        samples=make_paired_samples(rollout, ROWS, challenger_error=0.5),
    )
    before = reconcile(ledger, MODEL, now=after_last_check(ledger))
    verdict = evaluate(ledger, store)
    after = reconcile(ledger, MODEL, now=after_last_check(ledger))

    assert before is not None
    assert (
        "The step requires the verdict PROMOTE of the promotion gate on labelled pairs; the "
        "verdict is: none yet" in before.reason
    )
    assert verdict is not None
    assert verdict.outcome == "PROMOTE"
    assert after is not None
    assert (after.outcome, read_rollout(ledger).phase) == ("advance", "awaiting_promotion")


def test_each_full_window_of_new_labels_gets_one_verdict_with_spent_alpha(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    rollout = begin_rollout(ledger)
    report(ledger, at=after_last_check(ledger), samples=make_paired_samples(rollout, ROWS))
    last_labelled_rows = [FIRST_UNSEEN_ROW + n for n in (59, 60, 61, 119, 120, 250)]
    results = [evaluate(ledger, store, num_rows) for num_rows in last_labelled_rows]

    assert [verdict and verdict.num_rows for verdict in results] == [None, 60, None, None, 120, 250]
    verdicts = [verdict for verdict in results if verdict is not None]
    assert [v.attempt for v in verdicts] == [1, 2, 3]
    alpha = PIPELINE.gate.alpha
    assert [v.alpha for v in verdicts] == [spent_alpha(alpha, attempt) for attempt in (1, 2, 3)]
    assert {v.alpha_of_all for v in verdicts} == {alpha}
    assert ledger.observations.quality(rollout.id) == verdicts


def test_compared_losses_are_stored(ledger: RolloutLedger, store: ArtifactStore) -> None:
    rollout = begin_rollout(ledger)
    report(ledger, at=after_last_check(ledger), samples=make_paired_samples(rollout, ROWS))
    verdict = evaluate(ledger, store)

    assert verdict is not None
    table = pd.read_parquet(io.BytesIO(store.get(verdict.tables["candidate live losses"])))
    assert table["loss"].mean() == pytest.approx(verdict.candidate_loss)
    assert table["row"].nunique() == 300


def test_too_few_networks_are_inconclusive_and_spend_no_alpha(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    rollout = begin_rollout(ledger)
    samples = make_paired_samples(rollout, ROWS[:130], challenger_error=3.0, networks=2)
    report(ledger, at=after_last_check(ledger), samples=samples)
    verdicts = [evaluate(ledger, store, FIRST_UNSEEN_ROW + n) for n in (60, 120)]

    for verdict in verdicts:
        assert verdict is not None
        assert verdict.outcome == "INCONCLUSIVE"
        assert "the candidate has 2 seeds, required 5" in verdict.lacking
        assert verdict.attempt == 1
    transition = reconcile(ledger, MODEL, now=after_last_check(ledger))
    assert transition is not None
    assert transition.outcome != "roll_back"


def test_without_rollout_or_samples_there_is_no_verdict(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    frame = echo_frame()
    assert (
        evaluate_live_quality(ledger, MODEL, WORKLOAD, PIPELINE.gate, store, frame, ledger._clock())
        is None
    )
    begin_rollout(ledger)
    assert evaluate(ledger, store) is None  # no request was answered yet


def live_losses(rng: np.random.Generator, rows: int) -> tuple[LossTable, LossTable]:
    """Return losses of two equally good models that are good on different rows."""

    def table(subject: str) -> LossTable:
        skill_N = rng.normal(size=rows)
        return LossTable(
            subject=subject,
            window="w",
            seeds=tuple(range(5)),
            fold_N=np.zeros(rows, np.int64),
            label_N=np.array([f"{n:05d}" for n in range(rows)]),
            loss_SN=3 + skill_N + 0.02 * rng.normal(size=(5, rows)),
        )

    return table("challenger"), table("production")


def first_rows(table: LossTable, rows: int) -> LossTable:
    return LossTable(
        subject=table.subject,
        window=table.window,
        seeds=table.seeds,
        fold_N=table.fold_N[:rows],
        label_N=table.label_N[:rows],
        loss_SN=table.loss_SN[:, :rows],
    )


@pytest.mark.slow
def test_equally_good_challengers_are_rejected_at_the_rate_alpha() -> None:
    """Six decisions per rollout: 6 of 60 rollouts are rejected; 24 if alpha were not shared."""
    rng = np.random.default_rng(1)
    gate = GateSettings(alpha=0.2, min_rows=30, equivalence_margin_share=0)
    num_rejected = 0
    for _ in range(60):
        challenger, production = live_losses(rng, 240)
        verdicts: list[Verdict] = []
        for rows in range(40, 241, 40):
            verdicts.append(
                decide_on_quality(
                    first_rows(challenger, rows),
                    first_rows(production, rows),
                    gate,
                    earlier_verdicts=verdicts,
                    horizon_rows=0,
                    unit="loss",
                )
            )
        num_rejected += any(verdict.outcome == "REJECT" for verdict in verdicts)

    assert 2 <= num_rejected <= 12


def test_rollout_keeps_its_quality_rows(ledger: RolloutLedger) -> None:
    begin_rollout(ledger)
    assert read_rollout(ledger).settings.quality_rows == QUICK.quality_rows == 60
