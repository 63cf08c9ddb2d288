"""Simulated requests of many honest clients and a few hostile ones, counted as a server does.

The counts are those of ``StepCounters`` and the decisions those of ``advance``; only the
requests, their results and the time are simulated.
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

STAYS = RolloutSettings(min_step_s=7200, max_step_s=9000)
LOOK_S = 2.0
_SHARE = 0.05
_SPREAD = 0.3
_MEDIAN_S = 0.01
_HEAVY = 20.0
_AGREEMENT = PredictionAgreement(difference=1.0, spread=10.0, rows=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Who asks how often, what the challenger does to everybody, and what hostile clients do."""

    attack: Attack = "none"
    on: ArmName = "challenger"
    """Arm that all hostile clients are on."""

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
    """Errors of the challenger over those of production."""

    disagreement: float = 1.0
    """Difference of the arms' answers to honest requests, in held-out units."""


def rolled_back_after(crowd: Crowd, *, seconds: float, seed: int, compares: bool) -> float:
    """Return when a rollout at 5 % of the clients was rolled back [s]; infinity for never.

    Args:
        crowd: Who asks.
        seconds: How long the rollout is watched.
        seed: Of all that is drawn.
        compares: False judges what the arms counted, as Sluice did before it compared faults.
    """
    rng = np.random.default_rng(seed)
    rollout = new_rollout(STAYS, now=START)
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
    for number in range(crowd.clients):  # they asked before the step began
        name = client_of(f"{number}", "")
        address = "gateway" if crowd.gateway else name
        steps.clients.record_request("production", name, address=address, now=0.0)
    steps.set_split(split, now=START)
    buffer, samples = SampleBuffer(per_s=2.0), list[Sample]()
    for look in range(1, int(seconds / LOOK_S) + 1):
        now_s = look * LOOK_S
        _ask(crowd, steps, split, buffer, samples, rng=rng, now_s=now_s, compares=compares)
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


def _ask(
    crowd: Crowd,
    steps: StepCounters,
    split: TrafficSplit,
    buffer: SampleBuffer,
    samples: list[Sample],
    *,
    rng: np.random.Generator,
    now_s: float,
    compares: bool,
) -> None:
    """Let everybody ask for the time of one look."""
    honest = rng.poisson(crowd.requests_per_s * LOOK_S)
    active = crowd.attack != "none"
    hostile = rng.poisson(crowd.hostile_per_s * LOOK_S) if active else 0
    total = honest + hostile
    order_N = rng.permutation(total)
    is_hostile_N = np.arange(total) >= honest
    user_N = np.where(
        is_hostile_N,
        rng.integers(crowd.hostile, size=total),
        rng.integers(crowd.clients, size=total),
    )
    ours_N = np.where(
        is_hostile_N, crowd.on == "challenger", user_N < _SHARE * crowd.clients
    )  # the users' places, in an order of their own
    # What either arm makes of each request; the one that is not asked first is asked for a fault.
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
        at_s = now_s + LOOK_S * (at / total - 1)
        name = client_of(f"{'hostile ' if is_hostile_N[n] else ''}{user_N[n]}", "")
        address = "gateway" if crowd.gateway else name
        if crowd.invents and is_hostile_N[n]:
            name, address = client_of(f"invented {at_s}", ""), "203.0.113.7"
        arm: ArmName = "challenger" if ours_N[n] else "production"
        own = int(ours_N[n])
        ended = [_end(steps, spent_2N[a, n], bool(fails_2N[a, n])) for a in (own, 1 - own)]
        steps.count(arm, split=split, seconds=float(spent_2N[own, n]), fault=ended[0][0])
        is_compared = steps.admit_request(arm, split=split, client=name, address=address, now=at_s)
        if is_compared and ended[0][1]:
            steps.add_fault_evidence(
                arm,
                ended[0][1],
                ended[1][1],
                split=split,
                client=name,
                address=address,
                now=at_s,
            )
        may = not compares or steps.clients.may_sample(name, per_s=2.0, now=at_s)
        if may and ended[0][0] is None and buffer.should_sample(at_s):
            steps.clients.record_sample(name)
            odd = crowd.attack == "odd samples" and is_hostile_N[n]
            apart = 1e6 if odd else crowd.disagreement
            samples.append(
                _sample(apart, client=name, origin=address) if compares else _sample(apart)
            )


def _end(
    steps: StepCounters, spent_s: float, fails: bool
) -> tuple[RequestFault | None, frozenset[str]]:
    fault: RequestFault | None = "errors" if fails else None
    return fault, steps.guard_faults(seconds=float(spent_s), fault=fault)


def _sample(apart: float, *, client: str | None = None, origin: str | None = None) -> Sample:
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
        challenger=((apart,),),
    )
