"""A version is promoted only if the gate rules equal those of its verdict (REG-2)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Transition
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    InterruptedStore,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    sample_lineage,
)
from tests.sluice.registry.one_database import url as url

CURRENT_RULES, EARLIER_RULES = "b" * 64, "a" * 64
REJECTED = "was evaluated under gate, guard or suite settings"


@pytest.fixture
def ledger(url: str) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(url, clock=Clock()) as opened:
        yield opened


def register_second(ledger: RolloutLedger, store: ArtifactStore) -> None:
    """Promote version 1; register version 2 with verdict PROMOTE under the current rules."""
    promote_chain(ledger, store, 1)
    lineage = sample_lineage(store, salt=2)
    reference = ledger.version(MODEL, 1).candidate
    decision = promotion_receipt(
        lineage.candidate, reference=reference, subject={"rules": CURRENT_RULES}
    )
    ledger.register(MODEL, lineage, [poc_receipt(), decision])


def register_verdict_under_other_rules(url: str) -> None:
    """Simulate a run of a pipeline with other rules on a newer window."""
    with RolloutLedger.open(url, clock=Clock()) as another:
        lineage = another.version(MODEL, 2).lineage
        later = promotion_receipt(
            lineage.candidate,
            reference=another.version(MODEL, 1).candidate,
            window="c" * 64,
            subject={"rules": EARLIER_RULES},
        )
        another.register(MODEL, lineage, [later])


def promote(ledger: RolloutLedger, store: ArtifactStore, number: int, expected: int | None) -> int:
    done = ledger.promote(
        MODEL,
        number,
        expected=expected,
        actor="job",
        reason="r",
        store=store,
        gate_settings_digest=CURRENT_RULES,
    )
    return done.version


def start_rollout(ledger: RolloutLedger, rules: str) -> Transition:
    settings = RolloutSettings()
    return ledger.start_rollout(
        MODEL, 2, settings, actor="job", reason="r", gate_settings_digest=rules
    )


def pass_all_steps(ledger: RolloutLedger, started: Transition) -> None:
    """Record that all steps of the rollout passed."""
    before = started.rollout
    passed = before.model_copy(
        update={"phase": "awaiting_promotion", "revision": before.revision + 1}
    )
    changed = started.model_copy(update={"outcome": "advance", "rollout": passed})
    ledger.record_transition(before, changed)


@pytest.mark.parametrize(
    ("against_first", "against_second", "is_allowed"),
    [(EARLIER_RULES, CURRENT_RULES, False), (CURRENT_RULES, EARLIER_RULES, True)],
)
def test_rules_are_compared_with_the_verdict_against_production(
    ledger: RolloutLedger,
    store: ArtifactStore,
    against_first: str,
    against_second: str,
    is_allowed: bool,
) -> None:
    """3 beat 1 and lost to 2 under different rules; then 2 was rolled back."""
    promote_chain(ledger, store, 2)
    first, second = (version.candidate for version in ledger.versions(MODEL))
    lineage = sample_lineage(store, salt=3)
    promote_verdict, reject_verdict = (
        promotion_receipt(
            lineage.candidate, reference=reference, outcome=outcome, subject={"rules": rules}
        )
        for reference, outcome, rules in (
            (first, "PROMOTE", against_first),
            (second, "REJECT", against_second),
        )
    )
    ledger.register(MODEL, lineage, [poc_receipt(), promote_verdict, reject_verdict])
    ledger.rollback(MODEL, expected=2, actor="bob", reason="errors", store=store)

    if is_allowed:
        ledger.require_promotable(MODEL, 3, gate_settings_digest=CURRENT_RULES)
        assert promote(ledger, store, 3, 1) == 3
        return
    with pytest.raises(GateBlocked, match=REJECTED):
        ledger.require_promotable(MODEL, 3, gate_settings_digest=CURRENT_RULES)
    with pytest.raises(GateBlocked, match=REJECTED):
        promote(ledger, store, 3, 1)
    assert ledger.production_number(MODEL) == 1


def test_version_without_a_verdict_is_rejected_for_the_missing_receipt(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    ledger.register(MODEL, sample_lineage(store), [poc_receipt()])

    with pytest.raises(GateBlocked, match="receipt of the promotion gate is required"):
        promote(ledger, store, 1, None)


def test_verdict_under_other_rules_stored_while_networks_load_counts(
    url: str, ledger: RolloutLedger, store: ArtifactStore, tmp_path: Path
) -> None:
    """The check is part of the transaction that moves the pointer."""
    register_second(ledger, store)
    interrupted_store = InterruptedStore(
        tmp_path / "artifacts", lambda: register_verdict_under_other_rules(url)
    )

    with pytest.raises(GateBlocked, match=REJECTED):
        promote(ledger, interrupted_store, 2, 1)

    assert ledger.production_number(MODEL) == 1
    assert ledger.promote(MODEL, 2, expected=1, actor="ada", reason="r", store=store).moved


def test_rollout_requires_the_rules_of_its_verdict_at_start_and_end(
    url: str, ledger: RolloutLedger, store: ArtifactStore, tmp_path: Path
) -> None:
    register_second(ledger, store)
    with pytest.raises(GateBlocked, match=REJECTED):
        start_rollout(ledger, EARLIER_RULES)
    pass_all_steps(ledger, start_rollout(ledger, CURRENT_RULES))
    interrupted_store = InterruptedStore(
        tmp_path / "artifacts", lambda: register_verdict_under_other_rules(url)
    )

    done = ledger.finish_rollout(
        MODEL, actor="job", store=interrupted_store, gate_settings_digest=CURRENT_RULES
    )

    assert (done.outcome, done.rollout.phase) == ("roll_back", "rolled_back")
    assert REJECTED in done.reason
    assert ledger.production_number(MODEL) == 1
