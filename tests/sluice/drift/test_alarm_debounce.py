"""An alarm is raised when k of the last n windows drifted."""

import itertools

import pytest

from sluice.config.drift_settings import AlarmDebounceSettings
from sluice.drift.alarm_debounce import debounce_alarm

VERDICTS = {"D": "DRIFT", "S": "STABLE", "?": "INCONCLUSIVE"}
TWO_OF_THREE = AlarmDebounceSettings(min_drifted=2, num_windows=3)


def alarm(history: str, settings: AlarmDebounceSettings = TWO_OF_THREE) -> str:
    return debounce_alarm([VERDICTS[letter] for letter in history], settings).alarm


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


def test_the_alarm_of_every_history_equals_a_count_of_drifted_windows():
    for k, n in ((1, 1), (1, 3), (2, 3), (3, 3)):
        settings = AlarmDebounceSettings(min_drifted=k, num_windows=n)
        for length in range(1, 6):
            for letters in itertools.product("DS?", repeat=length):
                last = letters[-n:]
                # Alarms if inconclusive windows were all stable or all drifted.
                possible_alarms = {
                    sum(letter == "D" for letter in last) + extra >= k
                    for extra in (0, last.count("?"))
                }
                expected = (
                    "INCONCLUSIVE"
                    if len(possible_alarms) == 2
                    else "ALARM"
                    if possible_alarms == {True}
                    else "QUIET"
                )
                assert alarm("".join(letters), settings) == expected


def test_the_reason_states_drifted_and_inconclusive_windows():
    result = debounce_alarm(["DRIFT", "INCONCLUSIVE", "STABLE"], TWO_OF_THREE)

    assert (result.drifted, result.inconclusive, result.counted) == (1, 1, 3)
    assert "1 of the last 3 windows drifted and 1 is inconclusive" in result.reason


def test_min_drifted_above_num_windows_is_refused():
    with pytest.raises(ValueError, match=r"must not exceed num_windows \(3\), got 4"):
        AlarmDebounceSettings(min_drifted=4, num_windows=3)
