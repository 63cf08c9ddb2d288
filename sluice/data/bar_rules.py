"""Settings of five rules that define when a bar of ticks closes.

Time, tick, volume and dollar bars are defined as in the source. A range bar here contains only
traded prices and is complete at its last tick. Other definitions close a range bar one tick later,
or at a price that was never traded. With such a definition, the label of a bar would be earlier
than the information in the bar.

Source:
    Lopez de Prado (2018), "Advances in Financial Machine Learning", 2.3.1, for all but range bars.
"""

from typing import Annotated, Literal

from pydantic import Field

from sluice.base.settings import Settings


class TimeBars(Settings):
    """One bar for each interval ``[k x seconds, (k + 1) x seconds)`` that contains a tick.

    Intervals are counted from 1970-01-01 00:00, in UTC for ticks with a time zone and in local
    time for ticks without one. The label is the end of the interval, when the bar is known.
    Intervals without ticks have no bar.
    """

    kind: Literal["time"] = "time"
    seconds: int = Field(ge=1, le=86_400, description="Length of a bar; 86,400 is a day [s].")


class TickBars(Settings):
    """A bar closes with its ``num_ticks``-th tick."""

    kind: Literal["tick"] = "tick"
    num_ticks: int = Field(ge=1, le=1_000_000_000, description="Number of ticks in a bar.")


class VolumeBars(Settings):
    """A bar closes with the tick at which its volume reaches ``units``.

    The whole closing tick belongs to the bar, so the next bar starts with a volume of zero.
    """

    kind: Literal["volume"] = "volume"
    units: float = Field(gt=0, description="Volume at which a bar closes [units of size].")


class DollarBars(Settings):
    """A bar closes with the tick at which its traded value reaches ``value``.

    The whole closing tick belongs to the bar, so the next bar starts with a value of zero.
    """

    kind: Literal["dollar"] = "dollar"
    value: float = Field(
        gt=0,
        description="Sum of price x size at which a bar closes [currency of the price].",
    )


class RangeBars(Settings):
    """A bar closes with the tick at which ``high - low`` reaches the range.

    The range is a share of the bar's first price. The closing tick belongs to the bar, so a bar
    that closes with a price jump is wider than the range. The next bar starts with the next tick.
    """

    kind: Literal["range"] = "range"
    tenths_of_bp: int = Field(
        ge=1,
        le=1_000_000,
        description="Range at which a bar closes [tenths of a basis point of its first price].",
    )


BarRule = Annotated[
    TimeBars | TickBars | VolumeBars | DollarBars | RangeBars, Field(discriminator="kind")
]
