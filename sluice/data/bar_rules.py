"""When a bar of ticks is full: five rules (DATA-2).

Time, tick, volume and dollar bars are those of the source; a range bar here holds only prices that
were traded, and is known when its last tick is. (Others close it one tick later, or put its close
at a price that nobody paid: then its label would be earlier than what it knows.)

Source:
    Lopez de Prado (2018), "Advances in Financial Machine Learning", 2.3.1, for all but range bars.
"""

from typing import Annotated, Literal

from pydantic import Field

from sluice.base.settings import Settings


class TimeBars(Settings):
    """One bar for each interval ``[k x seconds, (k + 1) x seconds)`` with a tick in it.

    Intervals are counted from 1970-01-01 00:00, in UTC where the ticks have a time zone and on
    their own clock where they have none. The label is the interval's end, when the bar is known. An
    interval without ticks has no bar: nothing is filled in.
    """

    kind: Literal["time"] = "time"
    seconds: int = Field(ge=1, le=86_400, description="Length of a bar; 86,400 is a day [s].")


class TickBars(Settings):
    """A bar closes with its ``num_ticks``-th tick."""

    kind: Literal["tick"] = "tick"
    num_ticks: int = Field(ge=1, le=1_000_000_000, description="Ticks in a bar.")


class VolumeBars(Settings):
    """A bar closes with the tick that brings its volume to ``units`` or above.

    That tick belongs to the bar whole: the next bar begins at zero.
    """

    kind: Literal["volume"] = "volume"
    units: float = Field(gt=0, description="Volume that closes a bar [units of size].")


class DollarBars(Settings):
    """A bar closes with the tick that brings its traded value to ``value`` or above.

    That tick belongs to the bar whole: the next bar begins at zero.
    """

    kind: Literal["dollar"] = "dollar"
    value: float = Field(
        gt=0, description="Sum of price x size that closes a bar [currency of the price]."
    )


class RangeBars(Settings):
    """A bar closes with the tick that brings ``high - low`` to the range or above.

    The range is that share of the bar's own first price. The closing tick belongs to the bar, so
    a jump makes a bar wider than the range; the next bar begins with the next tick.
    """

    kind: Literal["range"] = "range"
    tenths_of_bp: int = Field(
        ge=1,
        le=1_000_000,
        description="Range that closes a bar [tenths of a basis point of its first price].",
    )


BarRule = Annotated[
    TimeBars | TickBars | VolumeBars | DollarBars | RangeBars, Field(discriminator="kind")
]
