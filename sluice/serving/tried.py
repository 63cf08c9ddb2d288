"""What an arm made of one request, as a value: an output or a fault, and how long it took.

Shape legend: M = networks, N = windows, L = rows of a window, D = features, O = outputs.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.observability import tracing
from sluice.rollout.samples import ArmName, Fault, Outputs
from sluice.rollout.weights import Weights
from sluice.serving.arm import Arm, Began, Busy, NetworkFailed, NeverStarted, Output
from sluice.serving.refusals import ModelFailed, Refusal, TooLate, WrongInput


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routed:
    """An answer and who gave it."""

    output: Output
    """Mean of the networks' answers (N, O)."""

    arm: ArmName
    version: int
    candidate: str
    weights: Weights
    challenger_fault: Fault | None
    """Why production answered in the challenger's place; None when it did not."""

    challenger_error: str
    """Type of what the challenger raised, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tried:
    """What an arm made of a request; without a fault there is an output."""

    output: Output | None
    """What each network said (M, N, O)."""

    fault: Fault | None
    place: dict[str, Any]
    """What a network raised, and where."""

    is_begun: bool
    """False when the arm never came to the request."""

    seconds: float
    computed_s: float
    """Of ``seconds``, those since the arm came to the request; 0 when it never did. What others ask
    of an arm makes a request wait, and says nothing about the arm."""


async def predict_once(
    arm: Arm, x_NLD: NDArray[np.float32], *, timeout_s: float, max_waiting: int
) -> Tried:
    """Ask an arm; whatever goes wrong is a value.

    Args:
        arm: Who is asked.
        x_NLD: Windows (N, L, D).
        timeout_s: Longest wait [s].
        max_waiting: When so many requests wait for the arm, this one fails at once.
    """
    asked_at, began = time.monotonic(), Began()
    output: Output | None = None
    fault: Fault | None = None
    place: dict[str, Any] = {}
    is_begun = True
    try:
        output = await arm.predict(x_NLD, timeout_s=timeout_s, max_waiting=max_waiting, began=began)
        fault = None if np.isfinite(output).all() else "not_finite"
    except (Busy, NeverStarted):
        # An arm whose queue is full has not answered in time either: one that hangs must not
        # look better for it.
        fault, is_begun = "timeouts", False
    except TimeoutError:
        fault = "timeouts"
    except NetworkFailed as failed:
        fault, place = "errors", failed.place
    now = time.monotonic()
    return Tried(
        output=output,
        fault=fault,
        place=place,
        is_begun=is_begun,
        seconds=now - asked_at,
        computed_s=0.0 if began.at is None else now - began.at,
    )


async def try_arm(
    arm: Arm, x_NLD: NDArray[np.float32], *, name: str, timeout_s: float, max_waiting: int
) -> Tried:
    """Ask an arm as ``predict_once`` does, within a span.

    Args:
        arm: Who is asked.
        x_NLD: Windows (N, L, D).
        name: What the arm is to the request, for the span.
        timeout_s: Longest wait [s].
        max_waiting: When so many requests wait for the arm, this one fails at once.
    """
    with tracing.span(f"arm {name}", version=arm.deployed.version) as span:
        tried = await predict_once(arm, x_NLD, timeout_s=timeout_s, max_waiting=max_waiting)
        if tried.fault is not None:
            span.fail(tried.fault)
    return tried


def answer_of(
    tried: Tried, name: ArmName, arm: Arm, weights: Weights, *, failed: Tried | None
) -> Routed:
    """Return what is answered, of a try without a fault."""
    assert tried.output is not None, "without a fault there is an output"
    return Routed(
        output=tried.output.mean(axis=0),
        arm=name,
        version=arm.deployed.version,
        candidate=arm.deployed.candidate,
        weights=weights,
        challenger_fault=None if failed is None else failed.fault,
        challenger_error="" if failed is None else failed.place.get("error", ""),
    )


def outputs(tried: Tried) -> Outputs:
    """Return what each network said of the first window."""
    assert tried.output is not None, "without a fault there is an output"
    return tuple(map(tuple, tried.output[:, 0].tolist()))


def refusal(tried: Tried) -> Refusal:
    """Say why production did not answer."""
    if tried.fault == "timeouts":
        return TooLate(
            f"The model must answer in time, and did not within {tried.seconds:.3f} s.",
            cause="The server is overloaded, or the model hangs.",
            fix="Try again; when it lasts, raise serving.deadline_s or add servers.",
        )
    if tried.fault == "not_finite":
        return WrongInput(
            "The model has no finite answer for these windows.",
            cause="They are far from anything it was trained on.",
            fix="Check the values and their units.",
        )
    return ModelFailed(
        f"The model raised {tried.place['error']}.",
        cause="Its code does not take this input; the server's log has the place by trace id.",
        fix="Tell whoever owns the model.",
        place=tried.place,
    )
