import itertools

import pytest

from sluice.config.drift_settings import AlarmDebounceSettings
from sluice.drift.alarm_debounce import debounce_alarm

WORDS = {"D": "DRIFT", "S": "STABLE", "?": "INCONCLUSIVE"}
TWO_OF_THREE = AlarmDebounceSettings(min_drifted=2, num_windows=3)


def alarm(history: str, settings: AlarmDebounceSettings = TWO_OF_THREE) -> str:
    return debounce_alarm([WORDS[letter] for letter in history], settings).alarm


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ("", "INCONCLUSIVE"),
        ("S", "QUIET"),
        ("D", "QUIET"),
        ("?", "QUIET"),
        ("DD", "ALARM"),
        ("DSD", "ALARM"),
        ("DSS", "QUIET"),
        ("D?S", "INCONCLUSIVE"),
        ("??S", "INCONCLUSIVE"),
        ("?SS", "QUIET"),
        ("DD?", "ALARM"),
        ("DDSS", "QUIET"),
        ("SSSDD", "ALARM"),
        ("DDDSSS", "QUIET"),
    ],
)
def test_two_of_three_windows_raise_the_alarm(history, expected):
    assert alarm(history) == expected


def test_every_history_agrees_with_counting():
    for k, n in ((1, 1), (1, 3), (2, 3), (3, 3)):
        settings = AlarmDebounceSettings(min_drifted=k, num_windows=n)
        for length in range(1, 6):
            for letters in itertools.product("DS?", repeat=length):
                last = letters[-n:]
                # What any truth behind the undecided windows would say.
                truths = {
                    sum(letter == "D" for letter in last) + extra >= k
                    for extra in (0, last.count("?"))
                }
                expected = (
                    "INCONCLUSIVE" if len(truths) == 2 else "ALARM" if truths == {True} else "QUIET"
                )
                assert alarm("".join(letters), settings) == expected


def test_the_reason_counts():
    found = debounce_alarm(["DRIFT", "INCONCLUSIVE", "STABLE"], TWO_OF_THREE)

    assert (found.drifted, found.inconclusive, found.counted) == (1, 1, 3)
    assert "1 of the last 3 windows drifted and 1 is inconclusive" in found.reason


def test_more_needed_than_counted_is_refused():
    with pytest.raises(ValueError, match=r"must not exceed num_windows \(3\), got 4"):
        AlarmDebounceSettings(min_drifted=4, num_windows=3)
