"""What successive windows say together (ROLL-3): one alarm a drift, and silence is no health."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.config.drift_settings import DriftSettings, PersistenceSettings
from sluice.drift import live
from sluice.drift.news import Labels, what_is_new
from sluice.drift.watch import DriftWatch, Judgement, SubjectWatch, carried_on, episode_of
from sluice.drift.watch_page import watch_page
from sluice.drift.windows import Waiting, next_window
from sluice.rollout.samples import Sample

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALARM = PersistenceSettings(needed=2, windows=3)
SMALL = DriftSettings(window_rows=60, min_rows=30)


def judged(at: int, verdict: str, cure: str = "train") -> Judgement:
    return Judgement(
        window=f"w{at}",
        first=str(10 * at),
        last=str(10 * at + 9),
        num_rows=10,
        at=NOW + timedelta(days=at),
        verdict=verdict,
        reason=f"reason <{at}>.",
        remedy="",
        columns=("a",) if verdict == "DRIFT" else (),
        cure=cure,
    )


def series(verdicts: str, subject: str = "rows", cure: str = "train") -> list[SubjectWatch]:
    """Return the subject after each of its windows: D, S or I."""
    words = {"D": "DRIFT", "S": "STABLE", "I": "INCONCLUSIVE"}
    watch, found = None, []
    for at, letter in enumerate(verdicts):
        watch = carried_on(watch, subject, judged(at, words[letter], cure), ALARM)
        found.append(watch)
    return found


def episodes(verdicts: str) -> list[str | None]:
    episode, found = None, []
    for watch in series(verdicts):
        episode = episode_of(episode, [watch], "train", candidate="c", now=NOW)
        found.append(episode and episode.id)
    return found


def test_drift_that_stays_is_one_episode_and_drift_that_comes_back_another():
    ids = episodes("SDDDDSSSDD")

    assert [found is not None for found in ids] == [
        *(False, False, True, True, True, True),
        *(False, False, False, True),
    ]
    assert len({found for found in ids if found}) == 2


def test_windows_that_decide_nothing_do_not_end_an_episode():
    ids = episodes("DDIIIDS")

    assert ids[1] is not None
    assert set(ids[1:]) == {ids[1]}


def test_what_training_does_not_mend_asks_for_none():
    slow = series("DD", "latency", "repair")[-1]

    assert episode_of(None, [slow], "train", candidate="c", now=NOW) is None
    repair = episode_of(None, [slow], "repair", candidate="c", now=NOW)
    assert repair is not None
    assert repair.subjects == ("latency",)


def test_the_same_window_again_decides_nothing():
    once = series("D")[-1]

    again = carried_on(once, "rows", judged(0, "DRIFT"), ALARM)

    assert (again.judgements, again.is_new) == (once.judgements, False)
    assert "judged last" in again.said


def whole(*subjects: SubjectWatch) -> DriftWatch:
    return DriftWatch(model="m", version=3, candidate="c", at=NOW, subjects=subjects)


def test_stable_needs_everything_that_is_watched():
    stable, drifted = series("S")[-1], series("D", "requests")[-1]
    silent = carried_on(None, "losses", "No label yet.", ALARM)
    absent = carried_on(None, "latency", "No server.", ALARM, is_watched=False)

    assert whole(stable, absent).verdict == "STABLE"
    assert whole(stable, silent).verdict == "INCONCLUSIVE"
    assert "No label yet." in whole(stable, silent).reason
    assert whole(stable, silent, drifted).verdict == "DRIFT"


def test_too_little_to_judge_is_waiting_and_neither_stable_nor_inconclusive():
    stable, undecided = series("S")[-1], series("I", "requests")[-1]
    few = carried_on(None, "requests", Waiting(reason="One request."), ALARM)
    absent = carried_on(None, "latency", "No server.", ALARM, is_watched=False)

    assert whole(few).verdict == "WAITING"
    assert whole(few, undecided).verdict == "INCONCLUSIVE"
    assert whole(stable, few).verdict == "WAITING"
    assert whole(stable, few).reason == (
        "No drift in new rows of the source. Rows that clients ask about: One request."
    )
    assert whole(absent).verdict == "WAITING"
    assert "No server." in whole(absent).reason
    assert '<span class="tag plain">WAITING</span>' in watch_page(whole(few))


def test_a_subject_that_waits_for_its_next_window_keeps_the_verdict_of_the_last():
    drifted = series("SD")[-1]

    waiting = carried_on(drifted, "rows", Waiting(reason="No new rows yet."), ALARM)

    assert (waiting.verdict, waiting.is_new) == ("DRIFT", False)
    assert waiting.persistence == drifted.persistence


def test_the_page_tells_it_and_no_text_becomes_markup():
    page = watch_page(whole(series("D")[-1], carried_on(None, "losses", "<b>", ALARM)))

    assert "DRIFT" in page
    assert "reason &lt;0&gt;" in page
    assert "<b>Losses" not in page


def waits(index: pd.Index, **given) -> str:
    found = next_window(index, **given)
    assert isinstance(found, Waiting)
    return found.reason


def test_windows_begin_after_the_last_one_and_wait_to_be_full():
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


def test_what_servers_sampled_becomes_tables():
    samples = [
        sample(1),
        sample(2, key="row", features=(5.0, 5.0)),
        sample(3, key="row", features=(5.0, 5.0)),  # asked again: one row
        sample(4, fault="errors"),
        sample(5, arm="challenger", seconds=9.0),
        sample(6, production=None),
        sample(0),
    ]
    known = live.since(samples, NOW)

    asked = live.request_frame(known, ["a", "b"])
    told = live.prediction_frame(known, live.prediction_columns(2))

    assert asked["a"].tolist() == [1.0, 5.0, 5.0]
    assert told.iloc[0].tolist() == [2.0, 3.0]
    assert live.latencies(known).tolist() == [0.01, 0.01, 0.01]
    assert live.request_frame(known, ["a"]).empty
    assert live.prediction_frame([], ["p"]).shape == (0, 1)


def test_a_look_is_worth_it_when_a_window_is_full():
    labels = Labels(index=pd.Index(range(200)), known_until="160", has_losses=True)
    samples = [sample(at) for at in range(1, 50)]

    news = what_is_new(labels, samples, None, SMALL, in_production_since=NOW)
    old = what_is_new(labels, samples, None, SMALL, in_production_since=NOW + timedelta(days=1))

    assert news.subjects == ("rows", "losses", "requests", "latency")
    assert old.subjects == ("rows", "losses")
    later = dataclasses.replace(labels, known_until="180", has_losses=False)
    waits = what_is_new(later, [], None, SMALL, in_production_since=NOW).waits
    assert waits == ("New rows of the source: 19 new rows after 180; a window needs 30.",)
    assert what_is_new(None, [], None, SMALL, in_production_since=NOW).subjects == ()
