"""ROLL-2: arriving labels decide on a rollout by the promotion gate and its alpha."""

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
from sluice.rollout_control.quality import evaluate_live_quality, judge_quality
from sluice.verdicts.verdict import Verdict
from tests.sluice.registry.ledger_samples import MODEL
from tests.sluice.rollout_control.controller_samples import (
    PIPELINE,
    QUICK,
    UNSEEN,
    WORKLOAD,
    begin,
    current,
    echo_frame,
    later,
    pairs,
    report,
)

ROWS = range(UNSEEN, UNSEEN + 300)


def note(ledger: RolloutLedger, store: ArtifactStore, num_rows: int = 899) -> Verdict | None:
    frame = echo_frame(num_rows)
    return evaluate_live_quality(
        ledger, MODEL, WORKLOAD, PIPELINE.gate, store, frame, later(ledger)
    )


def test_a_challenger_that_labels_prove_worse_is_rolled_back(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    rollout = begin(ledger)
    report(ledger, at=later(ledger), samples=pairs(rollout, ROWS, challenger_error=2.0))
    verdict = note(ledger, store)

    assert verdict is not None
    assert verdict.outcome == "REJECT"
    assert (verdict.candidate, verdict.reference) == (rollout.candidate, rollout.production)
    assert verdict.gain == pytest.approx(1 - 4, abs=0.4)  # mean squares of the errors planted
    done = reconcile(ledger, MODEL, now=later(ledger))
    assert done is not None
    assert (done.outcome, done.quality) == ("roll_back", "REJECT")
    assert done.reason.startswith(
        "Labelled rows show that the challenger is worse: Significantly worse"
    )
    assert note(ledger, store) is None  # it is over


def test_an_ab_rollout_ends_with_a_promote_of_the_gate(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    settings = RolloutSettings(strategy="ab", min_step_s=0, min_requests=1, quality_rows=60)
    rollout = begin(ledger, settings)
    report(ledger, at=later(ledger), samples=pairs(rollout, ROWS, challenger_error=0.5))
    waits = reconcile(ledger, MODEL, now=later(ledger))
    verdict = note(ledger, store)
    ends = reconcile(ledger, MODEL, now=later(ledger))

    assert waits is not None
    assert (
        "The step requires the verdict PROMOTE of the gate on labelled pairs; the verdict is: none "
        "yet" in waits.reason
    )
    assert verdict is not None
    assert verdict.outcome == "PROMOTE"
    assert ends is not None
    assert (ends.outcome, current(ledger).phase) == ("advance", "awaiting_promotion")


def test_one_verdict_for_each_window_of_new_labels(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    rollout = begin(ledger)
    report(ledger, at=later(ledger), samples=pairs(rollout, ROWS))
    arrived = [UNSEEN + n for n in (59, 60, 61, 119, 120, 250)]
    found = [note(ledger, store, num_rows) for num_rows in arrived]

    assert [verdict and verdict.num_rows for verdict in found] == [None, 60, None, None, 120, 250]
    verdicts = [verdict for verdict in found if verdict is not None]
    assert [v.attempt for v in verdicts] == [1, 2, 3]
    gate = PIPELINE.gate.alpha
    assert [v.alpha for v in verdicts] == [spent_alpha(gate, look) for look in (1, 2, 3)]
    assert {v.alpha_of_all for v in verdicts} == {gate}
    assert ledger.observations.quality(rollout.id) == verdicts


def test_the_compared_losses_are_stored(ledger: RolloutLedger, store: ArtifactStore) -> None:
    rollout = begin(ledger)
    report(ledger, at=later(ledger), samples=pairs(rollout, ROWS))
    verdict = note(ledger, store)

    assert verdict is not None
    kept = pd.read_parquet(io.BytesIO(store.get(verdict.tables["candidate live losses"])))
    assert kept["loss"].mean() == pytest.approx(verdict.candidate_loss)
    assert kept["row"].nunique() == 300


def test_too_few_rows_are_inconclusive_and_spend_no_alpha(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    few = begin(ledger)
    samples = pairs(few, ROWS[:130], challenger_error=3.0, networks=2)
    report(ledger, at=later(ledger), samples=samples)
    verdicts = [note(ledger, store, UNSEEN + n) for n in (60, 120)]

    for verdict in verdicts:
        assert verdict is not None
        assert verdict.outcome == "INCONCLUSIVE"
        assert "the candidate has 2 seeds, required 5" in verdict.lacking
        assert verdict.attempt == 1
    done = reconcile(ledger, MODEL, now=later(ledger))
    assert done is not None
    assert done.outcome != "roll_back"


def test_without_a_rollout_nothing_is_judged(ledger: RolloutLedger, store: ArtifactStore) -> None:
    frame = echo_frame()
    assert (
        evaluate_live_quality(ledger, MODEL, WORKLOAD, PIPELINE.gate, store, frame, ledger._clock())
        is None
    )
    begin(ledger)
    assert note(ledger, store) is None  # nobody was asked yet


def live_losses(rng: np.random.Generator, rows: int) -> tuple[LossTable, LossTable]:
    """Two models of one quality, each good on rows of its own; networks hardly differ."""

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
def test_healthy_pairs_are_rejected_in_at_most_alpha_of_all_rollouts() -> None:
    """Six decisions on growing labels: 6 of 60 are rejected, 24 if they did not share alpha."""
    rng = np.random.default_rng(1)
    gate = GateSettings(alpha=0.2, min_rows=30, equivalence_margin_share=0)
    wrong = 0
    for _ in range(60):
        ours, theirs = live_losses(rng, 240)
        verdicts: list[Verdict] = []
        for rows in range(40, 241, 40):
            verdicts.append(
                judge_quality(
                    first_rows(ours, rows),
                    first_rows(theirs, rows),
                    gate,
                    earlier_verdicts=verdicts,
                    horizon_rows=0,
                    unit="loss",
                )
            )
        wrong += any(verdict.outcome == "REJECT" for verdict in verdicts)

    assert 2 <= wrong <= 12


def test_quality_rows_stay_with_the_rollout(ledger: RolloutLedger) -> None:
    begin(ledger)
    assert current(ledger).settings.quality_rows == QUICK.quality_rows == 60
