"""Rollouts in the ledger: one at a time, compare-and-swap, atomic promotion (ROLL-1, REG-2)."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import (
    ContractError,
    GateBlocked,
    IntegrityError,
    RolloutConflict,
    SluiceError,
    UnknownVersion,
)
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.tables import rollout_heads
from sluice.rollout import transitions
from sluice.rollout.observations import ArmCounts, TrafficCounts
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout, Transition
from sluice.rollout.state_machine import advance
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    InterruptedStore,
    artifact_path,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    register_sample,
    sample_lineage,
)
from tests.sluice.registry.one_database import ON_BOTH
from tests.sluice.registry.one_database import url as url
from tests.sluice.registry.test_roles import make_personal_key, write_key_list

QUICK = RolloutSettings(min_step_s=0, min_requests=1, shares=(0.05, 1.0))
HEALTHY = ArmCounts(requests=100, errors=1)
UNHEALTHY = ArmCounts(requests=100, errors=50)
BY = {"actor": "ada", "reason": "The gate said PROMOTE."}


@pytest.fixture
def ledger(url: str, store: ArtifactStore) -> Iterator[RolloutLedger]:
    """A ledger with version 1 in production and verdict PROMOTE on version 2 against it."""
    with RolloutLedger.open(url, clock=Clock()) as opened:
        promote_chain(opened, store, 1)
        register_sample(opened, store, salt=2, reference=opened.version(MODEL, 1).candidate)
        yield opened


def start_rollout(
    ledger: RolloutLedger, version: int = 2, settings: RolloutSettings = QUICK
) -> Rollout:
    return ledger.start_rollout(MODEL, version, settings, **BY).rollout


def current_rollout(ledger: RolloutLedger) -> Rollout:
    rollout = ledger.rollout(MODEL)
    assert rollout is not None
    return rollout


def assess(ledger: RolloutLedger, at: Rollout, challenger: ArmCounts = HEALTHY) -> Transition:
    """Return the transition after one second of traffic, without recording it."""
    now = at.checked_at + timedelta(seconds=1)
    window = TrafficCounts(
        rollout=at.id,
        epoch=at.epoch,
        since=at.step_since,
        until=now,
        production=HEALTHY,
        challenger=challenger,
    )
    return advance(at, window, now=now, production=traffic_split(ledger).production)


def traffic_split(ledger: RolloutLedger) -> TrafficSplit:
    split = ledger.traffic_split(MODEL)
    assert split is not None
    return split


def assess_and_record(ledger: RolloutLedger, challenger: ArmCounts = HEALTHY) -> Transition:
    at = current_rollout(ledger)
    transition = assess(ledger, at, challenger)
    ledger.record_transition(at, transition)
    return transition


def pass_all_steps(ledger: RolloutLedger) -> None:
    start_rollout(ledger)
    assert [assess_and_record(ledger).outcome for _ in range(2)] == ["advance", "advance"]


def production(ledger: RolloutLedger) -> int | None:
    version = ledger.production(MODEL)
    return None if version is None else version.number


@ON_BOTH
def test_healthy_rollout_is_promoted_after_all_steps(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    assert ledger.rollout(MODEL) is None
    epochs, shares = [traffic_split(ledger).epoch], []
    start_rollout(ledger)
    for _ in range(2):
        shares.append(traffic_split(ledger).share)
        epochs.append(traffic_split(ledger).epoch)
        assert production(ledger) == 1
        assess_and_record(ledger)
    done = ledger.finish_rollout(MODEL, actor="sensor", store=store)
    epochs.append(traffic_split(ledger).epoch)

    assert shares == [0.05, 1.0]
    assert epochs == sorted(set(epochs))
    assert (done.outcome, production(ledger)) == ("promote", 2)
    entry = ledger.history(MODEL)[-1]
    assert (entry.action, entry.to_version, entry.actor) == ("promote", 2, "sensor")
    assert entry.reason == f"every step of rollout {done.rollout.id[:12]} passed"
    after = traffic_split(ledger)
    assert (after.challenger, after.share) == (None, 0.0)
    assert after.production == ledger.version(MODEL, 2).candidate
    recorded = ledger.rollout_transitions(done.rollout.id)
    assert [t.outcome for t in recorded] == ["start", "advance", "advance", "promote"]
    assert all(t.reason for t in recorded)
    assert ledger.verify(None, store=store) == []
    assert ledger.finish_rollout(MODEL, actor="sensor", store=store).outcome == "promote"
    assert len(ledger.rollout_transitions(done.rollout.id)) == 4


def test_failed_rollout_keeps_production_and_can_be_restarted(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    started = start_rollout(ledger)
    epoch = traffic_split(ledger).epoch
    assert assess_and_record(ledger, UNHEALTHY).outcome == "roll_back"

    assert production(ledger) == 1
    assert traffic_split(ledger).share == 0.0
    assert traffic_split(ledger).epoch > epoch
    rollback = ledger.rollout_transitions(started.id)[-1]
    assert rollback.window is not None
    assert rollback.guards[0].verdict == "breach"
    assert ledger.finish_rollout(MODEL, actor="sensor", store=store) == rollback
    assert production(ledger) == 1
    restarted = start_rollout(ledger)
    assert restarted.id != started.id
    assert restarted.epoch > ledger.rollout_transitions(started.id)[-1].rollout.epoch
    assert ledger.rollout_ids(MODEL) == [started.id, restarted.id]


@ON_BOTH
def test_rollouts_are_listed_in_start_order_if_the_clock_is_set_back(
    store: ArtifactStore, url: str
) -> None:
    clock = Clock()
    started = []
    with RolloutLedger.open(url, clock=clock) as ledger:
        promote_chain(ledger, store, 1)
        register_sample(ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate)
        for _ in range(4):
            started.append(start_rollout(ledger))
            assess_and_record(ledger, UNHEALTHY)
            clock.now -= timedelta(hours=5)

        assert ledger.rollout_ids(MODEL) == [one.id for one in started]
    assert started[-1].started_at < started[0].started_at


def test_second_rollout_is_rejected_with_actor_and_time_of_the_first(ledger: RolloutLedger) -> None:
    start_rollout(ledger)

    with pytest.raises(RolloutConflict, match="rolling already, at 5 % of the traffic") as error:
        start_rollout(ledger)

    assert "ada started it at 2025-03-14" in error.value.cause


def test_rollout_without_required_receipts_is_rejected(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    ledger.register(MODEL, sample_lineage(store, salt=3), [poc_receipt()])
    refusals: list[tuple[int, type[SluiceError], str]] = [
        (3, GateBlocked, "receipt of the promotion gate is required"),
        (1, GateBlocked, "version 1 is in production already"),
        (9, UnknownVersion, "has no version 9"),
    ]
    for version, kind, message in refusals:
        with pytest.raises(kind, match=message):
            start_rollout(ledger, version)
    with pytest.raises(ContractError, match="The actor of a change"):
        ledger.start_rollout(MODEL, 2, QUICK, actor=" ", reason="r")
    assert ledger.rollout(MODEL) is None


def test_rollout_of_a_manually_rolled_back_version_is_rejected(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    ledger.promote(MODEL, 2, expected=1, actor="a", reason="r", store=store)
    ledger.rollback(MODEL, expected=2, actor="bob", reason="errors", store=store)

    with pytest.raises(GateBlocked, match="was rolled back by bob"):
        start_rollout(ledger)


def test_rollout_requires_a_production_version(url: str, store: ArtifactStore) -> None:
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        register_sample(ledger, store, salt=1)
        assert ledger.traffic_split(MODEL) is None
        with pytest.raises(GateBlocked, match="has no production version"):
            start_rollout(ledger, 1)


def test_transition_of_a_replaced_rollout_names_the_newer_one(ledger: RolloutLedger) -> None:
    old = start_rollout(ledger)
    abort = transitions.abort(old, now=old.checked_at, actor="bob", reason="too slow")
    ledger.record_transition(old, abort)
    ledger.start_rollout(MODEL, 2, QUICK, actor="ada", reason="Again.")

    with pytest.raises(RolloutConflict, match="is not the newest rollout") as error:
        ledger.record_transition(old, assess(ledger, old))
    assert error.value.cause == "A newer rollout was started."


@ON_BOTH
def test_second_of_two_concurrent_transitions_is_rejected(ledger: RolloutLedger) -> None:
    at = start_rollout(ledger)
    ledger.record_transition(at, assess(ledger, at))

    abort = transitions.abort(at, now=at.checked_at, actor="bob", reason="too late")
    with pytest.raises(RolloutConflict, match="transition 0, but is at 1") as error:
        ledger.record_transition(at, abort)
    assert "rollout recorded the transition advance" in error.value.cause
    with pytest.raises(RolloutConflict):  # an outdated outcome wait is rejected, too
        ledger.record_transition(at, assess(ledger, at).model_copy(update={"rollout": at}))
    assert current_rollout(ledger).step == 1


def test_outcome_wait_updates_evidence_and_lease_without_a_transition(
    ledger: RolloutLedger,
) -> None:
    settings = RolloutSettings(min_step_s=60, min_requests=1)
    started = start_rollout(ledger, settings=settings)
    before = traffic_split(ledger)
    assert assess_and_record(ledger).outcome == "wait"
    after = traffic_split(ledger)

    assert current_rollout(ledger).evidence.challenger == HEALTHY
    assert after.expires_at is not None
    assert before.expires_at is not None
    assert after.expires_at - before.expires_at == timedelta(seconds=1)
    assert after.epoch == before.epoch
    assert len(ledger.rollout_transitions(started.id)) == 1


@pytest.mark.parametrize("outcome", ["promote", "start"])
def test_promotion_or_start_cannot_be_recorded_as_a_transition(
    ledger: RolloutLedger, outcome: str
) -> None:
    at = start_rollout(ledger)
    forged = assess(ledger, at).model_copy(update={"outcome": outcome})

    with pytest.raises(GateBlocked, match="cannot be recorded separately"):
        ledger.record_transition(at, forged)


def test_finish_requires_a_rollout_whose_last_step_passed(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    with pytest.raises(UnknownVersion, match="has had no rollout"):
        ledger.finish_rollout(MODEL, actor="s", store=store)
    start_rollout(ledger)
    with pytest.raises(RolloutConflict, match="rolling at step 1 of 2"):
        ledger.finish_rollout(MODEL, actor="s", store=store)
    assert production(ledger) == 1


class Killed(BaseException):
    """Simulates the end of the process at this point."""


def test_wrong_key_of_the_actor_does_not_roll_a_healthy_rollout_back(
    url: str, store: ArtifactStore, tmp_path: Path
) -> None:
    key, public_key = make_personal_key(tmp_path / "controller.key")
    with RolloutLedger.open(url, clock=Clock(), key=key) as ledger:
        promote_chain(ledger, store, 1)
        register_sample(ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate)
        pass_all_steps(ledger)
    write_key_list(tmp_path, ["actors:", f"  {transitions.CONTROLLER}: {public_key}"])

    with RolloutLedger.open(url, clock=Clock(), key=key) as ledger:
        with pytest.raises(GateBlocked, match="'sensor' has no key"):
            ledger.finish_rollout(MODEL, actor="sensor", store=store)
        assert current_rollout(ledger).phase == "awaiting_promotion"
        ledger.finish_rollout(MODEL, actor=transitions.CONTROLLER, store=store)
        assert production(ledger) == 2


def is_killed_at(number: int, work: Callable[[], object]) -> bool:
    """Crash ``work`` at its ``number``-th statement; return whether it was reached."""
    count = 0

    def count_statement(*_: object) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise Killed

    sa.event.listen(sa.Engine, "before_cursor_execute", count_statement)
    try:
        work()
    except Killed:
        return True
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count_statement)
    return False


@ON_BOTH
def test_crash_during_promotion_changes_nothing_and_the_next_call_completes_it(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    """Crash at every seventh statement of the promotion."""
    pass_all_steps(ledger)
    number = 1
    while is_killed_at(number, lambda: ledger.finish_rollout(MODEL, actor="s", store=store)):
        assert (production(ledger), current_rollout(ledger).phase) == (1, "awaiting_promotion")
        number += 7

    assert number > 20
    assert (production(ledger), current_rollout(ledger).phase) == (2, "promoted")
    assert ledger.verify(None, store=store) == []


def test_unloadable_challenger_is_rolled_back_with_the_reason(
    ledger: RolloutLedger, store: ArtifactStore, tmp_path: Path
) -> None:
    pass_all_steps(ledger)
    digest = ledger.version(MODEL, 2).lineage.members[0].weights
    path = artifact_path(tmp_path / "artifacts", digest)
    path.chmod(0o644)
    path.write_bytes(b"damaged")

    done = ledger.finish_rollout(MODEL, actor="s", store=store)

    assert done.outcome == "roll_back"
    assert "the challenger cannot be promoted" in done.reason
    assert production(ledger) == 1


@ON_BOTH
def test_rejection_stored_while_networks_load_ends_the_rollout(
    url: str, ledger: RolloutLedger, tmp_path: Path
) -> None:
    pass_all_steps(ledger)
    lineage = ledger.version(MODEL, 2).lineage
    reference = ledger.version(MODEL, 1).candidate
    later = promotion_receipt(
        lineage.candidate, reference=reference, window="a" * 64, outcome="REJECT"
    )

    def register_rejection() -> None:
        with RolloutLedger.open(url, clock=Clock()) as another:
            another.register(MODEL, lineage, [later])

    store = InterruptedStore(tmp_path / "artifacts", register_rejection)
    done = ledger.finish_rollout(MODEL, actor="s", store=store)

    assert (done.outcome, production(ledger)) == ("roll_back", 1)
    assert (
        "the challenger cannot be promoted: The outcome of the promotion gate is REJECT"
        in done.reason
    )


def test_manual_promotion_of_another_version_ends_the_rollout(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    pass_all_steps(ledger)
    register_sample(ledger, store, salt=3, reference=ledger.version(MODEL, 1).candidate)
    before = traffic_split(ledger)
    ledger.promote(MODEL, 3, expected=1, actor="bob", reason="manually", store=store)

    now = traffic_split(ledger)
    assert (now.challenger, now.share) == (None, 0.0)
    assert now.epoch > before.epoch
    done = ledger.finish_rollout(MODEL, actor="s", store=store)
    assert done.outcome == "roll_back"
    assert "bob promoted version 3" in done.reason
    assert production(ledger) == 3
    assert traffic_split(ledger).epoch > now.epoch


def test_edited_rollout_head_is_rejected(ledger: RolloutLedger) -> None:
    start_rollout(ledger)
    forged = current_rollout(ledger).model_copy(update={"step": 1}).model_dump_json()
    with ledger._database.write() as connection:
        connection.execute(sa.update(rollout_heads).values(state=forged))

    with pytest.raises(IntegrityError, match="does not match its last transition"):
        ledger.traffic_split(MODEL)


def test_rollout_and_its_transitions_are_logged(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    pass_all_steps(ledger)
    with ledger._database.read() as connection:
        query = "SELECT entity FROM sluice_log WHERE entity LIKE 'sluice_rollout%' ORDER BY number"
        logged = connection.execute(sa.text(query)).scalars().all()

    assert logged == ["sluice_rollouts"] + ["sluice_rollout_transitions"] * 3
    assert ledger.verify(None, store=store) == []


@ON_BOTH
def test_servers_share_one_permanent_secret_for_assignment(
    ledger: RolloutLedger, url: str, store: ArtifactStore
) -> None:
    """Restarting a server or adding one does not move users to another arm."""
    promote_chain(ledger, store, 1)
    assert ledger.traffic_split(MODEL).secret == ""  # type: ignore[union-attr]
    with ThreadPoolExecutor(4) as pool:
        first = list(pool.map(lambda _: LedgerTrafficSplit(ledger, MODEL).read().secret, range(4)))
    with RolloutLedger.open(url, clock=Clock()) as restarted:
        later = LedgerTrafficSplit(restarted, MODEL).read()

    assert len(first[0]) == 64
    assert {*first, later.secret} == {first[0]}
    assert first[0] not in repr(later)
    assert ledger.verify(None, store=store) == []
