"""Sampling functions of Ray Tune as a kind of searched parameter.

This module describes the functions and does not call them, so that settings can be read without
importing Ray.
"""

import math
from collections.abc import Callable
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.special import ndtr, ndtri

from sluice.tuning.conditions import ConditionalParameter, Value, is_number

TuneFunctionName = Literal[
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

_ARGUMENT_NAMES: dict[str, tuple[str, ...]] = {
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
"""Cumulative probability at which the range of a normal distribution starts. The range ends at 1
minus this probability. Both ends are 4.75 standard deviations from the mean. Searchers and plots
need a finite range."""


class TuneFunction(ConditionalParameter):
    """A parameter that a sampling function of ``ray.tune`` samples."""

    kind: Literal["tune"] = "tune"
    function: TuneFunctionName = Field(description="Name of the function in ray.tune.")
    arguments: tuple[int | float, ...] = Field(
        strict=False,
        description="Positional arguments: lower and upper, or mean and sd, followed by q for a "
        "quantized function. The upper end of integers is exclusive unless q is above 1.",
    )

    @model_validator(mode="after")
    def _require_valid_arguments(self) -> Self:
        names = _ARGUMENT_NAMES[self.function]
        if len(self.arguments) != len(names):
            raise ValueError(
                f"{self.function} takes {len(names)} arguments ({', '.join(names)}), got "
                f"{list(self.arguments)}"
            )
        lower_or_mean, upper_or_sd, quantum = self.arguments[0], self.arguments[1], self.quantum
        if self.is_integer and not all(isinstance(argument, int) for argument in self.arguments):
            raise ValueError(f"{self.function} takes integers, got {list(self.arguments)}")
        if quantum is not None and not quantum > 0:
            raise ValueError(f"q must be above 0, got {quantum}")
        if self.is_normal:
            if not upper_or_sd > 0:
                raise ValueError(f"sd must be above 0, got {upper_or_sd}")
        elif self.is_log and not lower_or_mean > 0:
            raise ValueError(f"lower must be above 0 for {self.function}, got {lower_or_mean}")
        elif not self.is_integer and quantum is not None:
            for end in (lower_or_mean, upper_or_sd):
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
        """Whether the logarithm of the values is uniformly distributed."""
        return "log" in self.function

    @property
    def is_normal(self) -> bool:
        """Whether values are normally distributed."""
        return self.function.endswith("randn")

    @property
    def quantum(self) -> float | None:
        """Number of which all values are multiples; None for a continuous function."""
        if self.function.startswith("q"):
            return self.arguments[2]
        return 1 if self.is_integer else None

    @property
    def low(self) -> float:
        """Smallest value."""
        if self.is_normal:
            return self._round_to_quantum(self._normal_quantile(MIN_QUANTILE))
        return self._multiple_near(self.arguments[0], math.ceil)

    @property
    def high(self) -> float:
        """Largest value."""
        if self.is_normal:
            return self._round_to_quantum(self._normal_quantile(1 - MIN_QUANTILE))
        # The upper end of integers is exclusive unless they are quantized.
        is_exclusive = self.is_integer and self.quantum == 1
        return self._multiple_near(self.arguments[1] - is_exclusive, math.floor)

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is in the range and, if there is a quantum, a multiple of it."""
        if not is_number(value) or not self.low <= float(value) <= self.high:  # type: ignore[arg-type]
            return False
        return math.isclose(self._round_to_quantum(float(value)), float(value))  # type: ignore[arg-type]

    def sample(self, rng: np.random.Generator) -> float:
        """Return a random value."""
        return self.value_at(rng.random())

    def value_at(self, position: float) -> float:
        """Return the value nearest to a position of the scale from 0 to 1."""
        if self.is_normal:
            probability = min(max(position, MIN_QUANTILE), 1 - MIN_QUANTILE)
            return self.nearest(self._normal_quantile(probability))
        if self.is_log:
            return self.nearest(self.low * (self.high / self.low) ** position)
        return self.nearest(self.low + position * (self.high - self.low))

    def position(self, value: Value) -> float | None:
        """Return the position of ``value``: its cumulative probability if normally distributed."""
        number = float(value)  # type: ignore[arg-type]
        if self.is_normal:
            mean, sd = self.arguments[:2]
            return float(ndtr((number - mean) / sd))
        if self.is_log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)

    def nearest(self, value: float) -> float:
        """Return the nearest value of the range."""
        clipped = min(max(self._round_to_quantum(value), self.low), self.high)
        return int(clipped) if self.is_integer else float(clipped)

    def _normal_quantile(self, probability: float) -> float:
        """Return the value of the normal distribution at a cumulative probability."""
        mean, sd = self.arguments[:2]
        return mean + sd * float(ndtri(probability))

    def _round_to_quantum(self, value: float) -> float:
        """Return the nearest multiple of the quantum."""
        return value if self.quantum is None else self._multiple(round(value / self.quantum))

    def _multiple_near(self, end: float, rounding: Callable[[float], int]) -> float:
        """Return the end of the range, rounded to a multiple of the quantum inside the range."""
        if self.quantum is None:
            return float(end)
        nearest = round(end / self.quantum)
        is_multiple = math.isclose(end / self.quantum, nearest)
        return self._multiple(nearest if is_multiple else rounding(end / self.quantum))

    def _multiple(self, count: int) -> float:
        """Return ``count`` times the quantum, without rounding errors in the decimals."""
        # In floating point 3 times 0.1 is 0.30000000000000004, but a user writes 0.3.
        assert self.quantum is not None
        return float(f"{count * self.quantum:.12g}")
