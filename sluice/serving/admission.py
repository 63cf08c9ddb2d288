"""Admission control: how much of a server the holders of one token may use, and how fast.

Three resources are limited: the rate of predictions, the memory of request bodies being read,
and concurrent predictions. With several tokens, one of them gets the last two only as far as it
leaves the same amount free for the others (a dynamic threshold): a token that takes all it can
gets a half, two of them get two thirds. A single token gets everything; so that one of its
holders does not keep the memory from the others, a stalled body is dropped for a new one.

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

_READER_BYTES = 65_536
"""Smallest memory of a body that is being read: the server reads ahead by this amount."""
_STALLED_S = 0.5
"""A body that received fewer than ``_READER_BYTES`` in this time may be dropped for another one of
its token [s]. With a shorter time, bodies that all arrive at full speed would drop each other."""


class FairShare:
    """A capacity shared by several holders; used by the event loop only."""

    def __init__(self, capacity: int) -> None:
        self.used = 0
        self._capacity = capacity
        self._held: Counter[str] = Counter()

    def take(self, holder: str, amount: int, *, is_shared: bool) -> bool:
        """Take an amount; False when it is not free, or exceeds the share of ``holder``.

        Args:
            holder: Name of the token.
            amount: Amount to take.
            is_shared: Whether other tokens share the capacity.
        """
        free = self._capacity - self.used - amount
        if free < 0 or (is_shared and self._held[holder] + amount > max(free, amount)):
            return False
        self.used += amount
        self._held[holder] += amount
        return True

    def give_back(self, holder: str, amount: int) -> None:
        """Return an amount."""
        self.used -= amount
        self._held[holder] -= amount
        if not self._held[holder]:
            del self._held[holder]


class BodyMemory:
    """Memory of all bodies that are being read."""

    def __init__(self, capacity: int) -> None:
        self._share = FairShare(capacity)
        self._readings: dict[BodyReading, float] = {}
        """Time of the last progress of each body [s, monotonic]; the longest stalled one is
        first."""

    def advance(self, reading: "BodyReading") -> None:
        """Record that a body made progress, or is new."""
        self._readings.pop(reading, None)
        self._readings[reading] = time.monotonic()

    def take(self, reading: "BodyReading", amount: int, *, is_shared: bool) -> bool:
        """Take memory for a body, dropping stalled ones if needed; False when none is free."""
        while not self._share.take(reading.holder, amount, is_shared=is_shared):
            stalled = self._stalled(reading)
            if stalled is None:
                return False
            self.remove(stalled)
            stalled.end()
        return True

    def remove(self, reading: "BodyReading") -> None:
        """Return all memory of a body."""
        if self._readings.pop(reading, None) is not None:
            self._share.give_back(reading.holder, reading.taken)

    def _stalled(self, other: "BodyReading") -> "BodyReading | None":
        """Return the body of the same token that stalled for longest."""
        before = time.monotonic() - _STALLED_S
        for reading, advanced_at in self._readings.items():
            if advanced_at > before:
                return None
            if reading is not other and reading.holder == other.holder and reading.taken:
                return reading
        return None


class BodyReading:
    """One body that is being read; its memory is taken as it arrives."""

    def __init__(self, memory: BodyMemory, holder: str, *, is_shared: bool) -> None:
        self.holder = holder
        self.num_bytes = 0
        self.taken = 0
        self.on_end: Callable[[], None] = _nothing
        """Called when another body needs the memory: reading this one must stop."""

        self.is_ended = False
        self._memory = memory
        self._is_shared = is_shared
        self._next_advance = 0

    def grow(self, num_bytes: int) -> None:
        """Record that more bytes arrived.

        Raises:
            Overloaded: Bodies that are being read take too much memory.
        """
        if self.is_ended:
            raise self.error()
        self.num_bytes += num_bytes
        if self.num_bytes >= self._next_advance:
            self._next_advance = self.num_bytes + _READER_BYTES
            self._memory.advance(self)
        more = max(self.num_bytes, _READER_BYTES) - self.taken
        if more <= 0:
            return
        if not self._memory.take(self, more, is_shared=self._is_shared):
            raise self.error()
        self.taken += more

    def end(self) -> None:
        """Stop reading, so that another body gets the memory."""
        self.is_ended = True
        self.on_end()

    @staticmethod
    def error() -> Overloaded:
        """Return the error for a body without memory."""
        return Overloaded(
            "The bodies of all requests together use all of their memory, or those of this token "
            "use its share.",
            fix="Try again in a second; send each body without pauses, and fewer at a time.",
        )


def _nothing() -> None:
    """Do nothing: the body is not read yet."""


class Admission:
    """Admits or refuses each prediction before it costs anything."""

    def __init__(self, settings: ServingSettings, tokens: Tokens) -> None:
        """Start without requests in progress."""
        self._settings = settings
        self._slots = FairShare(settings.max_in_flight)
        self._memory = BodyMemory(settings.max_body_memory_bytes)
        self._rates: dict[str, tuple[float, RateLimit]] = {}
        self._is_shared = False
        self.set_tokens(tokens)

    @property
    def predicting(self) -> int:
        """Number of predictions in progress."""
        return self._slots.used

    def set_tokens(self, tokens: Tokens) -> None:
        """Divide the rate again; a token with the same rate keeps what is left of its burst."""
        settings = self._settings
        clients = {grant.name: grant.requests_per_s for grant in tokens.clients}
        if "predict" in tokens.open_scopes:
            clients = {"": None}
        self._is_shared = len(clients) > 1
        before, self._rates = self._rates, {}
        for name, given in clients.items():
            per_s = settings.requests_per_s / len(clients) if given is None else given
            if name in before and before[name][0] == per_s:
                self._rates[name] = before[name]
                continue
            burst = max(1, round(settings.burst_requests * per_s / settings.requests_per_s))
            self._rates[name] = (per_s, RateLimit(per_s=per_s, burst=burst))

    def require_rate(self, holder: str) -> None:
        """Count one prediction.

        Raises:
            TooManyRequests: Predictions arrive too fast.
        """
        found = self._rates.get(holder)
        if found is not None:  # None when the token was just removed
            found[1].require(time.monotonic())

    @contextlib.contextmanager
    def reading(self, holder: str) -> Iterator[BodyReading]:
        """Count a body as being read.

        Raises:
            Overloaded: Bodies take too much memory.
        """
        body = BodyReading(self._memory, holder, is_shared=self._is_shared)
        try:
            body.grow(0)
            yield body
        finally:
            self._memory.remove(body)

    @contextlib.contextmanager
    def computing(self, holder: str) -> Iterator[None]:
        """Count a prediction as in progress.

        Raises:
            Overloaded: Too many are in progress.
        """
        if not self._slots.take(holder, 1, is_shared=self._is_shared):
            raise Overloaded(
                f"At most {self._settings.max_in_flight} predictions may be in progress, for one "
                "token as many as it leaves free for others; that limit is reached.",
                fix="Try again in a second, with fewer at once.",
            )
        try:
            yield
        finally:
            self._slots.give_back(holder, 1)
