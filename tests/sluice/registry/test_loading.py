"""Loading of versions: a version that serving cannot load is not promoted (REG-2, REG-3)."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json
from sluice.base.errors import IntegrityError
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import BASELINE, Lineage
from sluice.registry.loading import load_networks
from tests.sluice.registry.ledger_samples import (
    MODEL,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    sample_lineage,
)


def with_weights(lineage: Lineage, weights: str) -> Lineage:
    member = lineage.members[0].model_copy(update={"weights": weights})
    return with_candidate_digest(
        lineage.model_copy(update={"members": (member, *lineage.members[1:])})
    )


def with_config(lineage: Lineage, **changes: Any) -> Lineage:
    return with_settings(lineage, lineage.resolved_config | changes)


def with_settings(lineage: Lineage, settings: dict[str, Any]) -> Lineage:
    update = {"resolved_config": settings, "config": digest_json(settings)}
    return with_candidate_digest(lineage.model_copy(update=update))


def with_candidate_digest(lineage: Lineage) -> Lineage:
    return lineage.model_copy(update={"candidate": lineage.compute_candidate()})


def approve(ledger: Ledger, lineage: Lineage, reference: str = BASELINE) -> int:
    """Register lineage with the receipts that a promotion requires; return the version's number."""
    subject = {"config": lineage.config, "code": lineage.code}
    decision = promotion_receipt(lineage.candidate, reference=reference, subject=subject)
    poc = poc_receipt(config=lineage.config)
    receipts = [poc.model_copy(update={"subject": poc.subject | subject}), decision]
    return ledger.register(MODEL, lineage, receipts).version.number


def promote(ledger: Ledger, store: ArtifactStore, number: int) -> None:
    ledger.promote(MODEL, number, expected=None, actor="a", reason="r", store=store)


def test_loaded_networks_predict_with_the_stored_weights(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """All weights of the linear network are 1.5: 1.5 * (last row + mean row) + 1.5."""
    lineage = sample_lineage(store, salt=1)
    version = ledger.register(MODEL, lineage, []).version
    _, network = load_networks(version, store)

    assert network(torch.ones(1, 3, 2)).item() == pytest.approx(1.5 * 4 + 1.5)


def make_unloadable_lineages(
    store: ArtifactStore, tmp_path: Path
) -> dict[str, tuple[Lineage, str]]:
    good = sample_lineage(store, salt=1)
    torch.save({"w": torch.zeros(2)}, tmp_path / "w.pt")
    torch_saved, pickled = (tmp_path / "w.pt").read_bytes(), pickle.dumps({"w": [1.0]})
    return {
        "another architecture": (
            with_config(good, model={"architecture": "gru", "hidden": 4}),
            "version 1 cannot be loaded: The weights of seed 0.* do not fit",
        ),
        "another class": (
            with_config(good, workload="tests.support.synthetic:Gone"),
            "version 1 cannot be loaded: .*Gone",
        ),
        "no model": (
            with_settings(good, {"x": 1}),
            "lack workload, workload_settings, model",
        ),
        "pickle": (
            with_weights(good, store.put(pickled)),
            "but is a Python pickle.*may execute code of their author",
        ),
        "torch.save": (with_weights(good, store.put(torch_saved)), "as torch.save writes it"),
    }


UNLOADABLE_CASES = ("another architecture", "another class", "no model", "pickle", "torch.save")


@pytest.mark.parametrize("case", UNLOADABLE_CASES)
def test_unloadable_version_is_not_promoted(
    ledger: Ledger, store: ArtifactStore, tmp_path: Path, case: str
) -> None:
    lineage, message = make_unloadable_lineages(store, tmp_path)[case]
    number = approve(ledger, lineage)

    with pytest.raises(IntegrityError, match=message):
        promote(ledger, store, number)

    assert ledger.production_number(MODEL) is None


def test_rollback_to_an_unloadable_version_does_not_move_production(
    ledger: Ledger, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artifacts are intact, but the workload class no longer exists."""
    promote_chain(ledger, store, 2)
    monkeypatch.delattr("tests.support.synthetic.SineWorkload")

    with pytest.raises(
        IntegrityError, match=r"version 1 cannot be loaded.*Production was not changed"
    ):
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)

    assert ledger.production_number(MODEL) == 2
