"""Runs the drift monitor of a version in production, and updates its state."""

from dataclasses import dataclass, field

from sluice.drift.embedding_page import EmbeddingWindow
from sluice.drift.monitor_inputs import MonitorInputs
from sluice.drift.monitor_state import MonitorState, Signal, update_alarm
from sluice.drift.report import DriftReport
from sluice.drift.signal_evaluation import SignalEvaluator


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorRun:
    """Result of one monitor run: the new state, and reports of the windows that it evaluated."""

    state: MonitorState
    reports: dict[Signal, DriftReport] = field(default_factory=dict)
    embedding: EmbeddingWindow | None = None
    """Window of embeddings that the run evaluated; None without one."""


def run_drift_monitor(inputs: MonitorInputs, previous: MonitorState | None) -> MonitorRun:
    """Evaluate every new window, and return the updated state. No window is evaluated twice.

    Args:
        inputs: The version, its references, the rows, and the samples of the servers.
        previous: State after the previous run; the state of another version is ignored.

    Raises:
        ContractError: The type of the index labels, or the columns, differ from those of the
            training rows.
        IntegrityError: A reference, losses or weights are missing or damaged.

    Cost:
        5,000 rows of nine features, 8 networks: 2 s.
    """
    if previous is not None and previous.candidate != inputs.version.candidate:
        previous = None
    evaluator = SignalEvaluator(inputs, previous)
    latencies, latencies_until = evaluator.reference_latencies()
    embedding = evaluator.update_embedding()
    signals = (
        evaluator.update_rows(),
        *evaluator.update_serving_tables(),
        *((embedding,) if embedding is not None else ()),
        evaluator.update_latency(latencies, latencies_until),
        evaluator.update_losses(),
    )
    candidate = inputs.version.candidate
    previous_alarms = (previous.training, previous.repair) if previous else (None, None)
    training_alarm = update_alarm(
        previous_alarms[0], signals, "train", candidate=candidate, now=inputs.now
    )
    repair_alarm = update_alarm(
        previous_alarms[1], signals, "repair", candidate=candidate, now=inputs.now
    )
    state = MonitorState(
        model=inputs.version.model,
        version=inputs.version.number,
        candidate=candidate,
        at=inputs.now,
        signals=signals,
        latencies=latencies,
        latencies_until=latencies_until,
        training=training_alarm,
        repair=repair_alarm,
    )
    return MonitorRun(state=state, reports=evaluator.reports, embedding=evaluator.embedding_window)
