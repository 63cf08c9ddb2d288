"""ROLL-1: a rehearsal uses a copy of the registry and a clone of the production version."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, IntegrityError
from sluice.registry.rollouts import RolloutLedger
from sluice.rehearsal.sandbox import clone, open_sandbox
from sluice.rehearsal.settings import shorten_steps
from sluice.rollout.settings import RolloutSettings
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    artifact_path,
    promote_chain,
    sample_lineage,
)

GUARDS = (
    "alpha",
    "errors_alpha_share",
    "initial_alpha_share",
    "warn_alpha",
    "odds_ratios",
    "max_disagreement",
)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def read_state(ledger: RolloutLedger) -> tuple[object, ...]:
    receipts = [linked.receipt.digest for linked in ledger.receipts(MODEL, 2)]
    return ledger.history(MODEL), receipts, ledger.versions(MODEL), ledger.rollout(MODEL)


def test_a_clone_has_the_same_networks_under_other_seeds(store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    cloned = clone(lineage)
    assert cloned.candidate != lineage.candidate
    assert cloned.candidate == cloned.compute_candidate()
    assert [m.weights for m in cloned.members] == [m.weights for m in lineage.members]
    assert [m.seed for m in cloned.members] == [1, 0]


def test_a_version_with_one_seed_cannot_be_cloned(store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    one_seed = lineage.model_copy(update={"seeds": (0,), "members": lineage.members[:1]})
    with pytest.raises(ContractError, match="at least two seeds"):
        clone(one_seed.model_copy(update={"candidate": one_seed.compute_candidate()}))


@pytest.mark.slow
def test_a_rollout_in_the_sandbox_does_not_change_the_real_registry(
    store: ArtifactStore, tmp_path: Path
) -> None:
    """Receipts of version 2, which is in production, name version 1, which is not copied."""
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'real.db'}", clock=Clock()) as real:
        promote_chain(real, store, 2)
        before = read_state(real)
        production = real.production(MODEL)
        assert production is not None
        folder = tmp_path / "sandbox"
        folder.mkdir()
        with open_sandbox(
            real, production, store, folder=folder, clock=lambda: datetime.now(UTC)
        ) as sandbox:
            ledger = sandbox.ledger
            assert ledger.production_number(MODEL) == sandbox.production.number
            assert sandbox.production.candidate == production.candidate
            ledger.start_rollout(
                MODEL, sandbox.challenger.number, RolloutSettings(), actor="a", reason="b"
            )
            assert ledger.verify(None, store=sandbox.store) == []
        assert read_state(real) == before

        damaged = artifact_path(tmp_path / "artifacts", production.lineage.members[0].weights)
        damaged.write_bytes(b"other")
        other = tmp_path / "other"
        other.mkdir()
        with (
            pytest.raises(IntegrityError, match="does not match"),
            open_sandbox(real, production, store, folder=other, clock=lambda: datetime.now(UTC)),
        ):
            pass


@pytest.mark.parametrize("seconds", [20.0, 60.0, 3600.0])
@pytest.mark.parametrize("strategy", ["canary", "shadow", "blue-green", "ab"])
def test_shorter_steps_do_not_change_the_guards(seconds: float, strategy: str) -> None:
    settings = RolloutSettings.parse({"strategy": strategy}, where="test")
    short = shorten_steps(settings, seconds=seconds, step_timeout_s=seconds + 60)
    RolloutSettings.model_validate(short.model_dump())
    assert {name: getattr(short, name) for name in GUARDS} == {
        name: getattr(settings, name) for name in GUARDS
    }
    assert not short.needs_quality
    assert len(short.steps) * short.min_step_s < seconds
