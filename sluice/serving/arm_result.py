"""Result of one request to an arm as a value: its output or fault, and the time it took.

Shape legend: M = networks, N = elements of a request, such as windows, O = outputs.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluice.observability import spans
from sluice.rollout.samples import ArmName, Outputs, RequestFault
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.arm import (
    ArmWorker,
    EnsembleOutput,
    NetworkFailed,
    NeverStarted,
    QueueFull,
    StartTime,
)
from sluice.serving.http_errors import HttpError, InvalidInput, ModelFailed, PredictionTimeout
from sluice.serving.model_arrays import ModelArrays


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutedPrediction:
    """A prediction and the arm that made it."""

    output: EnsembleOutput
    """Mean of the networks' outputs (N, O)."""

    arm: ArmName
    version: int
    candidate: str
    split: TrafficSplit
    challenger_fault: RequestFault | None
    """Fault of the challenger because of which production answered instead; None otherwise."""

    challenger_error: str
    """Type of the error that the challenger raised, for the log; empty without an error."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmResult:
    """Result of one request to an arm: an output, a fault, or both if the output is not finite."""

    output: EnsembleOutput | None
    """Output of each network (M, N, O); None if the arm returned no output."""

    fault: RequestFault | None
    error_site: dict[str, Any]
    """Type and location of a network's error; empty without an error."""

    has_started: bool
    """Whether the arm started to compute the request."""

    seconds: float
    """Time from the request to its result [s]."""

    computed_s: float
    """Time from the start of the computation to the result [s]; 0 if the arm never started. The
    time in the queue is not included, because it depends on other requests and not on the arm."""


async def predict_once(
    arm: ArmWorker, x: ModelArrays, *, timeout_s: float, max_waiting: int
) -> ArmResult:
    """Predict with an arm and return a fault instead of raising an error.

    Args:
        arm: Arm that predicts.
        x: Inputs of N elements.
        timeout_s: Longest wait [s].
        max_waiting: Number of waiting requests at which the result is a timeout at once.
    """
    requested_at, start_time = time.monotonic(), StartTime()
    output: EnsembleOutput | None = None
    fault: RequestFault | None = None
    error_site: dict[str, Any] = {}
    has_started = True
    try:
        output = await arm.predict(
            x, timeout_s=timeout_s, max_waiting=max_waiting, start_time=start_time
        )
        fault = None if np.isfinite(output).all() else "not_finite"
    except (QueueFull, NeverStarted):
        # A full queue counts as a timeout. Otherwise an arm that hangs, and so fills its queue,
        # would have fewer timeouts than a slow arm.
        fault, has_started = "timeouts", False
    except TimeoutError:
        fault = "timeouts"
    except NetworkFailed as failed:
        fault, error_site = "errors", failed.error_site
    now = time.monotonic()
    return ArmResult(
        output=output,
        fault=fault,
        error_site=error_site,
        has_started=has_started,
        seconds=now - requested_at,
        computed_s=0.0 if start_time.monotonic_s is None else now - start_time.monotonic_s,
    )


async def try_arm(
    arm: ArmWorker, x: ModelArrays, *, name: str, timeout_s: float, max_waiting: int
) -> ArmResult:
    """Predict with an arm within a span; see ``predict_once``.

    Args:
        arm: Arm that predicts.
        x: Inputs of N elements.
        name: Role of the arm in the request, for the name of the span.
        timeout_s: Longest wait [s].
        max_waiting: Number of waiting requests at which the result is a timeout at once.
    """
    with spans.span(f"arm {name}", version=arm.deployed.version) as span:
        result = await predict_once(arm, x, timeout_s=timeout_s, max_waiting=max_waiting)
        if result.fault is not None:
            span.set_error(result.fault)
    return result


def routed_prediction(
    result: ArmResult,
    name: ArmName,
    arm: ArmWorker,
    split: TrafficSplit,
    *,
    challenger_failure: ArmResult | None,
) -> RoutedPrediction:
    """Return the prediction of a result without a fault.

    Args:
        result: Result of the arm that answers.
        name: Name of this arm.
        arm: The arm.
        split: Traffic split by which the request was routed.
        challenger_failure: Result of the challenger if it failed and production answers instead.
    """
    assert result.output is not None, "without a fault there is an output"
    return RoutedPrediction(
        output=result.output.mean(axis=0),
        arm=name,
        version=arm.deployed.version,
        candidate=arm.deployed.candidate,
        split=split,
        challenger_fault=None if challenger_failure is None else challenger_failure.fault,
        challenger_error=""
        if challenger_failure is None
        else challenger_failure.error_site.get("error", ""),
    )


def first_element_outputs(result: ArmResult) -> Outputs:
    """Return the output of each network for the first element."""
    assert result.output is not None, "without a fault there is an output"
    return tuple(map(tuple, result.output[:, 0].tolist()))


def prediction_error(result: ArmResult) -> HttpError:
    """Return the error for the client when production failed."""
    if result.fault == "timeouts":
        return PredictionTimeout(
            f"The model did not answer within {result.seconds:.3f} s.",
            cause="The server is overloaded, or the model hangs.",
            fix="Try again; if it persists, raise serving.deadline_s or add servers.",
        )
    if result.fault == "not_finite":
        return InvalidInput(
            "The prediction of the model for these elements is NaN or infinite.",
            cause="The elements are probably far outside the training data.",
            fix="Check the values and their units.",
        )
    return ModelFailed(
        f"The model raised {result.error_site['error']}.",
        cause="The code of the model probably does not support this input. The log of the server "
        "has the location of the error.",
        fix="Report it to the owner of the model.",
        error_site=result.error_site,
    )
