"""ROLL-2: further attacks of a few clients on the evidence of a rollout."""

import asyncio
import ipaddress
import math
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sluice.base.artifacts import ArtifactStore
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.observations import TrafficCounts
from sluice.rollout.prediction_agreement import PredictionAgreement, measure_prediction_drift
from sluice.rollout.samples import RequestFault, Sample, ServerReport, ServerState
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import PredictionDrift, Rollout
from sluice.rollout.state_machine import advance
from sluice.rollout.traffic_split import TrafficSplit
from sluice.rollout_control.controller import _measure_drift as drift_of
from sluice.serving.arm import ArmWorker
from sluice.serving.client_limits import ClientLimits
from sluice.serving.http_errors import HttpError
from sluice.serving.metrics import Metrics
from sluice.serving.router import Router
from sluice.serving.routing_table import RoutingTable
from sluice.serving.sample_buffer import SampleBuffer
from sluice.serving.settings import ServingSettings
from sluice.serving.step_counters import StepCounters
from sluice.serving.sticky import is_chosen
from sluice.workloads.codecs.window_requests import PredictRequest
from tests.sluice.registry.ledger_samples import MODEL, NOW, Clock, promote_chain, register_sample
from tests.sluice.rollout.rollout_samples import PRODUCTION, rollout
from tests.sluice.serving.serving_samples import (
    Says,
    body,
    candidate,
    deployed,
    quick_settings,
)
from tests.support.hostile_traffic import Crowd, rolled_back_after

SHARE = 0.25
ATTACKER = "203.0.113.7"


class Extrapolates(Says):
    """One seed of a model: apart from another one's by so much near the training rows, and far."""

    def __init__(self, *, near: float, far: float) -> None:
        super().__init__(1.0)
        self.near, self.far = near, far

    def forward(self, x: Tensor) -> Tensor:
        apart = torch.where(x[:, -1, :1] < 100, self.near, self.far)
        return super().forward(x) + apart


class TakesLong(Says):
    """Each window takes its time; the same in both arms."""

    window_s = 0.0002

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.window_s * len(x))
        return super().forward(x)


class Stalls(Says):
    """Each batch takes longer than a challenger may."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.2)
        return super().forward(x)


def split(share: float = SHARE) -> TrafficSplit:
    return TrafficSplit(
        epoch=rollout().epoch,
        production=candidate("one"),
        challenger=candidate("two"),
        rollout="r1",
        secret="0f" * 32,
        share=share,
        shadow=share in (0.0, 1.0),
    )


def router_of(
    production: nn.Module,
    challenger: nn.Module,
    *,
    share: float = SHARE,
    recorder: SampleBuffer | None = None,
    **changes: object,
) -> Router:
    settings: ServingSettings = quick_settings(
        **({"challenger_deadline_s": 0.4, "max_challenger_queue": 64, "max_windows": 256} | changes)
    )
    models = [deployed("one", 1, production), deployed("two", 2, challenger)]
    arms = [ArmWorker(m, max_batch_size=settings.max_batch_windows, pause=None) for m in models]
    shadow = ArmWorker(models[1], max_batch_size=settings.max_batch_windows, pause=None)
    table = RoutingTable(
        split=split(share),
        production=arms[0],
        challenger=arms[1],
        shadow=shadow if share == 0 else None,
    )
    return Router(
        table,
        settings=settings,
        clock=lambda: datetime.now(UTC),
        metrics=Metrics(),
        buffer=recorder or SampleBuffer(per_s=0),
    )


async def ask(
    router: Router, user: str | None, address: str, *values: float, deadline_s: float = 1.0
) -> str:
    request = PredictRequest.model_validate(body(*values, user=user))
    try:
        routed = await router.route(
            request, address=address, deadline=time.monotonic() + deadline_s
        )
    except HttpError as refusal:
        return refusal.kind
    return routed.arm


def users_on(arm: str, count: int, *, of: str = "hostile") -> list[str]:
    """Users that reach an arm; a client learns it from answers."""
    w = split()
    named = (f"{of} {number}" for number in range(100_000))
    wanted = arm == "challenger"
    found = (u for u in named if is_chosen(u, salt=w.salt, share=w.share) == wanted)
    return [next(found) for _ in range(count)]


async def settled(router: Router) -> None:
    """Wait for the copies that the challenger answers."""
    while router.background.tasks:
        await asyncio.gather(*tuple(router.background.tasks))
        # Since Python 3.12, gathering what is done returns before the router can forget it.
        await asyncio.sleep(0)


def run(story: Callable[[], Awaitable[Router]]) -> TrafficCounts:
    async def whole() -> TrafficCounts:
        router = await story()
        await settled(router)
        seen = router.traffic_counts()
        assert seen is not None
        return seen

    return asyncio.run(whole())


def looked(seen: TrafficCounts, *, drift: PredictionDrift | None = None) -> Rollout:
    at = rollout()
    seen = seen.model_copy(update={"since": at.step_since, "until": at.checked_at})
    return advance(at, seen, now=at.checked_at, production=PRODUCTION, drift=drift).rollout


def honest_address(number: int) -> str:
    return f"10.{number // 250}.{number % 250}.9"


# 1. Predictions: invented users, each with one request far from the training rows.


def drift_beside(hostile: int, *, honest: int, near: float, far: float) -> PredictionDrift:
    recorder = SampleBuffer(per_s=1000.0)
    kept: list[Sample] = []

    async def story() -> Router:
        router = router_of(
            Extrapolates(near=0.0, far=0.0), Extrapolates(near=near, far=far), recorder=recorder
        )
        for n in range(max(hostile, honest)):
            if n < hostile:
                await ask(router, f"invented {n}", ATTACKER, 900.0)
            if n < honest:
                await ask(router, f"honest {n}", honest_address(n), 1.0)
            if n % 4 == 0:
                await asyncio.sleep(0.001)
            await settled(router)
        return router

    run(story)
    kept.extend(recorder.take())
    agreement = PredictionAgreement(difference=0.05, spread=1.0, rows=1000)
    return measure_prediction_drift(kept, agreement, limit=4.0, min_pairs=100)


@pytest.mark.slow
def test_invented_users_far_from_the_training_rows_cannot_cause_drift() -> None:
    """Any two models extrapolate apart; new names cost one client nothing."""
    found = drift_beside(150, honest=150, near=0.04, far=1e6)

    assert found.rows >= 100
    assert found.distance <= found.limit


@pytest.mark.slow
def test_invented_users_with_equal_predictions_cannot_hide_drift() -> None:
    found = drift_beside(270, honest=30, near=0.5, far=0.0)

    assert found.distance > found.limit


# 2. Addresses: whoever has one has a /64 of IPv6, and often a /24 of IPv4.


@pytest.mark.parametrize("network", ["2001:db8:7::/64", "198.51.100.0/24"])
def test_all_addresses_of_one_network_count_as_one(network: str) -> None:
    clients = ClientLimits()
    for n in range(1000):
        clients.record_request("production", f"user {n}", address=honest_address(n), now=0.0)
    first, counted = int(ipaddress.ip_network(network)[0]), 0
    for n in range(250):
        address = str(ipaddress.ip_address(first + n))
        client = f"user invented {n}"
        clients.record_request("challenger", client, address=address, now=0.0)
        counted += clients.count_fault(
            "challenger", "errors", client, address=address, share=0.05, now=0.0
        )

    assert 1 <= counted <= 10, "a fifth of the requests, and of 40 faults"


# 3. What counts as slow is measured before the step: a flood of heavy requests raises it.


@pytest.mark.parametrize("named", ["one user", "invented users"])
def test_heavy_requests_before_a_step_do_not_hide_a_slow_challenger(named: str) -> None:
    now = datetime.now(UTC)
    before = split().without_challenger()
    steps = StepCounters(before, now=now)
    for n in range(2000):  # 400 clients of 100 networks, and as many requests of the attacker
        for user, address, seconds in (
            (f"user {n % 400}", honest_address(n % 100), 0.010),
            (f"user h{n if named == 'invented users' else 0}", ATTACKER, 0.200),
        ):
            is_admitted = steps.admit_request(
                "production", split=before, client=user, address=address, now=0.0
            )
            steps.count(
                "production",
                split=before,
                seconds=seconds,
                fault=None,
                address=address,
                is_in_p95=is_admitted,
            )
    steps.set_split(split(), now=now)

    assert "slower" in steps.guard_faults(seconds=0.100, fault=None), "ten times as long"


# 4. Load: one client fills the challenger's queue, and everybody else's requests are late there.


@pytest.mark.slow
@pytest.mark.parametrize("named", ["one user", "invented users"])
@pytest.mark.parametrize(("deadline_s", "workers"), [(0.5, 4), (0.1, 3)], ids=["slow", "late"])
def test_a_client_that_fills_the_queue_does_not_make_an_equal_challenger_late(
    named: str, deadline_s: float, workers: int
) -> None:
    async def story() -> Router:
        router = router_of(
            TakesLong(1.0),
            TakesLong(1.0),
            challenger_deadline_s=deadline_s,
            max_challenger_queue=16,
            shadow_deadline_s=9.0,
        )
        hostile, honest = users_on("challenger", 20), users_on("challenger", 40, of="honest")
        for n, user in enumerate(users_on("production", 120, of="honest")):
            await ask(router, user, honest_address(n), 1.0)
        is_over = asyncio.Event()

        async def flood(worker: int) -> None:
            user = hostile[worker if named == "invented users" else 0]
            while not is_over.is_set():
                await ask(router, user, ATTACKER, *[1.0] * 200)

        floods = [asyncio.create_task(flood(worker)) for worker in range(workers)]
        for n in range(0, len(honest), 10):
            await asyncio.sleep(0.1)
            await asyncio.gather(
                *(
                    ask(router, user, honest_address(300 + n + m), 1.0)
                    for m, user in enumerate(honest[n : n + 10])
                )
            )
        is_over.set()
        await asyncio.gather(*floods)
        return router

    seen = run(story)
    end = looked(seen)

    assert end.phase == "rolling", seen.evidence_counts


@pytest.mark.slow
def test_a_hanging_challenger_is_detected_beside_a_client_that_fills_its_queue() -> None:
    async def story() -> Router:
        router = router_of(
            Says(1.0), Stalls(1.0), challenger_deadline_s=0.05, max_challenger_queue=16
        )
        hostile, honest = users_on("challenger", 4), users_on("challenger", 40, of="honest")
        for n, user in enumerate(users_on("production", 120, of="honest")):
            await ask(router, user, honest_address(n), 1.0)
        for n, user in enumerate(honest):
            await asyncio.gather(
                ask(router, user, honest_address(300 + n), 1.0),
                ask(router, hostile[n % 4], ATTACKER, 1.0),
            )
        return router

    seen = run(story)

    assert looked(seen).phase == "rolled_back", seen.evidence_counts


# 5. Room for samples: failures are kept more often than answers, and pushed these out.


def test_failed_requests_do_not_displace_pairs(tmp_path: Path) -> None:
    """Ten failures a second are kept, and of little traffic one pair in two seconds."""

    def sample(number: int, fault: RequestFault | None) -> Sample:
        answer = ((0.0,),) if fault is None else None
        return Sample(
            at=NOW,
            rollout=started.id,
            epoch=2,
            key='"fault":null',
            client=f"{number}",
            arm="production",
            fault=fault,
            seconds=0.01,
            features=(0.0,),
            production=answer,
            challenger=((40.0,),) if fault is None else None,
        )

    state = ServerState(server="a", model=MODEL, at=NOW, started_at=NOW, epoch=2, production=1)
    with RolloutLedger.open(f"sqlite:///{tmp_path}/registry.db", clock=Clock()) as ledger:
        store = ArtifactStore(tmp_path / "artifacts")
        promote_chain(ledger, store, 1)
        register_sample(ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate)
        agreement = PredictionAgreement(difference=0.5, spread=1.0, rows=10)
        started = ledger.start_rollout(
            MODEL, 2, RolloutSettings(), actor="ada", reason="PROMOTE", agreement=agreement
        ).rollout
        for pairs in range(0, 150, 15):
            kept = [sample(n, None) for n in range(pairs, pairs + 15)]
            kept += [sample(n, "not_finite") for n in range(300)]
            ledger.observations.write(ServerReport(state=state, samples=tuple(kept)))
        found = drift_of(ledger, started)

    assert found is not None
    assert found.rows == 150
    assert found.distance > found.limit


@pytest.mark.slow
def test_a_simulated_network_that_invents_users_does_not_end_a_healthy_rollout() -> None:
    """It sends as many requests as 10,000 honest clients, on which the arms are far apart."""
    crowd = Crowd(attack="odd samples", invents=True, requests_per_s=50.0, hostile_per_s=50.0)
    ended = [rolled_back_after(crowd, seconds=70, seed=seed, compares=True) for seed in range(2)]

    assert ended == [math.inf] * 2
