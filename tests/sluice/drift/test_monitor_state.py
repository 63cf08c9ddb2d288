"""What successive windows say together (ROLL-3): one alarm a drift, and silence is no health."""

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


def judged(at: int, verdict: str, action: str = "train") -> WindowResult:
    return WindowResult(
        window=f"w{at}",
        first=str(10 * at),
        last=str(10 * at + 9),
        num_rows=10,
        at=NOW + timedelta(days=at),
        verdict=verdict,
        reason=f"reason <{at}>.",
        remedy="",
        columns=("a",) if verdict == "DRIFT" else (),
        action=action,
    )


def series(verdicts: str, signal: str = "rows", action: str = "train") -> list[SignalState]:
    """Return the subject after each of its windows: D, S or I."""
    words = {"D": "DRIFT", "S": "STABLE", "I": "INCONCLUSIVE"}
    watch, found = None, []
    for at, letter in enumerate(verdicts):
        watch = update_signal(watch, signal, judged(at, words[letter], action), ALARM)
        found.append(watch)
    return found


def episodes(verdicts: str) -> list[str | None]:
    episode, found = None, []
    for watch in series(verdicts):
        episode = update_alarm(episode, [watch], "train", candidate="c", now=NOW)
        found.append(episode and episode.id)
    return found


def test_persistent_drift_is_one_alarm_and_new_drift_another():
    ids = episodes("SDDDDSSSDD")

    assert [found is not None for found in ids] == [
        *(False, False, True, True, True, True),
        *(False, False, False, True),
    ]
    assert len({found for found in ids if found}) == 2


def test_inconclusive_windows_do_not_end_an_alarm():
    ids = episodes("DDIIIDS")

    assert ids[1] is not None
    assert set(ids[1:]) == {ids[1]}


def test_faults_start_no_training():
    slow = series("DD", "latency", "repair")[-1]

    assert update_alarm(None, [slow], "train", candidate="c", now=NOW) is None
    repair = update_alarm(None, [slow], "repair", candidate="c", now=NOW)
    assert repair is not None
    assert repair.signals == ("latency",)


def test_a_repeated_window_is_not_evaluated_again():
    once = series("D")[-1]

    again = update_signal(once, "rows", judged(0, "DRIFT"), ALARM)

    assert (again.windows, again.is_new) == (once.windows, False)
    assert "already evaluated" in again.summary


def whole(*subjects: SignalState) -> MonitorState:
    return MonitorState(model="m", version=3, candidate="c", at=NOW, signals=subjects)


def test_stable_requires_all_monitored_signals():
    stable, drifted = series("S")[-1], series("D", "requests")[-1]
    silent = update_signal(None, "losses", "No label yet.", ALARM)
    absent = update_signal(None, "latency", "No server.", ALARM, is_monitored=False)

    assert whole(stable, absent).verdict == "STABLE"
    assert whole(stable, silent).verdict == "INCONCLUSIVE"
    assert "No label yet." in whole(stable, silent).reason
    assert whole(stable, silent, drifted).verdict == "DRIFT"


def test_too_little_data_is_waiting_and_neither_stable_nor_inconclusive():
    stable, undecided = series("S")[-1], series("I", "requests")[-1]
    few = update_signal(None, "requests", Waiting(reason="One request."), ALARM)
    absent = update_signal(None, "latency", "No server.", ALARM, is_monitored=False)

    assert whole(few).verdict == "WAITING"
    assert whole(few, undecided).verdict == "INCONCLUSIVE"
    assert whole(stable, few).verdict == "WAITING"
    assert whole(stable, few).reason == (
        "No drift in the newest window of new rows of the source. Requests: One request."
    )
    assert whole(absent).verdict == "WAITING"
    assert "No server." in whole(absent).reason
    assert '<span class="tag plain">WAITING</span>' in monitor_page(whole(few))


def test_a_waiting_signal_keeps_the_verdict_of_its_last_window():
    drifted = series("SD")[-1]

    waiting = update_signal(drifted, "rows", Waiting(reason="No new rows yet."), ALARM)

    assert (waiting.verdict, waiting.is_new) == ("DRIFT", False)
    assert waiting.alarm_state == drifted.alarm_state


def test_the_page_shows_the_state_and_escapes_text():
    page = monitor_page(whole(series("D")[-1], update_signal(None, "losses", "<b>", ALARM)))

    assert "DRIFT" in page
    assert "reason &lt;0&gt;" in page
    assert "<b>Losses" not in page


def waits(index: pd.Index, **given) -> str:
    found = next_window(index, **given)
    assert isinstance(found, Waiting)
    return found.reason


def test_windows_start_after_the_last_one_and_wait_until_full():
    index = pd.Index(range(200))
    first = {"is_first": True, "settings": SMALL}
    later = {"is_first": False, "settings": SMALL}

    assert "20 new rows after 179; a window needs 30" in waits(index, after="179", **first)
    assert "No new rows yet after 199" in waits(index, after="199", **later)
    assert len(next_window(index, after="159", **first)) == 40
    assert "a window needs 60" in waits(index, after="159", **later)
    newest = next_window(index, after="99", **later)
    assert (newest.start, newest.stop) == (140, 200)
    with pytest.raises(ContractError, match="label"):
        next_window(index, after="monday", **first)


def sample(at: int, **changes) -> Sample:
    values = {
        "at": NOW + timedelta(seconds=at),
        "epoch": 1,
        "arm": "production",
        "seconds": 0.01,
        "features": (float(at), 1.0),
        "production": ((1.0, 2.0), (3.0, 4.0)),
    }
    return Sample(**(values | changes))


def test_server_samples_are_converted_to_tables():
    samples = [
        sample(1),
        sample(2, key="row", features=(5.0, 5.0)),
        sample(3, key="row", features=(5.0, 5.0)),  # asked again: one row
        sample(4, fault="errors"),
        sample(5, arm="challenger", seconds=9.0),
        sample(6, production=None),
        sample(0),
    ]
    known = serving_samples.production_samples(samples, NOW)

    asked = serving_samples.request_frame(known, ["a", "b"])
    told = serving_samples.prediction_frame(known, serving_samples.prediction_columns(2))

    assert asked["a"].tolist() == [1.0, 5.0, 5.0]
    assert told.iloc[0].tolist() == [2.0, 3.0]
    assert serving_samples.latencies(known).tolist() == [0.01, 0.01, 0.01]
    assert serving_samples.request_frame(known, ["a"]).empty
    assert serving_samples.prediction_frame([], ["p"]).shape == (0, 1)


def test_a_full_window_is_pending():
    labels = SourceIndex(index=pd.Index(range(200)), known_until="160", has_losses=True)
    samples = [sample(at) for at in range(1, 50)]

    news = find_pending_windows(labels, samples, None, SMALL, in_production_since=NOW)
    old = find_pending_windows(
        labels, samples, None, SMALL, in_production_since=NOW + timedelta(days=1)
    )

    assert news.signals == ("rows", "losses", "requests", "latency")
    assert old.signals == ("rows", "losses")
    later = dataclasses.replace(labels, known_until="180", has_losses=False)
    wait_reasons = find_pending_windows(
        later, [], None, SMALL, in_production_since=NOW
    ).wait_reasons
    assert wait_reasons == ("New rows of the source: 19 new rows after 180; a window needs 30.",)
    assert find_pending_windows(None, [], None, SMALL, in_production_since=NOW).signals == ()


def test_requests_without_feature_columns_wait_for_predictions():
    samples = [sample(at, features=(), content=f"{at % 45}") for at in range(1, 50)]

    found = find_pending_windows(None, samples, None, SMALL, in_production_since=NOW)
    known = serving_samples.production_samples(samples, NOW)

    assert found.signals == ("predictions", "latency")
    names = serving_samples.prediction_columns(2)
    assert len(serving_samples.prediction_frame(known, names)) == 45  # repeated elements count once
