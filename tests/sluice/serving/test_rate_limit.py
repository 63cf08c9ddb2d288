"""Rate limit of requests."""

from sluice.serving.http_errors import TooManyRequests
from sluice.serving.rate_limit import RateLimit


def passed(limit: RateLimit, *moments: float) -> list[bool]:
    found = []
    for moment in moments:
        try:
            limit.require(moment)
        except TooManyRequests:
            found.append(False)
        else:
            found.append(True)
    return found


def test_a_burst_passes_and_the_rate_refills_it() -> None:
    limit = RateLimit(per_s=2, burst=3)

    assert passed(limit, 0, 0, 0, 0) == [True, True, True, False]
    assert passed(limit, 0.4, 0.5, 0.6) == [False, True, False]
    assert passed(limit, *[100.0] * 4) == [True, True, True, False]


def test_a_clock_that_goes_back_refills_nothing() -> None:
    limit = RateLimit(per_s=1, burst=1)

    assert passed(limit, 10, 5, 5.5, 6) == [True, False, False, True]
