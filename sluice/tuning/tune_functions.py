"""Sampling functions of Ray Tune as a kind of searched parameter.

The functions are described here and not called, so that settings can be read without Ray.
"""

import math
from collections.abc import Callable
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.special import ndtr, ndtri

from sluice.tuning.conditions import ConditionalParameter, Value, is_number

TuneName = Literal[
    "uniform",
    "quniform",
    "loguniform",
    "qloguniform",
    "randn",
    "qrandn",
    "randint",
    "qrandint",
    "lograndint",
    "qlograndint",
]

_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "uniform": ("lower", "upper"),
    "quniform": ("lower", "upper", "q"),
    "loguniform": ("lower", "upper"),
    "qloguniform": ("lower", "upper", "q"),
    "randn": ("mean", "sd"),
    "qrandn": ("mean", "sd", "q"),
    "randint": ("lower", "upper"),
    "qrandint": ("lower", "upper", "q"),
    "lograndint": ("lower", "upper"),
    "qlograndint": ("lower", "upper", "q"),
}

MIN_QUANTILE = 1e-6
"""A normal distribution is searched between this quantile and its counterpart, 4.75 standard
deviations from the mean, because searchers and plots need finite ranges."""


class TuneFunction(ConditionalParameter):
    """A sampling function of ``ray.tune`` with its arguments."""

    kind: Literal["tune"] = "tune"
    function: TuneName = Field(description="Name of the function in ray.tune.")
    arguments: tuple[int | float, ...] = Field(
        strict=False,
        description="Positional arguments: lower and upper, or mean and sd, followed by q for a "
        "quantized function. The upper end of integers is exclusive.",
    )

    @model_validator(mode="after")
    def _callable(self) -> Self:
        names = _ARGUMENTS[self.function]
        if len(self.arguments) != len(names):
            raise ValueError(
                f"{self.function} takes {len(names)} arguments ({', '.join(names)}), got "
                f"{list(self.arguments)}"
            )
        first, second, quantum = self.arguments[0], self.arguments[1], self.quantum
        if self.is_integer and not all(isinstance(each, int) for each in self.arguments):
            raise ValueError(f"{self.function} takes integers, got {list(self.arguments)}")
        if quantum is not None and not quantum > 0:
            raise ValueError(f"q must be above 0, got {quantum}")
        if self.is_normal:
            if not second > 0:
                raise ValueError(f"sd must be above 0, got {second}")
        elif self.is_log and not first > 0:
            raise ValueError(f"lower must be above 0 for {self.function}, got {first}")
        elif not self.is_integer and quantum is not None:
            for end in (first, second):
                if not math.isclose(end / quantum, round(end / quantum)):
                    raise ValueError(f"lower and upper must be multiples of q {quantum}, got {end}")
        if not self.low < self.high:
            raise ValueError(
                f"the range must not be empty: the smallest value {self.low} must be below the "
                f"largest {self.high}"
            )
        return self

    @property
    def is_integer(self) -> bool:
        """Whether values are integers."""
        return self.function.endswith("int")

    @property
    def is_log(self) -> bool:
        """Whether the logarithm is uniformly distributed."""
        return "log" in self.function

    @property
    def is_normal(self) -> bool:
        """Whether values are normally distributed."""
        return self.function.endswith("randn")

    @property
    def quantum(self) -> float | None:
        """Values are multiples of the quantum; None for a continuous function."""
        if self.function.startswith("q"):
            return self.arguments[2]
        return 1 if self.is_integer else None

    @property
    def low(self) -> float:
        """Smallest value."""
        if self.is_normal:
            return self._on_grid(self._normal(MIN_QUANTILE))
        return self._multiple(self.arguments[0], math.ceil)

    @property
    def high(self) -> float:
        """Largest value."""
        if self.is_normal:
            return self._on_grid(self._normal(1 - MIN_QUANTILE))
        # The upper end is exclusive for integers, unless they are quantized.
        exclusive = self.is_integer and self.quantum == 1
        return self._multiple(self.arguments[1] - exclusive, math.floor)

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is in the range."""
        if not is_number(value) or not self.low <= float(value) <= self.high:  # type: ignore[arg-type]
            return False
        return math.isclose(self._on_grid(float(value)), float(value))  # type: ignore[arg-type]

    def sample(self, rng: np.random.Generator) -> float:
        """Return a random value."""
        return self.at(rng.random())

    def at(self, place: float) -> float:
        """Return the value nearest to a position of the scale from 0 to 1."""
        if self.is_normal:
            inside = min(max(place, MIN_QUANTILE), 1 - MIN_QUANTILE)
            return self.nearest(self._normal(inside))
        if self.is_log:
            return self.nearest(self.low * (self.high / self.low) ** place)
        return self.nearest(self.low + place * (self.high - self.low))

    def place(self, value: Value) -> float | None:
        """Return the position of ``value`` on the scale; the quantile for a normal distribution."""
        number = float(value)  # type: ignore[arg-type]
        if self.is_normal:
            mean, sd = self.arguments[:2]
            return float(ndtr((number - mean) / sd))
        if self.is_log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)

    def nearest(self, value: float) -> float:
        """Return the nearest value of the range."""
        inside = min(max(self._on_grid(value), self.low), self.high)
        return int(inside) if self.is_integer else float(inside)

    def _normal(self, quantile: float) -> float:
        mean, sd = self.arguments[:2]
        return mean + sd * float(ndtri(quantile))

    def _on_grid(self, value: float) -> float:
        return value if self.quantum is None else self._times(round(value / self.quantum))

    def _multiple(self, end: float, rounded: Callable[[float], int]) -> float:
        if self.quantum is None:
            return float(end)
        near = round(end / self.quantum)
        count = near if math.isclose(end / self.quantum, near) else rounded(end / self.quantum)
        return self._times(count)

    def _times(self, count: int) -> float:
        # 3 times 0.1 is 0.30000000000000004, but a file contains 0.3.
        assert self.quantum is not None
        return float(f"{count * self.quantum:.12g}")
