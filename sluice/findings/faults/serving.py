"""Faults of a served model, which a rollout detects and a rehearsal injects."""

from functools import partial
from typing import Literal

from sluice.findings.fault import Fault

ServingFault = Literal[
    "prediction errors",
    "slow predictions",
    "prediction drift",
    "lower prediction quality",
    "no traffic",
]

_fault = partial(Fault, topic="serving")

SERVING_FAULTS: tuple[Fault, ...] = (
    _fault(
        id="prediction-errors",
        name="prediction errors",
        severity="error",
        description="The model raises an exception for a part of the requests.",
        cause="The code of the network does not support some of the inputs of production.",
        fix=(
            "Reproduce one of the sampled requests, and correct the network or its input "
            "validation."
        ),
        detectors=("rollout",),
    ),
    _fault(
        id="slow-predictions",
        name="slow predictions",
        severity="error",
        description="Predictions take longer than those of production.",
        cause="The network is larger, runs on a slower device, or waits for a resource.",
        fix="Profile one request, and use a smaller network, a larger machine or smaller batches.",
        detectors=("rollout",),
    ),
    _fault(
        id="prediction-drift",
        name="prediction drift",
        severity="error",
        description="Predictions are distributed differently from those of production.",
        cause=(
            "The network was trained on other data or targets, or its inputs are preprocessed "
            "differently."
        ),
        fix="Compare inputs and predictions of both models on the sampled rows.",
        detectors=("rollout",),
    ),
    _fault(
        id="lower-prediction-quality",
        name="lower prediction quality",
        severity="error",
        description="Predictions are worse than those of production once the labels are known.",
        cause="The gain on the evaluation rows does not transfer to the rows of production.",
        fix="Evaluate on more recent rows, and retrain.",
        detectors=("rollout",),
    ),
    _fault(
        id="no-traffic",
        name="no traffic",
        severity="warning",
        description="The model receives too few requests for a decision.",
        cause="The service has few clients, or the share of traffic is too small.",
        fix="Raise the share of traffic or the time limit of a step.",
        detectors=("rollout",),
    ),
)
