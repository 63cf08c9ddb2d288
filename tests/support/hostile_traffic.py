"""Simulated requests of many honest clients and a few hostile ones, counted as in a server.

``StepCounters`` counts and ``advance`` decides, as in production. Requests, their results and the
time are simulated.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import numpy as np

from sluice.bench.rollout.simulation import new_rollout
from sluice.bench.rollout.traffic import START
from sluice.registry.client_secret import client_of
from sluice.rollout.prediction_agreement import PredictionAgreement, measure_prediction_drift
from sluice.rollout.samples import ArmName, RequestFault, Sample
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state_machine import advance
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.sample_buffer import SampleBuffer
from sluice.serving.step_counters import StepCounters

Attack = Literal["none", "shared errors", "slow requests", "good requests", "odd samples"]

_SETTINGS = RolloutSettings(min_step_s=7200, max_step_s=9000)
POLL_INTERVAL_S = 2.0
_SHARE = 0.05
_SPREAD = 0.3
_MEDIAN_S = 0.01
_HEAVY = 20.0
_AGREEMENT = PredictionAgreement(difference=1.0, spread=10.0, rows=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedClients:
    """Clients and their request rates, faults of the challenger, and the attack."""

    attack: Attack = "none"
    on: ArmName = "challenger"
    """Arm of all hostile clients."""

    gateway: bool = False
    """Whether all requests come from one address."""

    invents: bool = False
    """Whether all hostile requests come from one network, each with a new user."""

    clients: int = 10_000
    hostile: int = 100
    requests_per_s: float = 100.0
    hostile_per_s: float = 100.0
    error_rate: float = 0.01
    error_factor: float = 1.0
    """Error rate of the challenger divided by that of production."""

    disagreement: float = 1.0
    """Difference of the arms' predictions for honest requests, in held-out units."""


def time_to_rollback(
    crowd: SimulatedClients, *, seconds: float, seed: int, compares: bool
) -> float:
    """Return the time until a rollout at 5 % of the clients is rolled back [s]; infinity for never.

    Args:
        crowd: The clients.
        seconds: Simulated time.
        seed: Seed of all random draws.
        compares: Whether faults of only one arm are the evidence; if not, the plain counts are.
    """
    rng = np.random.default_rng(seed)
    rollout = new_rollout(_SETTINGS, now=START)
    split = TrafficSplit(
        epoch=rollout.epoch,
        production=rollout.production,
        challenger=rollout.candidate,
        rollout=rollout.id,
        share=_SHARE,
    )
    steps = StepCounters(split.without_challenger(), now=START)
    for spent_s in _MEDIAN_S * rng.lognormal(sigma=_SPREAD, size=500):
        steps.count("production", split=split, seconds=float(spent_s), fault=None)
    for number in range(crowd.clients):  # their requests before the step began
        name = client_of(f"{number}", "")
        address = "gateway" if crowd.gateway else name
        steps.clients.record_request("production", name, address=address, now=0.0)
    steps.set_split(split, now=START)
    buffer, samples = SampleBuffer(per_s=2.0), list[Sample]()
    for poll in range(1, int(seconds / POLL_INTERVAL_S) + 1):
        now_s = poll * POLL_INTERVAL_S
        _simulate_requests(
            crowd, steps, split, buffer, samples, rng=rng, now_s=now_s, compares=compares
        )
        at = START + timedelta(seconds=now_s)
        window = steps.traffic_counts(at)
        assert window is not None
        drift = measure_prediction_drift(samples, _AGREEMENT, limit=4.0, min_pairs=100)
        rollout = advance(
            rollout,
            window if compares else window.model_copy(update={"evidence_counts": None}),
            now=at,
            production=rollout.production,
            drift=drift,
        ).rollout
        if rollout.phase == "rolled_back":
            return now_s
    return float("inf")


def _simulate_requests(
    crowd: SimulatedClients,
    steps: StepCounters,
    split: TrafficSplit,
    buffer: SampleBuffer,
    samples: list[Sample],
    *,
    rng: np.random.Generator,
    now_s: float,
    compares: bool,
) -> None:
    """Simulate the requests of one polling interval."""
    honest = rng.poisson(crowd.requests_per_s * POLL_INTERVAL_S)
    active = crowd.attack != "none"
    hostile = rng.poisson(crowd.hostile_per_s * POLL_INTERVAL_S) if active else 0
    total = honest + hostile
    order_N = rng.permutation(total)
    is_hostile_N = np.arange(total) >= honest
    user_N = np.where(
        is_hostile_N,
        rng.integers(crowd.hostile, size=total),
        rng.integers(crowd.clients, size=total),
    )
    on_challenger_N = np.where(
        is_hostile_N, crowd.on == "challenger", user_N < _SHARE * crowd.clients
    )  # the first users are the challenger's
    # Results of both arms for each request. The other arm is called to compare faults.
    spent_2N = _MEDIAN_S * rng.lognormal(sigma=_SPREAD, size=(2, total))
    rate_2 = crowd.error_rate * np.array([1.0, crowd.error_factor])
    fails_2N = rng.random((2, total)) < rate_2[:, None]
    if crowd.attack == "shared errors":
        fails_2N |= is_hostile_N
    elif crowd.attack == "slow requests":
        spent_2N[:, is_hostile_N] *= _HEAVY
    elif crowd.attack == "good requests":
        fails_2N[:, is_hostile_N] = False
    for at, n in enumerate(order_N.tolist()):
        at_s = now_s + POLL_INTERVAL_S * (at / total - 1)
        name = client_of(f"{'hostile ' if is_hostile_N[n] else ''}{user_N[n]}", "")
        address = "gateway" if crowd.gateway else name
        if crowd.invents and is_hostile_N[n]:
            name, address = client_of(f"invented {at_s}", ""), "203.0.113.7"
        arm: ArmName = "challenger" if on_challenger_N[n] else "production"
        arm_index = int(on_challenger_N[n])
        results = [
            _result_of(steps, spent_2N[a, n], bool(fails_2N[a, n]))
            for a in (arm_index, 1 - arm_index)
        ]
        steps.count(arm, split=split, seconds=float(spent_2N[arm_index, n]), fault=results[0][0])
        is_compared = steps.admit_request(arm, split=split, client=name, address=address, now=at_s)
        if is_compared and results[0][1]:
            steps.add_fault_evidence(
                arm,
                results[0][1],
                results[1][1],
                split=split,
                client=name,
                address=address,
                now=at_s,
            )
        may = not compares or steps.clients.may_sample(name, per_s=2.0, now=at_s)
        if may and results[0][0] is None and buffer.should_sample(at_s):
            steps.clients.record_sample(name)
            is_odd = crowd.attack == "odd samples" and is_hostile_N[n]
            difference = 1e6 if is_odd else crowd.disagreement
            samples.append(
                _sample(difference, client=name, origin=address)
                if compares
                else _sample(difference)
            )


def _result_of(
    steps: StepCounters, spent_s: float, fails: bool
) -> tuple[RequestFault | None, frozenset[str]]:
    fault: RequestFault | None = "errors" if fails else None
    return fault, steps.guard_faults(seconds=float(spent_s), fault=fault)


def _sample(difference: float, *, client: str | None = None, origin: str | None = None) -> Sample:
    return Sample(
        at=START,
        rollout="simulated",
        epoch=2,
        client=client,
        origin=origin,
        arm="challenger",
        seconds=_MEDIAN_S,
        features=(0.0,),
        production=((0.0,),),
        challenger=((difference,),),
    )
