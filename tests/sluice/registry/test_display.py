"""Page of a version in the terminal: how evidence of receipts is formatted."""

from pathlib import Path

import pytest
from rich.console import Console

from sluice.base.artifacts import ArtifactStore
from sluice.registry.display import version_page
from sluice.registry.ledger import Ledger
from sluice.registry.records import ApprovalStatus
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain, promotion_receipt

NO_APPROVAL = ApprovalStatus(required=False, approval=None)


def test_long_lists_in_the_evidence_are_shortened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 1)
        version = ledger.version(MODEL, 1)
    receipt = promotion_receipt(version.candidate)
    lists = {
        "rows": {"hashes": list(range(2000, 2200))},
        "labels": list(range(1000, 1200)),
        "seeds": list(range(12)),
    }
    long_receipt = receipt.model_copy(update={"evidence": {**receipt.evidence, **lists}})

    Console(width=200).print(
        version_page(version, [long_receipt], [], reference=None, approval=NO_APPROVAL)
    )

    text = " ".join(capsys.readouterr().out.split())
    assert "1000, 1001, 1002, 1003, 1004 and 195 more" in text
    assert "1005" not in text
    assert "2000" not in text  # hashes of rows
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11" in text


def test_evidence_is_formatted_with_direction_short_digests_and_no_repeated_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 1)
        version = ledger.version(MODEL, 1)
    receipt = promotion_receipt(version.candidate)
    evidence = {
        "gain": -1.5,
        "symptoms": ["Stopped too early."],
        "tables": {"losses": "ab12" * 16},
        "worse_metrics": [{"metric": "mae", "low": float("nan")}],
        "num_clusters": 731,
    }
    refused = receipt.model_copy(
        update={
            "evidence": {**receipt.evidence, **evidence},
            "reason": "Stopped too early. Worse.",
        }
    )
    unmentioned = refused.model_copy(update={"reason": "Better."})

    pages = []
    for receipt_shown in (refused, unmentioned):
        Console(width=200).print(
            version_page(version, [receipt_shown], [], reference=None, approval=NO_APPROVAL)
        )
        gate = capsys.readouterr().out.split("Metrics on the test rows")[0]
        pages.append(" ".join(gate.split()))

    assert "above 0 is better" in pages[0]
    assert "digest of losses: ab12ab12ab12 " in pages[0]
    assert "nan" not in pages[0]
    assert "clusters 731" in pages[0]
    assert "num clusters" not in pages[0]
    assert pages[0].count("Stopped too early.") == 1
    assert pages[1].count("Stopped too early.") == 1
