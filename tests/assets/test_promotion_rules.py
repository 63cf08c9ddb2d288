"""A version moves only under the rules that the verdict it rests on was given under."""

from pathlib import Path

import pytest

from assets.promotion_rules import require_present_rules
from sluice.artifacts import ArtifactStore
from sluice.errors import GateBlocked
from sluice.pipeline import PipelineSettings
from sluice.registry.ledger import Ledger
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    sample_lineage,
)

PIPELINE = PipelineSettings(name=MODEL, workload="tests.support.echo:Echo")
NOW, BEFORE = PIPELINE.promotion_rules, "a" * 64


@pytest.mark.parametrize(
    ("against_first", "against_second", "is_allowed"),
    [(BEFORE, NOW, False), (NOW, BEFORE, True)],
)
def test_rules_are_those_of_the_verdict_about_what_is_in_production(
    tmp_path: Path, against_first: str, against_second: str, is_allowed: bool
) -> None:
    """3 beat 1 under some rules and lost to 2 under others; then 2 was rolled back."""
    store = ArtifactStore(tmp_path / "artifacts")
    with Ledger.open(f"sqlite:///{tmp_path / 'registry.db'}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 2)
        first, second = (version.candidate for version in ledger.versions(MODEL))
        lineage = sample_lineage(store, salt=3)
        beat, lost = (
            promotion_receipt(
                lineage.candidate, reference=reference, outcome=outcome, subject={"rules": rules}
            )
            for reference, outcome, rules in (
                (first, "PROMOTE", against_first),
                (second, "REJECT", against_second),
            )
        )
        ledger.register(MODEL, lineage, [poc_receipt(), beat, lost])
        ledger.rollback(MODEL, expected=2, actor="bob", reason="errors", store=store)

        verdict = ledger.verdict(MODEL, 3)
        assert verdict is not None
        assert verdict.subject["reference"] == first
        if is_allowed:
            require_present_rules(PIPELINE, ledger, 3)
        else:
            with pytest.raises(GateBlocked, match="judged under other settings of gate"):
                require_present_rules(PIPELINE, ledger, 3)


def test_version_that_nobody_judged_is_left_to_the_evidence(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'registry.db'}", clock=Clock()) as ledger:
        ledger.register(MODEL, sample_lineage(ArtifactStore(tmp_path)), [])

        require_present_rules(PIPELINE, ledger, 1)

        assert ledger.verdict(MODEL, 1) is None
