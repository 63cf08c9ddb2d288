"""Checks that find within seconds what would ruin a long training, before it starts.

``check`` runs the whole gate. Each validator can also be used on its own::

    from sluice import failfast

    failfast.check(MyWorkload)
    failfast.validate_gradients(model.named_parameters(), warn_norm=100.0)

Names are imported lazily, on first access.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.data.validation import validate_schema
    from sluice.eventlog.event_log import EventLog, read_events, validate_log
    from sluice.eventlog.log_report import inspect_log
    from sluice.failfast.checkpoints.resumption import (
        StoppableTraining,
        check_resumption,
        validate_checkpoint,
    )
    from sluice.failfast.data.data_loading import repeated_rows
    from sluice.failfast.data.look_ahead import find_look_ahead
    from sluice.failfast.data.signal import find_signal
    from sluice.failfast.gate.in_script import check
    from sluice.failfast.gradients.norms import validate_gradients
    from sluice.failfast.gradients.optimizer_membership import validate_optimizer
    from sluice.failfast.gradients.recurrent_state import (
        recurrent_gradients,
        slstm_normaliser_range,
    )
    from sluice.failfast.gradients.symmetric_units import symmetric_weights
    from sluice.failfast.learning.epoch_selector import check_epoch_selector
    from sluice.failfast.learning.predictions import prediction_spread
    from sluice.findings.hard_examples import find_hard_examples
    from sluice.workloads.constant_baseline import constant_baseline_loss

_MODULES = {
    "check": "sluice.failfast.gate.in_script",
    "validate_schema": "sluice.data.validation",
    "validate_gradients": "sluice.failfast.gradients.norms",
    "validate_optimizer": "sluice.failfast.gradients.optimizer_membership",
    "recurrent_gradients": "sluice.failfast.gradients.recurrent_state",
    "slstm_normaliser_range": "sluice.failfast.gradients.recurrent_state",
    "symmetric_weights": "sluice.failfast.gradients.symmetric_units",
    "find_look_ahead": "sluice.failfast.data.look_ahead",
    "repeated_rows": "sluice.failfast.data.data_loading",
    "find_signal": "sluice.failfast.data.signal",
    "prediction_spread": "sluice.failfast.learning.predictions",
    "check_epoch_selector": "sluice.failfast.learning.epoch_selector",
    "constant_baseline_loss": "sluice.workloads.constant_baseline",
    "find_hard_examples": "sluice.findings.hard_examples",
    "StoppableTraining": "sluice.failfast.checkpoints.resumption",
    "check_resumption": "sluice.failfast.checkpoints.resumption",
    "validate_checkpoint": "sluice.failfast.checkpoints.resumption",
    "EventLog": "sluice.eventlog.event_log",
    "read_events": "sluice.eventlog.event_log",
    "validate_log": "sluice.eventlog.event_log",
    "inspect_log": "sluice.eventlog.log_report",
}

__all__ = [
    "EventLog",
    "StoppableTraining",
    "check",
    "check_epoch_selector",
    "check_resumption",
    "constant_baseline_loss",
    "find_hard_examples",
    "find_look_ahead",
    "find_signal",
    "inspect_log",
    "prediction_spread",
    "read_events",
    "recurrent_gradients",
    "repeated_rows",
    "slstm_normaliser_range",
    "symmetric_weights",
    "validate_checkpoint",
    "validate_gradients",
    "validate_log",
    "validate_optimizer",
    "validate_schema",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
