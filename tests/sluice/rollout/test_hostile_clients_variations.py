"""Attacks of a few clients on the evidence of a rollout (ROLL-2)."""

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
from sluice.rollout_control.controller import _measure_drift
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
from tests.sluice.rollout.rollout_samples import PRODUCTION, make_rollout
from tests.sluice.serving.serving_samples import (
    LinearNetwork,
    body,
    candidate,
    deployed,
    quick_settings,
)
from tests.support.hostile_traffic import SimulatedClients, time_to_rollback

SHARE = 0.25
ATTACKER = "203.0.113.7"


class ExtrapolatingModel(LinearNetwork):
    """Model that differs by ``near`` near the training rows (x < 100), and by ``far`` elsewhere."""

    def __init__(self, *, near: float, far: float) -> None:
        super().__init__(1.0)
        self.near, self.far = near, far

    def forward(self, x: Tensor) -> Tensor:
        offset = torch.where(x[:, -1, :1] < 100, self.near, self.far)
        return super().forward(x) + offset


class SlowPerWindow(LinearNetwork):
    """Model whose latency is proportional to the number of windows."""

    window_s = 0.0002

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.window_s * len(x))
        return super().forward(x)


class StallingModel(LinearNetwork):
    """Model that exceeds the deadline of the challenger for each batch."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.2)
        return super().forward(x)


def make_split(share: float = SHARE) -> TrafficSplit:
    return TrafficSplit(
        epoch=make_rollout().epoch,
        production=candidate("one"),
        challenger=candidate("two"),
        rollout="r1",
        secret="0f" * 32,
        share=share,
        shadow=share in (0.0, 1.0),
    )


def make_router(
    production: nn.Module,
    challenger: nn.Module,
    *,
    share: float = SHARE,
    sample_buffer: SampleBuffer | None = None,
    **changes: object,
) -> Router:
    settings: ServingSettings = quick_settings(
        **({"challenger_deadline_s": 0.4, "max_challenger_queue": 64, "max_windows": 256} | changes)
    )
    models = [deployed("one", 1, production), deployed("two", 2, challenger)]
    arms = [ArmWorker(m, max_batch_size=settings.max_batch_windows, pause=None) for m in models]
    shadow = ArmWorker(models[1], max_batch_size=settings.max_batch_windows, pause=None)
    table = RoutingTable(
        split=make_split(share),
        production=arms[0],
        challenger=arms[1],
        shadow=shadow if share == 0 else None,
    )
    return Router(
        table,
        settings=settings,
        clock=lambda: datetime.now(UTC),
        metrics=Metrics(),
        buffer=sample_buffer or SampleBuffer(per_s=0),
    )


async def send_request(
    router: Router, user: str | None, address: str, *values: float, deadline_s: float = 1.0
) -> str:
    request = PredictRequest.model_validate(body(*values, user=user))
    try:
        routed = await router.route(
            request, address=address, deadline=time.monotonic() + deadline_s
        )
    except HttpError as error:
        return error.kind
    return routed.arm


def users_of_arm(arm: str, count: int, *, of: str = "hostile") -> list[str]:
    """Return users that are assigned to an arm; a client can infer this from responses."""
    traffic_split = make_split()
    users = (f"{of} {number}" for number in range(100_000))
    wants_challenger = arm == "challenger"
    matching_users = (
        u
        for u in users
        if is_chosen(u, salt=traffic_split.salt, share=traffic_split.share) == wants_challenger
    )
    return [next(matching_users) for _ in range(count)]


async def wait_for_background_tasks(router: Router) -> None:
    """Wait until the challenger has answered all shadow requests."""
    while router.background.tasks:
        await asyncio.gather(*tuple(router.background.tasks))
        # Since Python 3.12, gather of finished tasks returns before the router removes them.
        await asyncio.sleep(0)


def run_scenario(scenario: Callable[[], Awaitable[Router]]) -> TrafficCounts:
    async def run_and_count() -> TrafficCounts:
        router = await scenario()
        await wait_for_background_tasks(router)
        counts = router.traffic_counts()
        assert counts is not None
        return counts

    return asyncio.run(run_and_count())


def assess(counts: TrafficCounts, *, drift: PredictionDrift | None = None) -> Rollout:
    at = make_rollout()
    counts = counts.model_copy(update={"since": at.step_since, "until": at.checked_at})
    return advance(at, counts, now=at.checked_at, production=PRODUCTION, drift=drift).rollout


def honest_address(number: int) -> str:
    return f"10.{number // 250}.{number % 250}.9"


# 1. Predictions: invented users, each with one request far from the training rows.


def measure_drift_with_attacker(
    hostile: int, *, honest: int, near: float, far: float
) -> PredictionDrift:
    sample_buffer = SampleBuffer(per_s=1000.0)
    samples: list[Sample] = []

    async def scenario() -> Router:
        router = make_router(
            ExtrapolatingModel(near=0.0, far=0.0),
            ExtrapolatingModel(near=near, far=far),
            sample_buffer=sample_buffer,
        )
        for n in range(max(hostile, honest)):
            if n < hostile:
                await send_request(router, f"invented {n}", ATTACKER, 900.0)
            if n < honest:
                await send_request(router, f"honest {n}", honest_address(n), 1.0)
            if n % 4 == 0:
                await asyncio.sleep(0.001)
            await wait_for_background_tasks(router)
        return router

    run_scenario(scenario)
    samples.extend(sample_buffer.take())
    agreement = PredictionAgreement(difference=0.05, spread=1.0, rows=1000)
    return measure_prediction_drift(samples, agreement, limit=4.0, min_pairs=100)


@pytest.mark.slow
def test_invented_users_far_from_the_training_rows_cannot_cause_drift() -> None:
    """Two models differ far from the training rows, and one client can invent many users."""
    drift = measure_drift_with_attacker(150, honest=150, near=0.04, far=1e6)

    assert drift.rows >= 100
    assert drift.distance <= drift.limit


@pytest.mark.slow
def test_invented_users_with_equal_predictions_cannot_hide_drift() -> None:
    drift = measure_drift_with_attacker(270, honest=30, near=0.5, far=0.0)

    assert drift.distance > drift.limit


# 2. Addresses: an attacker usually has a /64 of IPv6, and often a /24 of IPv4.


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

    assert 1 <= counted <= 10, "at most a fifth of the requests and of 40 faults"


# 3. Latency: the slow limit is measured before the step, and heavy requests raise it.


@pytest.mark.parametrize("user_naming", ["one user", "invented users"])
def test_heavy_requests_before_a_step_do_not_hide_a_slow_challenger(user_naming: str) -> None:
    now = datetime.now(UTC)
    production_split = make_split().without_challenger()
    steps = StepCounters(production_split, now=now)
    for n in range(2000):  # 400 clients in 100 networks, and as many requests of the attacker
        for user, address, seconds in (
            (f"user {n % 400}", honest_address(n % 100), 0.010),
            (f"user h{n if user_naming == 'invented users' else 0}", ATTACKER, 0.200),
        ):
            is_admitted = steps.admit_request(
                "production", split=production_split, client=user, address=address, now=0.0
            )
            steps.count(
                "production",
                split=production_split,
                seconds=seconds,
                fault=None,
                address=address,
                is_in_p95=is_admitted,
            )
    steps.set_split(make_split(), now=now)

    assert "slower" in steps.guard_faults(seconds=0.100, fault=None), "ten times as long"


# 4. Load: one client fills the challenger's queue, so requests of other clients are late.


@pytest.mark.slow
@pytest.mark.parametrize("user_naming", ["one user", "invented users"])
@pytest.mark.parametrize(("deadline_s", "workers"), [(0.5, 4), (0.1, 3)], ids=["slow", "late"])
def test_client_that_fills_the_queue_does_not_roll_back_an_equal_challenger(
    user_naming: str, deadline_s: float, workers: int
) -> None:
    async def scenario() -> Router:
        router = make_router(
            SlowPerWindow(1.0),
            SlowPerWindow(1.0),
            challenger_deadline_s=deadline_s,
            max_challenger_queue=16,
            shadow_deadline_s=9.0,
        )
        hostile, honest = (
            users_of_arm("challenger", 20),
            users_of_arm("challenger", 40, of="honest"),
        )
        for n, user in enumerate(users_of_arm("production", 120, of="honest")):
            await send_request(router, user, honest_address(n), 1.0)
        has_ended = asyncio.Event()

        async def send_heavy_requests(worker: int) -> None:
            user = hostile[worker if user_naming == "invented users" else 0]
            while not has_ended.is_set():
                await send_request(router, user, ATTACKER, *[1.0] * 200)

        flood_tasks = [
            asyncio.create_task(send_heavy_requests(worker)) for worker in range(workers)
        ]
        for n in range(0, len(honest), 10):
            await asyncio.sleep(0.1)
            await asyncio.gather(
                *(
                    send_request(router, user, honest_address(300 + n + m), 1.0)
                    for m, user in enumerate(honest[n : n + 10])
                )
            )
        has_ended.set()
        await asyncio.gather(*flood_tasks)
        return router

    counts = run_scenario(scenario)
    end = assess(counts)

    assert end.phase == "rolling", counts.evidence_counts


@pytest.mark.slow
def test_hanging_challenger_is_rolled_back_while_a_client_fills_its_queue() -> None:
    async def scenario() -> Router:
        router = make_router(
            LinearNetwork(1.0),
            StallingModel(1.0),
            challenger_deadline_s=0.05,
            max_challenger_queue=16,
        )
        hostile, honest = users_of_arm("challenger", 4), users_of_arm("challenger", 40, of="honest")
        for n, user in enumerate(users_of_arm("production", 120, of="honest")):
            await send_request(router, user, honest_address(n), 1.0)
        for n, user in enumerate(honest):
            await asyncio.gather(
                send_request(router, user, honest_address(300 + n), 1.0),
                send_request(router, hostile[n % 4], ATTACKER, 1.0),
            )
        return router

    counts = run_scenario(scenario)

    assert assess(counts).phase == "rolled_back", counts.evidence_counts


# 5. Sample storage: failed requests are kept more often than pairs and could displace them.


def test_failed_requests_do_not_displace_pairs(tmp_path: Path) -> None:
    """Servers report 300 failures per 15 pairs."""

    def sample(number: int, fault: RequestFault | None) -> Sample:
        prediction = ((0.0,),) if fault is None else None
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
            production=prediction,
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
            samples = [sample(n, None) for n in range(pairs, pairs + 15)]
            samples += [sample(n, "not_finite") for n in range(300)]
            ledger.observations.write(ServerReport(state=state, samples=tuple(samples)))
        drift = _measure_drift(ledger, started)

    assert drift is not None
    assert drift.rows == 150
    assert drift.distance > drift.limit


@pytest.mark.slow
def test_simulated_attacker_who_invents_users_does_not_end_a_healthy_rollout() -> None:
    """The attacker sends as many requests as 10,000 honest clients, with large differences."""
    clients = SimulatedClients(
        attack="odd samples", invents_users=True, requests_per_s=50.0, hostile_requests_per_s=50.0
    )
    rollback_times = [
        time_to_rollback(clients, seconds=70, seed=seed, compares_arms=True) for seed in range(2)
    ]

    assert rollback_times == [math.inf] * 2
