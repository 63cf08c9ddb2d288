"""Twenty rollouts in a row under load, half of them faulty: a real server, ledger and clients."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.registry.lineage import BASELINE
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.prediction_agreement import PredictionAgreement, measure_agreement
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Transition
from sluice.rollout_control.controller import try_reconcile
from sluice.serving.contract import InputContract
from sluice.serving.deployed import load_deployed
from sluice.serving.settings import ServingSettings
from tests.sluice.registry.ledger_samples import MODEL, register_sample
from tests.support.faulty_server import FaultyServerConfig, running_faulty_server
from tests.support.tagged_clients import Answer, TaggedClients

PER_S = 100.0
FAULTS = (
    "none", "errors", "none", "nan", "latency", "none", "drift", "none", "crash", "leak",
    "none", "none", "hang", "none", "errors", "none", "crash", "none", "none", "leak",
)  # fmt: skip
LOOK_S = 1.0
PATIENCE_S = 150.0
SWAP_S = 2.0
GROWTH_BYTES = 16 * 2**20
"""From the 5th rollout to the 20th: under 1.1 MiB each."""
SALT = 1000
"""Versions differ by a thousandth: so little that a shift of the predictions is seen."""
SETTINGS = RolloutSettings(
    min_step_s=1, min_requests=5, max_step_s=PATIENCE_S, lease_s=60, min_pairs=20
)
SERVING = ServingSettings(
    samples_per_s=20,
    # A busy machine is not the challenger's fault.
    deadline_s=10,
    challenger_deadline_s=2,
    max_challenger_memory_bytes=2**29,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One rollout, and the server after it."""

    number: int
    fault: str
    end: Transition
    seconds: float
    swap_s: float
    """Time from the decision to the last request routed by the older split."""
    handles: int
    threads: int
    resident: int


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'registry.db'}", clock=now) as opened:
        yield opened


def register_all(ledger: RolloutLedger, store: ArtifactStore) -> dict[int, str]:
    """Register all versions, each judged against what will be in production; faults by number."""
    first = register_sample(ledger, store, salt=SALT)
    ledger.promote(MODEL, first, expected=None, actor="ada", reason="first", store=store)
    reference, faults = ledger.version(MODEL, first).candidate, {}
    assert reference != BASELINE
    for place, fault in enumerate(FAULTS, start=1):
        number = register_sample(ledger, store, salt=SALT + place, reference=reference)
        faults[number] = fault
        if fault == "none":
            reference = ledger.version(MODEL, number).candidate
    return faults


def held_out(
    ledger: RolloutLedger, store: ArtifactStore, number: int
) -> tuple[InputContract, PredictionAgreement]:
    """Compare a version, without its fault, with production on windows as clients send them."""
    production = ledger.production(MODEL)
    assert production is not None
    ours, theirs = (
        load_deployed(version, store) for version in (ledger.version(MODEL, number), production)
    )
    shape = (300, theirs.contract.seq_len, len(theirs.contract.columns))
    x_NLD = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    answers = [model.predict(x_NLD, None).mean(axis=0) for model in (theirs, ours)]
    return theirs.contract, measure_agreement(*answers)


def bring(ledger: RolloutLedger, store: ArtifactStore, number: int) -> Transition:
    """Start a rollout and reconcile it each second until it is over."""
    _, agreement = held_out(ledger, store, number)
    started = ledger.start_rollout(
        MODEL, number, SETTINGS, actor="ada", reason="PROMOTE", agreement=agreement
    )
    late = time.monotonic() + PATIENCE_S
    last = started
    while time.monotonic() < late:
        time.sleep(LOOK_S)
        last = try_reconcile(ledger, MODEL, now=now()) or last
        if last.rollout.phase == "awaiting_promotion":
            return ledger.finish_rollout(MODEL, actor="ada", store=store)
        if last.rollout.is_over:
            return last
    raise AssertionError(f"version {number} has not ended after {PATIENCE_S} s: {last.reason}")


def swap_s(answers: list[Answer], end: Transition) -> float:
    """Return how long after the decision the last request was routed by the older split [s].

    When it was sent: one that a challenger held up is answered by its deadline, whatever follows.
    """
    decided = end.at.timestamp()
    new = end.rollout.version if end.outcome == "promote" else end.rollout.production_version
    late = [
        answer.sent_at - decided
        for answer in answers
        if answer.rollout == end.rollout.id or (answer.version, answer.arm) != (new, "production")
    ]
    return max([0.0, *late])


def settled(server: psutil.Process, seen: set[psutil.Process]) -> tuple[int, int, int]:
    """Wait until no challenger is left; handles, threads and resident bytes of the server."""
    late = time.monotonic() + 10
    while children := server.children(recursive=True):
        seen.update(children)
        assert time.monotonic() < late, f"left behind: {children}"
        time.sleep(0.1)
    looks = []
    for _ in range(10):  # reports and reads of the weights come and go
        looks.append((server.num_fds(), server.num_threads(), server.memory_info().rss))
        time.sleep(0.1)
    handles, threads, resident = (min(values) for values in zip(*looks, strict=True))
    return handles, threads, resident


def table(played: list[Played]) -> str:
    lines = ["", "  # fault    ended          s  swap s  fds  threads  RSS MiB  reason"]
    lines += [
        f"{one.number:3d} {one.fault:8s} {one.end.rollout.phase:11s} {one.seconds:4.0f} "
        f"{one.swap_s:7.2f} {one.handles:4d} {one.threads:8d} {one.resident / 2**20:8.1f}  "
        f"{one.end.reason[:90]}"
        for one in played
    ]
    return "\n".join(lines)


@pytest.mark.exhaustive
def test_twenty_rollouts_under_load_end_as_expected_without_leftovers(
    ledger: RolloutLedger, tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    faults = register_all(ledger, store)
    contract, agreement = held_out(ledger, store, 2)
    config = FaultyServerConfig(
        registry_url=f"sqlite:///{tmp_path / 'registry.db'}",
        artifacts=str(tmp_path / "artifacts"),
        model=MODEL,
        serving=SERVING,
        faults={ledger.version(MODEL, number).candidate: f for number, f in faults.items()},
        spread=agreement.spread,
        log=str(tmp_path / "server.log"),
    )
    played: list[Played] = []
    challengers: set[psutil.Process] = set()
    with running_faulty_server(config) as (process, port):
        server = psutil.Process(process.pid)
        with TaggedClients(
            port, columns=contract.columns, seq_len=contract.seq_len, per_s=PER_S
        ) as clients:
            time.sleep(3)
            for place, (number, fault) in enumerate(faults.items(), start=1):
                began, first = time.monotonic(), len(clients.answers)
                end = bring(ledger, store, number)
                challengers.update(server.children(recursive=True))
                took = time.monotonic() - began
                time.sleep(SWAP_S + 1)
                handles, threads, resident = settled(server, challengers)
                one = Played(
                    number=place,
                    fault=fault,
                    end=end,
                    seconds=took,
                    swap_s=swap_s(clients.answers[first:], end),
                    handles=handles,
                    threads=threads,
                    resident=resident,
                )
                played.append(one)
                print(table([one]) if place == 1 else table([one]).splitlines()[-1], flush=True)
                wanted = "promoted" if fault == "none" else "rolled_back"
                assert end.rollout.phase == wanted, end.reason  # else the next one has no receipt
        counts = (clients.sent, len(clients.answers))
    print(f"{counts[0]} requests, p99 {_p99_ms(clients.answers):.1f} ms, {len(challengers)} pids")
    failed = [answer for answer in clients.answers if answer.status != 200]

    assert failed == []
    assert counts[0] - counts[1] <= 8  # those that were waiting for their moment at the end
    assert max(one.swap_s for one in played) <= SWAP_S
    assert len(challengers) >= len(played) / 2  # a bad one may be gone before it is looked for
    assert [one for one in challengers if one.is_running()] == []
    fifth, last = played[4], played[-1]
    assert last.handles <= fifth.handles + 1
    assert last.threads <= fifth.threads
    assert last.resident <= fifth.resident + GROWTH_BYTES


def _p99_ms(answers: list[Answer]) -> float:
    return float(np.quantile([1e3 * (a.answered_at - a.sent_at) for a in answers], 0.99))
