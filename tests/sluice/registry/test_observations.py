"""Reports of servers in the registry: traffic counts, server states and samples (ROLL-2)."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError, SamplesRefused, StorageError
from sluice.registry import observations as observations_module
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.tables import samples
from sluice.rollout.observations import ArmCounts, TrafficCounts
from sluice.rollout.prediction_agreement import PredictionAgreement
from sluice.rollout.samples import Sample, ServerReport, ServerState
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout
from tests.sluice.registry.ledger_samples import MODEL, NOW, Clock, promote_chain, register_sample


@pytest.fixture
def ledger(url: str) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(url, clock=Clock()) as opened:
        yield opened


@pytest.fixture
def rollout(ledger: RolloutLedger, store: ArtifactStore) -> Rollout:
    promote_chain(ledger, store, 1)
    register_sample(ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate)
    return start_rollout(ledger)


AGREEMENT = PredictionAgreement(difference=0.5, spread=1.0, rows=10)


def start_rollout(ledger: RolloutLedger) -> Rollout:
    return ledger.start_rollout(
        MODEL, 2, RolloutSettings(), actor="ada", reason="PROMOTE", agreement=AGREEMENT
    ).rollout


def report(
    server: str = "a",
    *,
    rollout: Rollout | None = None,
    after_s: float = 0,
    epoch: int | None = None,
    requests: int = 0,
    kept: tuple[Sample, ...] = (),
) -> ServerReport:
    at = NOW + timedelta(hours=1, seconds=after_s)
    state = ServerState(
        server=server, model=MODEL, at=at, started_at=NOW, epoch=2, production=1, challenger=2
    )
    window = None
    if rollout is not None:
        window = TrafficCounts(
            rollout=rollout.id,
            epoch=rollout.epoch if epoch is None else epoch,
            since=rollout.step_since + timedelta(seconds=len(server)),
            until=at,
            production=ArmCounts(requests=10 * requests),
            challenger=ArmCounts(requests=requests, errors=requests // 2),
        )
    return ServerReport(state=state, counts=window, samples=kept)


def sample(number: int, rollout: str | None = None) -> Sample:
    return Sample(
        at=NOW,
        rollout=rollout,
        epoch=2,
        key=f"row {number}",
        arm="production",
        seconds=0.01,
        features=(float(number), float("nan")),
        production=((1.0,), (2.0,)),
    )


def test_latest_counts_of_each_server_are_summed_for_the_current_step(
    ledger: RolloutLedger, rollout: Rollout
) -> None:
    observations = ledger.observations
    before_reports = observations.traffic_counts(rollout)
    observations.write(report("a", rollout=rollout, requests=1))
    observations.write(report("a", rollout=rollout, requests=4, after_s=1))
    observations.write(report("bb", rollout=rollout, requests=6, after_s=9))
    observations.write(report("bb", rollout=rollout, requests=99, epoch=rollout.epoch + 1))
    traffic = observations.traffic_counts(rollout)

    assert (before_reports.since, before_reports.until) == (rollout.step_since, rollout.step_since)
    assert (traffic.challenger.requests, traffic.challenger.errors) == (10, 5)
    assert traffic.production.requests == 100
    assert {s: arms.challenger.requests for s, arms in traffic.servers.items()} == {"a": 4, "bb": 6}
    assert traffic.since == rollout.step_since + timedelta(seconds=1)
    assert traffic.until == NOW + timedelta(hours=1, seconds=9)


def test_servers_are_listed_by_their_latest_report(ledger: RolloutLedger) -> None:
    observations = ledger.observations
    for after_s in (0, 50):
        observations.write(report("a", after_s=after_s))
    observations.write(report("b", after_s=10))
    since = NOW + timedelta(hours=1, seconds=20)

    assert [s.server for s in observations.servers(MODEL, since=NOW)] == ["a", "b"]
    assert [s.at for s in observations.servers(MODEL, since=since)] == [
        since + timedelta(seconds=30)
    ]
    assert observations.servers("another", since=NOW) == []


def test_samples_are_read_in_order_and_the_oldest_are_pruned(
    ledger: RolloutLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations_module, "MAX_SAMPLES", 5)
    observations = ledger.observations
    observations.write(report(kept=tuple(sample(i) for i in range(4))))
    observations.write(report(kept=tuple(sample(i, "r") for i in range(4, 8))))
    stored = observations.samples(MODEL, max_samples=100)

    assert [s.key for s in stored] == [f"row {i}" for i in range(3, 8)]
    assert stored[0].production == ((1.0,), (2.0,))
    assert [s.key for s in observations.samples(MODEL, rollout="r", max_samples=2)] == [
        "row 6",
        "row 7",
    ]


def write_refused_sample(ledger: RolloutLedger, rollout: Rollout, key: str) -> None:
    unstorable = sample(1, rollout.id).model_copy(update={"key": key, "challenger": ((1.0,),)})
    with pytest.raises(SamplesRefused, match="dropped 2 samples that it cannot store"):
        ledger.observations.write(report(rollout=rollout, requests=4, kept=(sample(0), unstorable)))


def test_unstorable_samples_do_not_block_counts(ledger: RolloutLedger, rollout: Rollout) -> None:
    write_refused_sample(ledger, rollout, "\ud800")

    observations = ledger.observations
    assert observations.traffic_counts(rollout).challenger.requests == 4
    assert [server.server for server in observations.servers(MODEL, since=NOW)] == ["a"]
    assert observations.samples(MODEL, max_samples=9) == []
    observations.write(report(rollout=rollout, requests=5, kept=(sample(2),)))
    assert [s.key for s in observations.samples(MODEL, max_samples=9)] == ["row 2"]


@pytest.mark.parametrize("url", [pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("key", ["row\0", "x" * 201])
def test_samples_rejected_by_postgresql_do_not_block_counts(
    ledger: RolloutLedger, rollout: Rollout, key: str
) -> None:
    write_refused_sample(ledger, rollout, key)

    assert ledger.observations.traffic_counts(rollout).challenger.requests == 4
    assert ledger.observations.samples(MODEL, max_samples=9) == []


def test_first_pair_of_each_row_is_kept_during_a_rollout(
    ledger: RolloutLedger, rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations_module, "MAX_SAMPLES", 3)
    observations = ledger.observations

    def pair(number: int, prediction: float) -> Sample:
        unpaired = sample(number, rollout.id)
        return unpaired.model_copy(update={"challenger": ((prediction,), (prediction,))})

    assert not observations.has_keyed_pairs(rollout.id)
    observations.write(
        report(kept=(pair(1, 5.0), sample(2, rollout.id), pair(1, 6.0), pair(3, 7.0)))
    )
    observations.write(report(kept=tuple(sample(i) for i in range(9))))
    observations.write(report(kept=(pair(3, 8.0), pair(4, 9.0))))
    kept = [(s.key, s.challenger[0][0]) for s in observations.pairs(rollout.id) if s.challenger]

    assert kept == [("row 1", 5.0), ("row 3", 7.0), ("row 4", 9.0)]
    assert observations.has_keyed_pairs(rollout.id)
    assert len(observations.samples(MODEL, max_samples=100)) == 5
    assert observations.pairs("another") == []


def test_agreement_and_quality_are_stored_per_rollout(
    ledger: RolloutLedger, rollout: Rollout
) -> None:
    observations = ledger.observations

    assert observations.agreement(rollout.id) == AGREEMENT
    assert observations.agreement("another") is None
    assert observations.quality(rollout.id) == []


def test_rollout_is_not_started_if_its_agreement_cannot_be_stored(
    ledger: RolloutLedger, store: ArtifactStore, url: str
) -> None:
    """Otherwise the rollout would have no comparison of predictions."""
    promote_chain(ledger, store, 1)
    register_sample(ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE sluice_rollout_notes"))
    engine.dispose()

    with pytest.raises(StorageError, match="sluice_rollout_notes"):
        start_rollout(ledger)

    assert ledger.rollout(MODEL) is None


def test_edited_sample_is_reported(ledger: RolloutLedger, url: str) -> None:
    ledger.observations.write(report(kept=(sample(1),)))
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.update(samples).values(payload="{}"))
    engine.dispose()

    with pytest.raises(IntegrityError, match="A stored Sample cannot be read: at"):
        ledger.observations.samples(MODEL, max_samples=1)
