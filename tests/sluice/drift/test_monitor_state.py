"""Monitor state over successive windows (ROLL-3): one alarm per drift; no data is not STABLE."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.config.drift_settings import AlarmDebounceSettings, DriftSettings
from sluice.drift import serving_samples
from sluice.drift.monitor_page import monitor_page
from sluice.drift.monitor_state import (
    MonitorState,
    SignalState,
    WindowResult,
    update_alarm,
    update_signal,
)
from sluice.drift.pending_windows import SourceIndex, find_pending_windows
from sluice.drift.windows import Waiting, next_window
from sluice.rollout.samples import Sample

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALARM = AlarmDebounceSettings(min_drifted=2, num_windows=3)
SMALL = DriftSettings(window_rows=60, min_rows=30)


def make_result(number: int, verdict: str, action: str = "train") -> WindowResult:
    return WindowResult(
        window=f"w{number}",
        first=str(10 * number),
        last=str(10 * number + 9),
        num_rows=10,
        at=NOW + timedelta(days=number),
        verdict=verdict,
        reason=f"reason <{number}>.",
        remedy="",
        columns=("a",) if verdict == "DRIFT" else (),
        action=action,
    )


def signal_states(verdicts: str, signal: str = "rows", action: str = "train") -> list[SignalState]:
    """Return the state of the signal after each window, given as D, S or I."""
    verdict_of = {"D": "DRIFT", "S": "STABLE", "I": "INCONCLUSIVE"}
    state, states = None, []
    for number, letter in enumerate(verdicts):
        state = update_signal(state, signal, make_result(number, verdict_of[letter], action), ALARM)
        states.append(state)
    return states


def alarm_ids(verdicts: str) -> list[str | None]:
    alarm, states = None, []
    for state in signal_states(verdicts):
        alarm = update_alarm(alarm, [state], "train", candidate="c", now=NOW)
        states.append(alarm and alarm.id)
    return states


def test_persistent_drift_is_one_alarm_and_new_drift_another():
    ids = alarm_ids("SDDDDSSSDD")

    assert [states is not None for states in ids] == [
        *(False, False, True, True, True, True),
        *(False, False, False, True),
    ]
    assert len({states for states in ids if states}) == 2


def test_inconclusive_windows_do_not_end_an_alarm():
    ids = alarm_ids("DDIIIDS")

    assert ids[1] is not None
    assert set(ids[1:]) == {ids[1]}


def test_a_fault_of_the_server_starts_no_training():
    slow = signal_states("DD", "latency", "repair")[-1]

    assert update_alarm(None, [slow], "train", candidate="c", now=NOW) is None
    repair = update_alarm(None, [slow], "repair", candidate="c", now=NOW)
    assert repair is not None
    assert repair.signals == ("latency",)


def test_a_repeated_window_is_not_evaluated_again():
    evaluated = signal_states("D")[-1]

    again = update_signal(evaluated, "rows", make_result(0, "DRIFT"), ALARM)

    assert (again.windows, again.is_new) == (evaluated.windows, False)
    assert "already evaluated" in again.summary


def monitor_state(*signals: SignalState) -> MonitorState:
    return MonitorState(model="m", version=3, candidate="c", at=NOW, signals=signals)


def test_stable_requires_all_monitored_signals():
    stable, drifted = signal_states("S")[-1], signal_states("D", "requests")[-1]
    without_labels = update_signal(None, "losses", "No label yet.", ALARM)
    absent = update_signal(None, "latency", "No server.", ALARM, is_monitored=False)

    assert monitor_state(stable, absent).verdict == "STABLE"
    assert monitor_state(stable, without_labels).verdict == "INCONCLUSIVE"
    assert "No label yet." in monitor_state(stable, without_labels).reason
    assert monitor_state(stable, without_labels, drifted).verdict == "DRIFT"


def test_too_little_data_is_waiting_and_neither_stable_nor_inconclusive():
    stable, undecided = signal_states("S")[-1], signal_states("I", "requests")[-1]
    few = update_signal(None, "requests", Waiting(reason="One request."), ALARM)
    absent = update_signal(None, "latency", "No server.", ALARM, is_monitored=False)

    assert monitor_state(few).verdict == "WAITING"
    assert monitor_state(few, undecided).verdict == "INCONCLUSIVE"
    assert monitor_state(stable, few).verdict == "WAITING"
    assert monitor_state(stable, few).reason == (
        "No drift in the newest window of new rows of the source. Requests: One request."
    )
    assert monitor_state(absent).verdict == "WAITING"
    assert "No server." in monitor_state(absent).reason
    assert '<span class="tag plain">WAITING</span>' in monitor_page(monitor_state(few))


def test_a_waiting_signal_keeps_the_verdict_of_its_last_window():
    drifted = signal_states("SD")[-1]

    waiting = update_signal(drifted, "rows", Waiting(reason="No new rows yet."), ALARM)

    assert (waiting.verdict, waiting.is_new) == ("DRIFT", False)
    assert waiting.alarm_state == drifted.alarm_state


def test_the_page_shows_the_state_and_escapes_text():
    page = monitor_page(
        monitor_state(signal_states("D")[-1], update_signal(None, "losses", "<b>", ALARM))
    )

    assert "DRIFT" in page
    assert "reason &lt;0&gt;" in page
    assert "<b>Losses" not in page


def wait_reason(index: pd.Index, **arguments) -> str:
    states = next_window(index, **arguments)
    assert isinstance(states, Waiting)
    return states.reason


def test_windows_start_after_the_last_one_and_wait_until_full():
    index = pd.Index(range(200))
    first = {"is_first": True, "settings": SMALL}
    later = {"is_first": False, "settings": SMALL}

    assert "20 new rows after 179; a window needs 30" in wait_reason(index, after="179", **first)
    assert "No new rows yet after 199" in wait_reason(index, after="199", **later)
    assert len(next_window(index, after="159", **first)) == 40
    assert "a window needs 60" in wait_reason(index, after="159", **later)
    newest = next_window(index, after="99", **later)
    assert (newest.start, newest.stop) == (140, 200)
    with pytest.raises(ContractError, match="label"):
        next_window(index, after="monday", **first)


def make_sample(number: int, **changes) -> Sample:
    values = {
        "at": NOW + timedelta(seconds=number),
        "epoch": 1,
        "arm": "production",
        "seconds": 0.01,
        "features": (float(number), 1.0),
        "production": ((1.0, 2.0), (3.0, 4.0)),
    }
    return Sample(**(values | changes))


def test_server_samples_are_converted_to_tables():
    samples = [
        make_sample(1),
        make_sample(2, key="row", features=(5.0, 5.0)),
        make_sample(3, key="row", features=(5.0, 5.0)),  # a repeated request is one row
        make_sample(4, fault="errors"),
        make_sample(5, arm="challenger", seconds=9.0),
        make_sample(6, production=None),
        make_sample(0),
    ]
    known = serving_samples.production_samples(samples, NOW)

    requests = serving_samples.request_frame(known, ["a", "b"])
    predictions = serving_samples.prediction_frame(known, serving_samples.prediction_columns(2))

    assert requests["a"].tolist() == [1.0, 5.0, 5.0]
    assert predictions.iloc[0].tolist() == [2.0, 3.0]
    assert serving_samples.latencies(known).tolist() == [0.01, 0.01, 0.01]
    assert serving_samples.request_frame(known, ["a"]).empty
    assert serving_samples.prediction_frame([], ["p"]).shape == (0, 1)


def test_a_full_window_is_pending():
    labels = SourceIndex(index=pd.Index(range(200)), known_until="160", has_losses=True)
    samples = [make_sample(number) for number in range(1, 50)]

    pending = find_pending_windows(labels, samples, None, SMALL, in_production_since=NOW)
    long_before = find_pending_windows(
        labels, samples, None, SMALL, in_production_since=NOW + timedelta(days=1)
    )

    assert pending.signals == ("rows", "losses", "requests", "latency")
    assert long_before.signals == ("rows", "losses")
    later = dataclasses.replace(labels, known_until="180", has_losses=False)
    wait_reasons = find_pending_windows(
        later, [], None, SMALL, in_production_since=NOW
    ).wait_reasons
    assert wait_reasons == ("New rows of the source: 19 new rows after 180; a window needs 30.",)
    assert find_pending_windows(None, [], None, SMALL, in_production_since=NOW).signals == ()


def test_requests_without_feature_columns_wait_for_predictions():
    samples = [
        make_sample(number, features=(), content=f"{number % 45}") for number in range(1, 50)
    ]

    states = find_pending_windows(None, samples, None, SMALL, in_production_since=NOW)
    known = serving_samples.production_samples(samples, NOW)

    assert states.signals == ("predictions", "latency")
    names = serving_samples.prediction_columns(2)
    assert len(serving_samples.prediction_frame(known, names)) == 45  # repeated contents count once
