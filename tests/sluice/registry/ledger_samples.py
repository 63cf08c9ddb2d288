"""Sample candidates for registry tests: stored weights, lineage, receipts, promotions."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes, digest_json
from sluice.base.environment import Environment, GitState
from sluice.base.receipts import Receipt
from sluice.models.linear import LastRowLinear
from sluice.models.scaled import Scaled
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import BASELINE, Lineage
from sluice.registry.records import Version
from sluice.training.members import Member
from sluice.training.weights import pack_model

MODEL = "sp500_volatility"
NOW = datetime(2025, 3, 14, 9, 26, 53, tzinfo=UTC)
DATA, CODE, WINDOW = (digest_bytes(w) for w in (b"data", b"code", b"window"))
SETTINGS = {
    "workload": "tests.support.synthetic:SineWorkload",
    "workload_settings": {},
    "model": {"architecture": "linear"},
    "training": {"learning_rate": 2e-3},
}
CONFIG = digest_json(SETTINGS)


class InterruptedStore(ArtifactStore):
    """Store that runs an action before its first read, as if concurrent with a promotion."""

    def __init__(self, root: Path, action: Callable[[], object]) -> None:
        super().__init__(root)
        self._pending_actions = [action]

    def get(self, digest: str) -> bytes:
        while self._pending_actions:
            self._pending_actions.pop()()
        return super().get(digest)


class Clock:
    """Clock that advances one second per call."""

    def __init__(self, start: datetime = NOW) -> None:
        self.now = start

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


def sample_weights(value: float) -> bytes:
    """Return the weights of the linear network of ``SETTINGS``, all equal to ``value``."""
    network = LastRowLinear(2, 1)
    torch.nn.init.constant_(network.head.weight, value)
    torch.nn.init.constant_(network.head.bias, value)
    return pack_model(
        Scaled(network, num_features=2, num_outputs=1, scale_inputs=True, scale_target=True)
    )


def sample_lineage(store: ArtifactStore, *, salt: int = 0, model: str = MODEL) -> Lineage:
    """Return complete lineage of two members with their artifacts in the store."""
    members = tuple(
        Member(
            seed=seed,
            fold_id=0,
            weights=store.put(sample_weights(salt + 0.5 * seed)),
            event_log=store.put(f"log {salt} {seed}".encode()),
            best_epoch=3,
            epochs_run=5,
            train_loss=0.6,
            val_loss=0.64,
            test_metrics={"loss": 0.65},
            trained_through="2015-06-30",
            seconds=4.2,
        )
        for seed in (0, 1)
    )
    draft = Lineage(
        model=model,
        candidate="",
        data=DATA,
        config=CONFIG,
        resolved_config=SETTINGS,
        code=CODE,
        git=GitState(commit="4f" * 20, dirty=False, diff=None),
        seeds=(0, 1),
        members=members,
        metrics={"mse": 0.643, "sharpe": 0.71, "sortino": 1.02},
        reference=BASELINE,
        training_seconds=8.4,
        environment=Environment(
            python="3.11.9",
            platform="Linux 6.1 x86_64",
            libraries={"torch": "2.13.0", "numpy": "2.3.1"},
            device="cpu",
            device_count=0,
            cpu_count=2,
        ),
        created_at=NOW,
    )
    return draft.model_copy(update={"candidate": draft.compute_candidate()})


def as_version(lineage: Lineage, *, is_imported: bool = False) -> Version:
    """Return lineage as version 1 of its model, without a ledger."""
    return Version(
        model=lineage.model,
        number=1,
        candidate=lineage.candidate,
        state="dev",
        registered_at=NOW,
        lineage=lineage,
        is_imported=is_imported,
    )


def search_receipt(*, searched: str, found: str = CONFIG) -> Receipt:
    return Receipt(
        gate="search",
        outcome="pass",
        passed=True,
        subject={"data": DATA, "config": searched, "code": CODE, "found": found},
        evidence={"num_trials": 20},
        reason="Trial 7 of 20 has the lowest validation loss.",
        decided_at=NOW,
    )


def poc_receipt(*, passed: bool = True, data: str = DATA, config: str = CONFIG) -> Receipt:
    return Receipt(
        gate="poc",
        outcome="pass" if passed else "fail",
        passed=passed,
        subject={"data": data, "config": config, "code": CODE},
        evidence={"checks": 5},
        reason="Five checks passed." if passed else "POC-5: the loss did not fall.",
        decided_at=NOW,
    )


def promotion_receipt(
    candidate: str,
    *,
    reference: str = BASELINE,
    outcome: str = "PROMOTE",
    window: str = WINDOW,
    subject: dict[str, str] | None = None,
) -> Receipt:
    roles = {"data": DATA, "config": CONFIG, "code": CODE, "candidate": candidate}
    roles |= {"reference": reference, "window": window}
    return Receipt(
        gate="promotion",
        outcome=outcome,
        passed=outcome == "PROMOTE",
        subject=roles | (subject or {}),
        evidence={
            "outcome": outcome,
            "candidate": candidate,
            "unit": "log variance squared",
            "gain": 0.054,
            "standard_error": 0.0125,
            "degrees_of_freedom": 11.3,
            "lower_bound": 0.029,
            "upper_bound": 0.079,
            "p_value": 0.0004,
            "effect_size": 0.31,
            "num_seeds": 5,
            "diverged_seeds": [],
            "folds": [
                {"fold_id": 0, "gain": 0.061, "low": 0.02, "high": 0.1, "num_rows": 740},
                {"fold_id": 1, "gain": 0.047, "low": float("nan"), "high": 0.1, "num_rows": 739},
            ],
            "remedy": "Promote the version; the sensor does it when it runs.",
        },
        reason="The candidate's loss is lower by more than 0.",
        decided_at=NOW,
    )


def register_sample(
    ledger: Ledger, store: ArtifactStore, *, salt: int, reference: str = BASELINE
) -> int:
    """Register a candidate with verdict PROMOTE against ``reference``; return its number."""
    lineage = sample_lineage(store, salt=salt)
    receipts = [poc_receipt(), promotion_receipt(lineage.candidate, reference=reference)]
    return ledger.register(MODEL, lineage, receipts).version.number


def promote_chain(ledger: Ledger, store: ArtifactStore, count: int) -> None:
    """Register and promote versions 1 to ``count``, each evaluated against the previous one."""
    reference, before = BASELINE, None
    for salt in range(1, count + 1):
        number = register_sample(ledger, store, salt=salt, reference=reference)
        ledger.promote(
            MODEL, number, expected=before, actor="ada", reason=f"step {salt}", store=store
        )
        reference, before = ledger.version(MODEL, number).candidate, number


def artifact_path(store_root: Path, digest: str) -> Path:
    return store_root / digest[:2] / digest


def record_decision(ledger: Ledger, receipt: Receipt, *, model: str = MODEL) -> Receipt:
    """Propose ``receipt`` as the decision on its subject; return the ledger's final decision."""
    return ledger.decide(model, receipt.subject, lambda _: receipt)
