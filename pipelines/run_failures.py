"""Reads from the event log of a run why the run failed."""

import dagster as dg


def failed_checks(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """Return the failed blocking checks of a run as 'asset / check: description'."""
    evaluations = [
        record.event_log_entry.dagster_event.asset_check_evaluation_data
        for record in instance.get_records_for_run(
            run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ).records
        if record.event_log_entry.dagster_event is not None
    ]
    return [
        f"{e.asset_key.path[-1]} / {e.check_name}: {e.description}"
        for e in evaluations
        if not e.passed and e.blocking
    ]


def failure_reason(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return why a run failed: its failed checks, or else the root causes of its steps' errors.

    Returns "" for a run without either, such as a run whose process was killed.
    """
    return " ".join(failed_checks(instance, run_id) or _step_errors(instance, run_id))


def _step_errors(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    errors = []
    for record in instance.get_records_for_run(
        run_id, of_type=dg.DagsterEventType.STEP_FAILURE
    ).records:
        event = record.event_log_entry.dagster_event
        error = None if event is None else event.step_failure_data.error
        if event is None or error is None:
            continue
        while error.cause is not None:  # Dagster wraps the error of a step in another
            error = error.cause
        asset, message = str(event.step_key).split("__")[-1], error.message.strip()
        errors.append(f"{asset}: {message}{'' if message.endswith(('.', '!', '?')) else '.'}")
    return errors
