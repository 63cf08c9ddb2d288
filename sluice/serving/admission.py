"""How much of a server the holders of one token may use at once, and how fast.

Three things are limited: the rate of predictions, the memory of bodies that are being read, and the
predictions under way. Where several tokens exist, one of them gets the last two only as far as it
leaves as much free for the others (a dynamic threshold): a token that takes all it can holds a
half, two of them two thirds. Where one exists, it gets everything.

Source:
    A. K. Choudhury and E. L. Hahne, "Dynamic queue length thresholds for shared-memory packet
    switches", IEEE/ACM Transactions on Networking 6(2), 1998.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator

from sluice.serving.limits import RateLimit
from sluice.serving.refusals import Overloaded
from sluice.serving.settings import ServingSettings
from sluice.serving.tokens import Tokens

_READER_BYTES = 65_536
"""What a body that is being read costs at least: the server reads ahead as much."""


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


class BodyReading:
    """One body that is being read: its memory is taken as it arrives."""

    def __init__(self, memory: FairShare, holder: str, *, is_shared: bool) -> None:
        self._memory = memory
        self._holder = holder
        self._is_shared = is_shared
        self.num_bytes = 0
        self.taken = 0

    def grow(self, num_bytes: int) -> None:
        """Note that more of it arrived.

        Raises:
            Overloaded: Bodies that are being read take too much memory.
        """
        self.num_bytes += num_bytes
        more = max(self.num_bytes, _READER_BYTES) - self.taken
        if more <= 0:
            return
        if not self._memory.take(self._holder, more, is_shared=self._is_shared):
            raise Overloaded(
                "The bodies of all requests together take the memory that they may have, or this "
                "token's take its share.",
                fix="Try again in a second; send bodies at once, with fewer of them at a time.",
            )
        self.taken += more


class Admission:
    """Decides about each prediction before it costs anything."""

    def __init__(self, settings: ServingSettings, tokens: Tokens) -> None:
        """Start with nothing under way."""
        self._settings = settings
        self._slots = FairShare(settings.max_in_flight)
        self._memory = FairShare(settings.max_body_memory_bytes)
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
            self._memory.give_back(holder, body.taken)

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
