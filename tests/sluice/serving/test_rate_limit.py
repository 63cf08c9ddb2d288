"""The rate limit allows bursts and refills by elapsed time."""

from sluice.serving.http_errors import TooManyRequests
from sluice.serving.rate_limit import RateLimit


def admit_requests(limit: RateLimit, *moments: float) -> list[bool]:
    admitted = []
    for moment in moments:
        try:
            limit.require(moment)
        except TooManyRequests:
            admitted.append(False)
        else:
            admitted.append(True)
    return admitted


def test_a_burst_is_admitted_and_refilled_at_the_rate() -> None:
    limit = RateLimit(per_s=2, burst=3)

    assert admit_requests(limit, 0, 0, 0, 0) == [True, True, True, False]
    assert admit_requests(limit, 0.4, 0.5, 0.6) == [False, True, False]
    assert admit_requests(limit, *[100.0] * 4) == [True, True, True, False]


def test_a_clock_that_goes_backwards_refills_nothing() -> None:
    limit = RateLimit(per_s=1, burst=1)

    assert admit_requests(limit, 10, 5, 5.5, 6) == [True, False, False, True]
