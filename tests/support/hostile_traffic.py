"""Simulated requests of many honest and a few hostile clients in a rollout.

``StepCounters`` counts the requests, and ``advance`` decides about the rollout, as in production.
Only the requests, the results and the time are simulated.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import numpy as np

from sluice.bench.rollout.simulation import new_rollout
from sluice.bench.rollout.traffic import START
from sluice.registry.client_names import client_of
from sluice.rollout.prediction_agreement import PredictionAgreement, measure_prediction_drift
from sluice.rollout.samples import ArmName, RequestFault, Sample
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state_machine import advance
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.sample_buffer import SampleBuffer
from sluice.serving.step_counters import StepCounters

Attack = Literal["none", "shared errors", "slow requests", "good requests", "odd samples"]
"""What hostile clients send: requests that fail on both arms, that are slow on both arms, or that
never fail; or requests with outlying predictions of the challenger."""

_SETTINGS = RolloutSettings(min_step_s=7200, max_step_s=9000)
POLL_INTERVAL_S = 2.0
_CHALLENGER_SHARE = 0.05
_LOG_DURATION_STD = 0.3
_MEDIAN_DURATION_S = 0.01
_SLOWDOWN = 20.0
"""Factor by which a slow hostile request takes longer."""

_AGREEMENT = PredictionAgreement(difference=1.0, spread=10.0, rows=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedClients:
    """Numbers and request rates of clients, error rates of the arms, and the attack."""

    attack: Attack = "none"
    hostile_arm: ArmName = "challenger"
    """Arm to which all hostile clients are assigned."""

    has_gateway: bool = False
    """Whether all requests come from one address."""

    invents_users: bool = False
    """Whether each hostile request has a new user. All of them then have the same address."""

    num_honest: int = 10_000
    """Number of honest clients."""
    num_hostile: int = 100
    """Number of hostile clients."""
    requests_per_s: float = 100.0
    """Requests of all honest clients per second."""
    hostile_requests_per_s: float = 100.0
    """Requests of all hostile clients per second."""
    error_rate: float = 0.01
    """Share of the requests of honest clients that fail in production."""
    error_factor: float = 1.0
    """Error rate of the challenger divided by that of production."""

    disagreement: float = 1.0
    """Difference of the arms' predictions for honest requests."""


def time_to_rollback(
    clients: SimulatedClients, *, seconds: float, seed: int, compares_arms: bool
) -> float:
    """Return the time until a rollout to 5 % of the users is rolled back [s]; infinity for never.

    Args:
        clients: The clients, the errors of the arms, and the attack.
        seconds: Simulated time [s].
        seed: Seed of all random draws.
        compares_arms: Whether only faults of one arm alone count, as in production. Otherwise all
            faults count.
    """
    rng = np.random.default_rng(seed)
    rollout = new_rollout(_SETTINGS, now=START)
    split = TrafficSplit(
        epoch=rollout.epoch,
        production=rollout.production,
        challenger=rollout.candidate,
        rollout=rollout.id,
        share=_CHALLENGER_SHARE,
    )
    steps = StepCounters(split.without_challenger(), now=START)
    for duration_s in _MEDIAN_DURATION_S * rng.lognormal(sigma=_LOG_DURATION_STD, size=500):
        steps.count("production", split=split, seconds=float(duration_s), fault=None)
    for number in range(clients.num_honest):  # each made a request before the step began
        name = client_of(f"{number}", "")
        address = "gateway" if clients.has_gateway else name
        steps.clients.record_request("production", name, address=address, now=0.0)
    steps.set_split(split, now=START)
    buffer, samples = SampleBuffer(per_s=2.0), list[Sample]()
    for poll in range(1, int(seconds / POLL_INTERVAL_S) + 1):
        now_s = poll * POLL_INTERVAL_S
        _simulate_requests(
            clients,
            steps,
            split,
            buffer,
            samples,
            rng=rng,
            now_s=now_s,
            compares_arms=compares_arms,
        )
        polled_at = START + timedelta(seconds=now_s)
        traffic_counts = steps.traffic_counts(polled_at)
        assert traffic_counts is not None
        drift = measure_prediction_drift(samples, _AGREEMENT, limit=4.0, min_pairs=100)
        rollout = advance(
            rollout,
            traffic_counts
            if compares_arms
            else traffic_counts.model_copy(update={"evidence_counts": None}),
            now=polled_at,
            production=rollout.production,
            drift=drift,
        ).rollout
        if rollout.phase == "rolled_back":
            return now_s
    return float("inf")


def _simulate_requests(
    clients: SimulatedClients,
    steps: StepCounters,
    split: TrafficSplit,
    buffer: SampleBuffer,
    samples: list[Sample],
    *,
    rng: np.random.Generator,
    now_s: float,
    compares_arms: bool,
) -> None:
    """Simulate the requests of one polling interval."""
    num_honest_requests = rng.poisson(clients.requests_per_s * POLL_INTERVAL_S)
    num_hostile_requests = 0
    if clients.attack != "none":
        num_hostile_requests = rng.poisson(clients.hostile_requests_per_s * POLL_INTERVAL_S)
    num_requests = num_honest_requests + num_hostile_requests
    order_N = rng.permutation(num_requests)
    is_hostile_N = np.arange(num_requests) >= num_honest_requests
    user_N = np.where(
        is_hostile_N,
        rng.integers(clients.num_hostile, size=num_requests),
        rng.integers(clients.num_honest, size=num_requests),
    )
    is_on_challenger_N = np.where(
        is_hostile_N,
        clients.hostile_arm == "challenger",
        user_N < _CHALLENGER_SHARE * clients.num_honest,
    )  # the first users are assigned to the challenger
    # Results of both arms for each request: the other arm is also called, to compare their faults.
    duration_2N = _MEDIAN_DURATION_S * rng.lognormal(
        sigma=_LOG_DURATION_STD, size=(2, num_requests)
    )
    error_rate_2 = clients.error_rate * np.array([1.0, clients.error_factor])
    fails_2N = rng.random((2, num_requests)) < error_rate_2[:, None]
    if clients.attack == "shared errors":
        fails_2N |= is_hostile_N
    elif clients.attack == "slow requests":
        duration_2N[:, is_hostile_N] *= _SLOWDOWN
    elif clients.attack == "good requests":
        fails_2N[:, is_hostile_N] = False
    for position, n in enumerate(order_N.tolist()):
        at_s = now_s + POLL_INTERVAL_S * (position / num_requests - 1)
        name = client_of(f"{'hostile ' if is_hostile_N[n] else ''}{user_N[n]}", "")
        address = "gateway" if clients.has_gateway else name
        if clients.invents_users and is_hostile_N[n]:
            name, address = client_of(f"invented {at_s}", ""), "203.0.113.7"
        arm: ArmName = "challenger" if is_on_challenger_N[n] else "production"
        arm_index = int(is_on_challenger_N[n])
        results = [
            _result_of(steps, duration_2N[a, n], bool(fails_2N[a, n]))
            for a in (arm_index, 1 - arm_index)
        ]
        steps.count(arm, split=split, seconds=float(duration_2N[arm_index, n]), fault=results[0][0])
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
        may_sample = not compares_arms or steps.clients.may_sample(name, per_s=2.0, now=at_s)
        if may_sample and results[0][0] is None and buffer.reserve_sample(at_s):
            steps.clients.record_sample(name)
            is_odd = clients.attack == "odd samples" and is_hostile_N[n]
            difference = 1e6 if is_odd else clients.disagreement
            samples.append(
                _sample(difference, client=name, origin=address)
                if compares_arms
                else _sample(difference)
            )


def _result_of(
    steps: StepCounters, duration_s: float, fails: bool
) -> tuple[RequestFault | None, frozenset[str]]:
    """Return the fault of a request, and the guards that count the request as faulty."""
    fault: RequestFault | None = "errors" if fails else None
    return fault, steps.guard_faults(seconds=float(duration_s), fault=fault)


def _sample(difference: float, *, client: str | None = None, origin: str | None = None) -> Sample:
    return Sample(
        at=START,
        rollout="simulated",
        epoch=2,
        client=client,
        origin=origin,
        arm="challenger",
        seconds=_MEDIAN_DURATION_S,
        features=(0.0,),
        production=((0.0,),),
        challenger=((difference,),),
    )
