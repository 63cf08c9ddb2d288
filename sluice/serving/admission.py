"""How much of a server the holders of one token may use at once, and how fast.

Three things are limited: the rate of predictions, the memory of bodies that are being read, and the
predictions under way. Where several tokens exist, one of them gets the last two only as far as it
leaves as much free for the others (a dynamic threshold): a token that takes all it can holds a
half, two of them two thirds. Where one exists, it gets everything; so that one of its holders does
not keep the memory from the others, a body that stalled makes way for one that arrives.

Source:
    A. K. Choudhury and E. L. Hahne, "Dynamic queue length thresholds for shared-memory packet
    switches", IEEE/ACM Transactions on Networking 6(2), 1998.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

from sluice.serving.limits import RateLimit
from sluice.serving.refusals import Overloaded
from sluice.serving.settings import ServingSettings
from sluice.serving.tokens import Tokens

_READER_BYTES = 65_536
"""What a body that is being read costs at least: the server reads ahead as much."""
_STALLED_S = 0.5
"""Time without so many bytes after which a body makes way for another one of its token [s]. If it
were shorter, bodies that all arrive at full speed would end each other."""


class FairShare:
    """A capacity that several holders share; touched by the event loop only."""

    def __init__(self, capacity: int) -> None:
        self.used = 0
        self._capacity = capacity
        self._held: Counter[str] = Counter()

    def take(self, holder: str, amount: int, *, is_shared: bool) -> bool:
        """Take a part; False when it is not free, or more than ``holder`` would leave free.

        Args:
            holder: Name of the token.
            amount: How much.
            is_shared: Whether others may need some.
        """
        free = self._capacity - self.used - amount
        if free < 0 or (is_shared and self._held[holder] + amount > max(free, amount)):
            return False
        self.used += amount
        self._held[holder] += amount
        return True

    def give_back(self, holder: str, amount: int) -> None:
        """Return a part."""
        self.used -= amount
        self._held[holder] -= amount
        if not self._held[holder]:
            del self._held[holder]


class BodyMemory:
    """The memory of all bodies that are being read."""

    def __init__(self, capacity: int) -> None:
        self._share = FairShare(capacity)
        self._readings: dict[BodyReading, float] = {}
        """When each made progress [s, monotonic]; the first has made none for longest."""

    def advance(self, reading: "BodyReading") -> None:
        """Note that a body made progress, or is new."""
        self._readings.pop(reading, None)
        self._readings[reading] = time.monotonic()

    def take(self, reading: "BodyReading", amount: int, *, is_shared: bool) -> bool:
        """Take more for a body, from those that stalled if need be; False when there is none."""
        while not self._share.take(reading.holder, amount, is_shared=is_shared):
            stalled = self._stalled(reading)
            if stalled is None:
                return False
            self.remove(stalled)
            stalled.end()
        return True

    def remove(self, reading: "BodyReading") -> None:
        """Return all that a body took."""
        if self._readings.pop(reading, None) is not None:
            self._share.give_back(reading.holder, reading.taken)

    def _stalled(self, other: "BodyReading") -> "BodyReading | None":
        """Return the body of the same token that has made no progress for longest."""
        before = time.monotonic() - _STALLED_S
        for reading, advanced_at in self._readings.items():
            if advanced_at > before:
                return None
            if reading is not other and reading.holder == other.holder and reading.taken:
                return reading
        return None


class BodyReading:
    """One body that is being read: its memory is taken as it arrives."""

    def __init__(self, memory: BodyMemory, holder: str, *, is_shared: bool) -> None:
        self.holder = holder
        self.num_bytes = 0
        self.taken = 0
        self.on_end: Callable[[], None] = _nothing
        """Called when another body needs the memory: whoever reads this one must stop."""

        self.is_ended = False
        self._memory = memory
        self._is_shared = is_shared
        self._next_advance = 0

    def grow(self, num_bytes: int) -> None:
        """Note that more of it arrived.

        Raises:
            Overloaded: Bodies that are being read take too much memory.
        """
        if self.is_ended:
            raise self.refusal()
        self.num_bytes += num_bytes
        if self.num_bytes >= self._next_advance:
            self._next_advance = self.num_bytes + _READER_BYTES
            self._memory.advance(self)
        more = max(self.num_bytes, _READER_BYTES) - self.taken
        if more <= 0:
            return
        if not self._memory.take(self, more, is_shared=self._is_shared):
            raise self.refusal()
        self.taken += more

    def end(self) -> None:
        """Stop reading: another body gets the memory."""
        self.is_ended = True
        self.on_end()

    @staticmethod
    def refusal() -> Overloaded:
        """Return the error of a body for which there is no memory."""
        return Overloaded(
            "The bodies of all requests together take the memory that they may have, or this "
            "token's take its share.",
            fix="Try again in a second; send bodies at once, with fewer of them at a time.",
        )


def _nothing() -> None:
    """Nobody reads yet."""


class Admission:
    """Decides about each prediction before it costs anything."""

    def __init__(self, settings: ServingSettings, tokens: Tokens) -> None:
        """Start with nothing under way."""
        self._settings = settings
        self._slots = FairShare(settings.max_in_flight)
        self._memory = BodyMemory(settings.max_body_memory_bytes)
        self._rates: dict[str, tuple[float, RateLimit]] = {}
        self._is_shared = False
        self.set_tokens(tokens)

    @property
    def predicting(self) -> int:
        """Predictions under way."""
        return self._slots.used

    def set_tokens(self, tokens: Tokens) -> None:
        """Divide the rate anew; a token whose rate stays keeps what is left of its burst."""
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
            TooMany: They come too fast.
        """
        found = self._rates.get(holder)
        if found is not None:  # else its token was removed a moment ago
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
        """Count a prediction as under way.

        Raises:
            Overloaded: Too many are under way.
        """
        if not self._slots.take(holder, 1, is_shared=self._is_shared):
            raise Overloaded(
                f"At most {self._settings.max_in_flight} predictions are computed at once, of one "
                "token as many as it leaves free for others, and so many are under way.",
                fix="Try again in a second, with fewer at once.",
            )
        try:
            yield
        finally:
            self._slots.give_back(holder, 1)
