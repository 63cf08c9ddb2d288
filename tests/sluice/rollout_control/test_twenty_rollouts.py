"""Twenty consecutive rollouts under load, ten of them faulty; server and clients are real."""

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
from tests.support.tagged_clients import RequestResult, TaggedClients

PER_S = 100.0
FAULTS = (
    "none", "errors", "none", "nan", "latency", "none", "drift", "none", "crash", "leak",
    "none", "none", "hang", "none", "errors", "none", "crash", "none", "none", "leak",
)  # fmt: skip
CHECK_INTERVAL_S = 1.0
MAX_ROLLOUT_S = 150.0
MAX_SWAP_S = 2.0
MAX_GROWTH_BYTES = 16 * 2**20
"""Maximum growth of resident memory from the 5th to the 20th rollout, 1.1 MiB per rollout."""
SALT = 1000
"""Weights of consecutive versions differ by 0.1 %, so that a drift fault is detectable."""
SETTINGS = RolloutSettings(
    min_step_s=1, min_requests=5, max_step_s=MAX_ROLLOUT_S, lease_s=60, min_pairs=20
)
SERVING = ServingSettings(
    samples_per_s=20,
    # Generous, so that a busy machine does not cause faults of the challenger.
    deadline_s=10,
    challenger_deadline_s=2,
    max_challenger_memory_bytes=2**29,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRollout:
    """Result of one rollout, and resources of the server after it."""

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
    """Register all versions with verdicts against their production; return faults by number."""
    first = register_sample(ledger, store, salt=SALT)
    ledger.promote(MODEL, first, expected=None, actor="ada", reason="first", store=store)
    reference, faults = ledger.version(MODEL, first).candidate, {}
    assert reference != BASELINE
    for position, fault in enumerate(FAULTS, start=1):
        number = register_sample(ledger, store, salt=SALT + position, reference=reference)
        faults[number] = fault
        if fault == "none":
            reference = ledger.version(MODEL, number).candidate
    return faults


def measure_held_out_agreement(
    ledger: RolloutLedger, store: ArtifactStore, number: int
) -> tuple[InputContract, PredictionAgreement]:
    """Measure the agreement of a version without its fault with production on random windows."""
    production = ledger.production(MODEL)
    assert production is not None
    challenger, production = (
        load_deployed(version, store) for version in (ledger.version(MODEL, number), production)
    )
    shape = (300, production.contract.seq_len, len(production.contract.columns))
    x_NLD = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    predictions = [model.predict(x_NLD, None).mean(axis=0) for model in (production, challenger)]
    return production.contract, measure_agreement(*predictions)


def run_rollout(ledger: RolloutLedger, store: ArtifactStore, number: int) -> Transition:
    """Start a rollout and reconcile it each second until it is over."""
    _, agreement = measure_held_out_agreement(ledger, store, number)
    started = ledger.start_rollout(
        MODEL, number, SETTINGS, actor="ada", reason="PROMOTE", agreement=agreement
    )
    deadline = time.monotonic() + MAX_ROLLOUT_S
    last = started
    while time.monotonic() < deadline:
        time.sleep(CHECK_INTERVAL_S)
        last = try_reconcile(ledger, MODEL, now=now()) or last
        if last.rollout.phase == "awaiting_promotion":
            return ledger.finish_rollout(MODEL, actor="ada", store=store)
        if last.rollout.is_over:
            return last
    raise AssertionError(f"version {number} has not ended after {MAX_ROLLOUT_S} s: {last.reason}")


def measure_swap_s(answers: list[RequestResult], end: Transition) -> float:
    """Return the time from the decision to the last request routed by the older split [s].

    The send time counts, because a challenger may delay a response until its deadline.
    """
    decided_at = end.at.timestamp()
    new = end.rollout.version if end.outcome == "promote" else end.rollout.production_version
    delays_s = [
        answer.sent_at - decided_at
        for answer in answers
        if answer.rollout == end.rollout.id or (answer.version, answer.arm) != (new, "production")
    ]
    return max([0.0, *delays_s])


def measure_server(
    server: psutil.Process, processes_seen: set[psutil.Process]
) -> tuple[int, int, int]:
    """Wait until no challenger runs; return handles, threads and resident bytes of the server."""
    deadline = time.monotonic() + 10
    while children := server.children(recursive=True):
        processes_seen.update(children)
        assert time.monotonic() < deadline, f"left behind: {children}"
        time.sleep(0.1)
    measurements = []
    for _ in range(10):  # reports and reads of the split cause short-lived resources
        measurements.append((server.num_fds(), server.num_threads(), server.memory_info().rss))
        time.sleep(0.1)
    handles, threads, resident = (min(values) for values in zip(*measurements, strict=True))
    return handles, threads, resident


def format_table(completed: list[CompletedRollout]) -> str:
    lines = ["", "  # fault    ended          s  swap s  fds  threads  RSS MiB  reason"]
    lines += [
        f"{row.number:3d} {row.fault:8s} {row.end.rollout.phase:11s} {row.seconds:4.0f} "
        f"{row.swap_s:7.2f} {row.handles:4d} {row.threads:8d} {row.resident / 2**20:8.1f}  "
        f"{row.end.reason[:90]}"
        for row in completed
    ]
    return "\n".join(lines)


@pytest.mark.exhaustive
def test_twenty_rollouts_under_load_end_as_expected_without_leftovers(
    ledger: RolloutLedger, tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    faults = register_all(ledger, store)
    contract, agreement = measure_held_out_agreement(ledger, store, 2)
    config = FaultyServerConfig(
        registry_url=f"sqlite:///{tmp_path / 'registry.db'}",
        artifacts=str(tmp_path / "artifacts"),
        model=MODEL,
        serving=SERVING,
        faults={ledger.version(MODEL, number).candidate: f for number, f in faults.items()},
        spread=agreement.spread,
        log=str(tmp_path / "server.log"),
    )
    completed: list[CompletedRollout] = []
    challengers: set[psutil.Process] = set()
    with running_faulty_server(config) as (process, port):
        server = psutil.Process(process.pid)
        with TaggedClients(
            port, columns=contract.columns, seq_len=contract.seq_len, per_s=PER_S
        ) as clients:
            time.sleep(3)
            for position, (number, fault) in enumerate(faults.items(), start=1):
                start_time, first = time.monotonic(), len(clients.results)
                end = run_rollout(ledger, store, number)
                challengers.update(server.children(recursive=True))
                elapsed_s = time.monotonic() - start_time
                time.sleep(MAX_SWAP_S + 1)
                handles, threads, resident = measure_server(server, challengers)
                result = CompletedRollout(
                    number=position,
                    fault=fault,
                    end=end,
                    seconds=elapsed_s,
                    swap_s=measure_swap_s(clients.results[first:], end),
                    handles=handles,
                    threads=threads,
                    resident=resident,
                )
                completed.append(result)
                table = format_table([result])
                print(table if position == 1 else table.splitlines()[-1], flush=True)
                expected_phase = "promoted" if fault == "none" else "rolled_back"
                # With another phase, the receipts of the next version would be invalid.
                assert end.rollout.phase == expected_phase, end.reason
        counts = (clients.num_sent, len(clients.results))
    print(f"{counts[0]} requests, p99 {_p99_ms(clients.results):.1f} ms, {len(challengers)} pids")
    failed = [answer for answer in clients.results if answer.status != 200]

    assert failed == []
    assert counts[0] - counts[1] <= 8  # requests not yet sent at the end
    assert max(result.swap_s for result in completed) <= MAX_SWAP_S
    assert len(challengers) >= len(completed) / 2  # a faulty one may end before it is recorded
    assert [process for process in challengers if process.is_running()] == []
    fifth, last = completed[4], completed[-1]
    assert last.handles <= fifth.handles + 1
    assert last.threads <= fifth.threads
    assert last.resident <= fifth.resident + MAX_GROWTH_BYTES


def _p99_ms(answers: list[RequestResult]) -> float:
    return float(np.quantile([1e3 * (a.ended_at - a.sent_at) for a in answers], 0.99))
