"""Admission control: limits how much of a server the clients with one token may use.

Three resources are limited: the rate of predictions, the memory of request bodies being read,
and the number of concurrent predictions. If there are several tokens, memory and concurrent
predictions have a dynamic threshold: a token may use only as much as it leaves free for the other
tokens. Then one greedy token gets half of the resource, and two greedy tokens together get two
thirds. A single token gets everything. Several clients may share a token, so a stalled body is
dropped when another body of its token needs the memory.

Source:
    A. K. Choudhury and E. L. Hahne, "Dynamic queue length thresholds for shared-memory packet
    switches", IEEE/ACM Transactions on Networking 6(2), 1998.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

from sluice.serving.http_errors import Overloaded
from sluice.serving.rate_limit import RateLimit
from sluice.serving.settings import ServingSettings
from sluice.serving.tokens import Tokens

_READ_AHEAD_BYTES = 65_536
"""Minimum memory that is reserved for a body that is being read [bytes]. The server reads ahead by
this amount."""
_STALLED_S = 0.5
"""Time in which a body must receive ``_READ_AHEAD_BYTES`` [s]. A slower body counts as stalled, and
may be dropped for another body of the same token. If the time were shorter, bodies that all arrive
at full speed would drop each other."""


class FairShare:
    """A capacity shared by several tokens (the holders); used by the event loop only."""

    def __init__(self, capacity: int) -> None:
        self.used = 0
        """Reserved amount of all holders."""

        self._capacity = capacity
        self._used_by_holder: Counter[str] = Counter()

    def take(self, holder: str, amount: int, *, is_shared: bool) -> bool:
        """Reserve an amount. Return False if it is not free or exceeds the share of the holder.

        Args:
            holder: Name of the token.
            amount: Amount to reserve.
            is_shared: Whether other tokens share the capacity.
        """
        free_after = self._capacity - self.used - amount
        used_after = self._used_by_holder[holder] + amount
        # A holder that has reserved nothing may take any amount that is free.
        if free_after < 0 or (is_shared and used_after > max(free_after, amount)):
            return False
        self.used += amount
        self._used_by_holder[holder] = used_after
        return True

    def give_back(self, holder: str, amount: int) -> None:
        """Release an amount that the holder reserved."""
        self.used -= amount
        self._used_by_holder[holder] -= amount
        if not self._used_by_holder[holder]:
            del self._used_by_holder[holder]


class BodyMemory:
    """Memory of all bodies that are being read."""

    def __init__(self, capacity: int) -> None:
        self._share = FairShare(capacity)
        self._readings: dict[BodyReading, float] = {}
        """Time of the last progress of each body [s, monotonic]; the body that has been stalled
        longest is first."""

    def record_progress(self, reading: "BodyReading") -> None:
        """Record that a body made progress or was added."""
        self._readings.pop(reading, None)
        self._readings[reading] = time.monotonic()

    def take(self, reading: "BodyReading", amount: int, *, is_shared: bool) -> bool:
        """Reserve memory for a body. If too little is free, drop stalled bodies of its token.

        Return False if too little memory is free and no other body of this token is stalled.
        """
        while not self._share.take(reading.holder, amount, is_shared=is_shared):
            stalled_reading = self._longest_stalled(reading)
            if stalled_reading is None:
                return False
            self.remove(stalled_reading)
            stalled_reading.evict()
        return True

    def remove(self, reading: "BodyReading") -> None:
        """Release all memory of a body."""
        if self._readings.pop(reading, None) is not None:
            self._share.give_back(reading.holder, reading.reserved_bytes)

    def _longest_stalled(self, new_reading: "BodyReading") -> "BodyReading | None":
        """Return the longest stalled body with the token of ``new_reading``, or None."""
        stalled_before = time.monotonic() - _STALLED_S
        for reading, last_progress_at in self._readings.items():
            if last_progress_at > stalled_before:
                return None
            if (
                reading is not new_reading
                and reading.holder == new_reading.holder
                and reading.reserved_bytes
            ):
                return reading
        return None


class BodyReading:
    """One body that is being read. Memory is reserved as the bytes of the body arrive."""

    def __init__(self, memory: BodyMemory, holder: str, *, is_shared: bool) -> None:
        self.holder = holder
        """Name of the token."""

        self.num_bytes = 0
        """Number of bytes that have arrived."""

        self.reserved_bytes = 0
        """Reserved memory [bytes]."""

        self.on_evict: Callable[[], None] = _do_nothing
        """Called when another body gets the memory, so that reading this body stops."""

        self.is_evicted = False
        self._memory = memory
        self._is_shared = is_shared
        self._next_progress_bytes = 0
        """Number of arrived bytes at which progress is recorded again."""

    def grow(self, num_bytes: int) -> None:
        """Record that more bytes arrived.

        Raises:
            Overloaded: Bodies that are being read take too much memory.
        """
        if self.is_evicted:
            raise self.overloaded_error()
        self.num_bytes += num_bytes
        if self.num_bytes >= self._next_progress_bytes:
            self._next_progress_bytes = self.num_bytes + _READ_AHEAD_BYTES
            self._memory.record_progress(self)
        missing_bytes = max(self.num_bytes, _READ_AHEAD_BYTES) - self.reserved_bytes
        if missing_bytes <= 0:
            return
        if not self._memory.take(self, missing_bytes, is_shared=self._is_shared):
            raise self.overloaded_error()
        self.reserved_bytes += missing_bytes

    def evict(self) -> None:
        """Stop reading this body, because its memory was given to another body."""
        self.is_evicted = True
        self.on_evict()

    @staticmethod
    def overloaded_error() -> Overloaded:
        """Return the error for a body that gets no memory, or whose memory another body got."""
        return Overloaded(
            "The memory for request bodies is in use, or the bodies with this token use the share "
            "of the token.",
            fix="Try again in a second. Send each body without pauses, and fewer bodies at once.",
        )


def _do_nothing() -> None:
    """Do nothing; default of ``BodyReading.on_evict``."""


class Admission:
    """Admits or refuses each prediction before it uses resources."""

    def __init__(self, settings: ServingSettings, tokens: Tokens) -> None:
        """Create admission control without requests in progress."""
        self._settings = settings
        self._slots = FairShare(settings.max_in_flight)
        self._memory = BodyMemory(settings.max_body_memory_bytes)
        self._rate_limits: dict[str, tuple[float, RateLimit]] = {}
        """Rate [1/s] and rate limit of each token, by the token's name."""

        self._is_shared = False
        self.set_tokens(tokens)

    @property
    def num_predicting(self) -> int:
        """Number of predictions in progress."""
        return self._slots.used

    def set_tokens(self, tokens: Tokens) -> None:
        """Replace the tokens.

        A token without its own rate gets an equal part of ``settings.requests_per_s``. A token
        whose rate is unchanged keeps the state of its rate limit.
        """
        settings = self._settings
        rate_by_token = {grant.name: grant.requests_per_s for grant in tokens.predict_grants}
        if "predict" in tokens.open_scopes:
            rate_by_token = {"": None}  # clients need no token, and all have the name ""
        self._is_shared = len(rate_by_token) > 1
        old_rates, self._rate_limits = self._rate_limits, {}
        for name, requests_per_s in rate_by_token.items():
            per_s = (
                settings.requests_per_s / len(rate_by_token)
                if requests_per_s is None
                else requests_per_s
            )
            if name in old_rates and old_rates[name][0] == per_s:
                self._rate_limits[name] = old_rates[name]
                continue
            burst = max(1, round(settings.burst_requests * per_s / settings.requests_per_s))
            self._rate_limits[name] = (per_s, RateLimit(per_s=per_s, burst=burst))

    def require_rate(self, holder: str) -> None:
        """Count one prediction against the rate limit of a token.

        Raises:
            TooManyRequests: Predictions arrive too fast.
        """
        rate = self._rate_limits.get(holder)
        if rate is not None:  # None if the token was just removed
            _, limit = rate
            limit.require(time.monotonic())

    @contextlib.contextmanager
    def reserve_body_memory(self, holder: str) -> Iterator[BodyReading]:
        """Account for the memory of a body while the block reads it.

        Raises:
            Overloaded: Bodies use too much memory.
        """
        body = BodyReading(self._memory, holder, is_shared=self._is_shared)
        try:
            body.grow(0)  # reserves the minimum memory
            yield body
        finally:
            self._memory.remove(body)

    @contextlib.contextmanager
    def count_prediction(self, holder: str) -> Iterator[None]:
        """Count a prediction as in progress while the block runs.

        Raises:
            Overloaded: Too many predictions are in progress.
        """
        if not self._slots.take(holder, 1, is_shared=self._is_shared):
            raise Overloaded(
                f"At most {self._settings.max_in_flight} predictions may be in progress. If there "
                "are several tokens, one token may use only as many as it leaves free for the "
                "others. One of these two limits is reached.",
                fix="Try again in a second, with fewer predictions at once.",
            )
        try:
            yield
        finally:
            self._slots.give_back(holder, 1)
