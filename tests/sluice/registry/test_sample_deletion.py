"""Deletion of samples: all samples of one user, and expired samples in batches (ROLL-2)."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.registry import sample_deletion
from sluice.registry.client_names import client_of, client_pseudonym
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from sluice.rollout.samples import Sample, ServerReport, ServerState
from sluice.rollout.settings import RolloutSettings
from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
from tests.sluice.cli.test_registry import invoke
from tests.sluice.registry.ledger_samples import MODEL, NOW, Clock, promote_chain, register_sample

KEY = SigningKey(b"k" * 32)


@pytest.fixture
def ledger(url: str) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(url, clock=Clock(), key=KEY) as opened:
        yield opened


@pytest.fixture
def rollout(ledger: RolloutLedger, store: ArtifactStore) -> str:
    """Id of a running rollout."""
    promote_chain(ledger, store, 1)
    register_sample(ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate)
    settings = RolloutSettings()
    return ledger.start_rollout(MODEL, 2, settings, actor="ada", reason="PROMOTE").rollout.id


def sample(client: str | None, *, rollout: str | None = None, key: str | None = None) -> Sample:
    prediction = ((1.0,),)
    return Sample(
        at=NOW,
        rollout=rollout,
        epoch=2,
        key=key,
        client=client,
        arm="production",
        seconds=0.01,
        features=(4.25,),
        production=prediction,
        challenger=None if rollout is None else prediction,
    )


def report(*kept: Sample, at: datetime = NOW) -> ServerReport:
    state = ServerState(server="a", model=MODEL, at=at, started_at=NOW, epoch=2, production=1)
    return ServerReport(state=state, samples=kept)


def pseudonym_of(ledger: RolloutLedger, user: str) -> str:
    return client_pseudonym(
        client_of(user, "10.0.0.1"), secret=LedgerTrafficSplit(ledger, MODEL).read().secret
    )


def test_erase_user_deletes_only_the_samples_of_that_user(
    ledger: RolloutLedger, rollout: str, store: ArtifactStore, url: str
) -> None:
    observations, ada, bob = (
        ledger.observations,
        pseudonym_of(ledger, "ada"),
        pseudonym_of(ledger, "bob"),
    )
    lookalike = sample(bob, key=f'"client":"{ada}"')
    samples_of_ada = [
        sample(ada),
        sample(ada, key="row 0"),
        sample(ada, rollout=rollout, key="row 1"),
        sample(ada, rollout=rollout),
    ]
    other_samples = [
        sample(bob),
        lookalike,
        sample(bob, rollout=rollout, key="row 2"),
        sample(None),
    ]
    observations.write(report(*samples_of_ada, *other_samples))
    transitions = ledger.rollout_transitions(rollout)

    erased = ledger.erase_user(MODEL, "ada")
    erased_again = ledger.erase_user(MODEL, "ada")

    counts = erased.model_dump(exclude={"model"})
    assert counts == {
        "samples": 4,
        "drift": 2,
        "pairs": 2,
        "awaiting_label": 1,
        "kept": 4,
        "unnamed": 1,
    }
    assert (erased_again.samples, erased_again.kept) == (0, 4)
    assert observations.samples(MODEL, max_samples=100) == other_samples
    assert [pair.key for pair in observations.pairs(rollout)] == ["row 2"]
    assert ledger.rollout_transitions(rollout) == transitions
    assert ledger.verify(None, store=store, key=KEY) == []
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        tables = sa.MetaData()
        tables.reflect(connection)
        for table in tables.sorted_tables:
            for row in connection.execute(sa.select(table)):
                assert ada not in str(row) or lookalike.key in str(row).replace(chr(92), "")
    engine.dispose()


def test_erase_user_ignores_other_models_and_partial_names(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    promote_chain(ledger, store, 1)
    ledger.observations.write(report(sample(pseudonym_of(ledger, "ada"))))

    assert ledger.erase_user(MODEL, "ad").samples == 0
    assert ledger.erase_user(MODEL, "%").samples == 0
    assert ledger.erase_user("another", "ada").samples == 0
    assert len(ledger.observations.samples(MODEL, max_samples=9)) == 1


def test_each_report_deletes_a_limited_number_of_expired_samples(
    ledger: RolloutLedger, rollout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_deletion, "_MAX_ROWS_PER_REPORT", 3)
    kept = ledger.observations.with_retention(days=30)
    kept.write(report(*(sample("c", rollout=rollout, key=f"row {n}") for n in range(7))))
    sample_counts = []
    for days in (29.9, 30.1, 30.2, 30.3, 30.4):
        at = NOW + timedelta(days=days)
        new = sample("c").model_copy(update={"at": at})
        kept.write(report(new, at=at))
        sample_counts.append(len(kept.samples(MODEL, max_samples=100)))

    assert sample_counts == [8, 6, 4, 4, 5], "each report adds one sample and deletes up to three"
    assert [s.key for s in kept.samples(MODEL, max_samples=100)] == [None] * 5
    assert kept.pairs(rollout) == []


def test_without_retention_no_sample_expires(ledger: RolloutLedger, rollout: str) -> None:
    ledger.observations.write(report(sample("c", rollout=rollout)))
    ledger.observations.write(report(at=NOW + timedelta(days=4000)))

    assert len(ledger.observations.samples(MODEL, max_samples=9)) == 1


def test_erase_command_prints_the_numbers_of_deleted_samples(
    ledger: RolloutLedger, rollout: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_REGISTRY_URL", url)
    monkeypatch.setenv("COLUMNS", "300")
    ada = pseudonym_of(ledger, "ada")
    ledger.observations.write(report(sample(ada), sample(ada, rollout=rollout, key="row 1")))

    printed = invoke("erase", MODEL, "--user", "ada")

    assert "Deleted 2 samples of the user: 1 for drift, 1 answered by both arms" in printed
    assert ledger.observations.samples(MODEL, max_samples=9) == []
