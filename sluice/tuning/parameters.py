"""Kinds of searched parameters, each with its range, scale and condition.

Every kind with ordered values maps them to positions on a scale from 0 to 1. Log-uniform parameters
and powers of two are mapped by the logarithm, normally distributed parameters by the cumulative
probability, and all others linearly. Edges of the range and importance are measured on this scale.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from sluice.tuning.conditions import ConditionalParameter, is_number, option_index
from sluice.tuning.conditions import Params as Params
from sluice.tuning.conditions import Value as Value
from sluice.tuning.tune_functions import TuneFunction


class _Range(ConditionalParameter):
    """Base class of parameters between ``low`` and ``high``."""

    @model_validator(mode="after")
    def _require_range(self) -> Self:
        low, high = self.low, self.high  # type: ignore[attr-defined]
        if not low < high:
            raise ValueError(f"the range must not be empty: low {low} must be below high {high}")
        return self


_MIN_RATIO = 1 + 1e-6
"""Minimum of ``high`` divided by ``low`` of a logarithmic range. With a smaller ratio, positions on
the scale are rounding errors."""


class LogUniform(_Range):
    """A positive number whose order of magnitude is unknown; its logarithm is sampled uniformly."""

    kind: Literal["log_uniform"] = "log_uniform"
    low: float = Field(gt=0, description="Smallest value.")
    high: float = Field(gt=0, description="Largest value.")
    may_be_off: bool = Field(
        False, description="Whether the parameter may also be off, which is the value 0."
    )

    @model_validator(mode="after")
    def _require_scale(self) -> Self:
        if not _MIN_RATIO <= self.high / self.low < math.inf:
            raise ValueError(
                f"high divided by low must be finite and at least {_MIN_RATIO}, got low "
                f"{self.low}, high {self.high}"
            )
        return self

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is in the range, or is 0 and the parameter may be off."""
        return _is_within(self, value) or (self.may_be_off and is_number(value) and not value)

    def sample(self, rng: np.random.Generator) -> float:
        """Return a random value; 0 with probability 1/4 if the parameter may be off."""
        is_off, position = rng.random() < 0.25, rng.random()
        return 0.0 if self.may_be_off and is_off else self.value_at(position)

    def value_at(self, position: float) -> float:
        """Return the value at a position of the scale from 0 to 1."""
        value = math.exp(math.log(self.low) + position * math.log(self.high / self.low))
        return min(max(value, self.low), self.high)

    def position(self, value: Value) -> float | None:
        """Return the position of ``value`` on the scale; None if the parameter is off."""
        return (
            math.log(_number(value) / self.low) / math.log(self.high / self.low) if value else None
        )

    def nearest(self, value: float) -> float:
        """Return the nearest value of the range. If the parameter may be off, 0 stays 0."""
        return 0.0 if self.may_be_off and not value else min(max(value, self.low), self.high)


class Uniform(_Range):
    """A number whose order of magnitude is known; it is sampled uniformly."""

    kind: Literal["uniform"] = "uniform"
    low: float = Field(description="Smallest value.")
    high: float = Field(description="Largest value.")

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is in the range."""
        return _is_within(self, value)

    def sample(self, rng: np.random.Generator) -> float:
        """Return a random value."""
        return self.value_at(rng.random())

    def value_at(self, position: float) -> float:
        """Return the value at a position of the scale from 0 to 1."""
        return min(max(self.low + position * (self.high - self.low), self.low), self.high)

    def position(self, value: Value) -> float | None:
        """Return the position of ``value`` on the scale."""
        return (_number(value) - self.low) / (self.high - self.low)

    def nearest(self, value: float) -> float:
        """Return the nearest value of the range."""
        return min(max(value, self.low), self.high)


class Integers(_Range):
    """An integer, such as a width that must be a multiple of the number of attention heads."""

    kind: Literal["integers"] = "integers"
    low: int = Field(description="Smallest value.")
    high: int = Field(description="Largest value.")
    multiple_of: int = Field(1, ge=1, description="Only multiples of this number are tried.")

    @model_validator(mode="after")
    def _require_multiples(self) -> Self:
        if self.low % self.multiple_of or self.high % self.multiple_of:
            raise ValueError(
                f"low {self.low} and high {self.high} must be multiples of {self.multiple_of}"
            )
        return self

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is in the range and a multiple of ``multiple_of``."""
        return _is_within(self, value) and not _number(value) % self.multiple_of

    def sample(self, rng: np.random.Generator) -> int:
        """Return a random value."""
        num_steps = (self.high - self.low) // self.multiple_of
        return self.low + self.multiple_of * int(rng.integers(num_steps + 1))

    def value_at(self, position: float) -> int:
        """Return the value nearest to a position of the scale from 0 to 1."""
        num_steps = (self.high - self.low) // self.multiple_of
        return self.low + self.multiple_of * min(max(round(position * num_steps), 0), num_steps)

    def position(self, value: Value) -> float | None:
        """Return the position of ``value`` on the scale."""
        return (_number(value) - self.low) / (self.high - self.low)

    def nearest(self, value: float) -> int:
        """Return the nearest value of the range."""
        return self.value_at((value - self.low) / (self.high - self.low))


class PowersOfTwo(_Range):
    """A power of two, such as a batch size."""

    kind: Literal["powers_of_two"] = "powers_of_two"
    low: int = Field(ge=1, description="Smallest value.")
    high: int = Field(ge=1, description="Largest value.")

    @model_validator(mode="after")
    def _require_powers_of_two(self) -> Self:
        for end in (self.low, self.high):
            if end & (end - 1):
                raise ValueError(f"low and high must be powers of two, got {end}")
        return self

    @property
    def exponents(self) -> tuple[int, int]:
        """Base-2 logarithms of both ends."""
        return self.low.bit_length() - 1, self.high.bit_length() - 1

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is a power of two in the range."""
        return _is_within(self, value) and math.log2(_number(value)).is_integer()

    def sample(self, rng: np.random.Generator) -> int:
        """Return a random value."""
        low, high = self.exponents
        return 1 << int(rng.integers(low, high + 1))

    def value_at(self, position: float) -> int:
        """Return the value nearest to a position of the scale from 0 to 1."""
        low, high = self.exponents
        return 1 << min(max(round(low + position * (high - low)), low), high)

    def position(self, value: Value) -> float | None:
        """Return the position of ``value`` on the scale."""
        low, high = self.exponents
        return (math.log2(_number(value)) - low) / (high - low)

    def nearest(self, value: float) -> int:
        """Return the nearest power of two in the range, on the logarithmic scale."""
        return self.value_at(self.position(max(value, self.low)) or 0.0)


class Choice(ConditionalParameter):
    """One of several values without an order."""

    kind: Literal["choice"] = "choice"
    options: tuple[Value, ...] = Field(min_length=2, strict=False, description="The values.")

    @model_validator(mode="after")
    def _require_distinct_options(self) -> Self:
        if len(set(map(repr, self.options))) != len(self.options):
            raise ValueError(f"options must be distinct, got {list(self.options)}")
        return self

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is an option."""
        return option_index(self.options, value) is not None

    def sample(self, rng: np.random.Generator) -> Value:
        """Return a random option."""
        return self.options[int(rng.integers(len(self.options)))]

    def position(self, value: Value) -> float | None:  # noqa: ARG002 - options have no order
        """Return None: options have no position on a scale."""
        return None


Parameter = Annotated[
    LogUniform | Uniform | Integers | PowersOfTwo | Choice | TuneFunction,
    Field(discriminator="kind"),
]


def _number(value: object) -> float:
    assert isinstance(value, int | float), f"{value!r} is not a number"
    return float(value)


def _is_within(parameter: _Range, value: object) -> bool:
    low, high = parameter.low, parameter.high  # type: ignore[attr-defined]
    return is_number(value) and bool(low <= value <= high)


def describe_range(parameter: Any) -> str:
    """Return the range of a parameter as text, such as '32..512, powers of two'."""
    if isinstance(parameter, Choice):
        return ", ".join(map(str, parameter.options))
    if isinstance(parameter, TuneFunction):
        return f"{parameter.function}({', '.join(f'{number:g}' for number in parameter.arguments)})"
    ends = f"{parameter.low:g}..{parameter.high:g}"
    if isinstance(parameter, PowersOfTwo):
        return f"{ends}, powers of two"
    if isinstance(parameter, Integers) and parameter.multiple_of > 1:
        return f"{ends}, multiples of {parameter.multiple_of}"
    return f"{ends} or off" if isinstance(parameter, LogUniform) and parameter.may_be_off else ends


def discrete_values(parameter: Any) -> Sequence[Value]:
    """Return every value of a parameter with finitely many values."""
    if isinstance(parameter, Choice):
        return parameter.options
    if isinstance(parameter, PowersOfTwo):
        low, high = parameter.exponents
        return [1 << exponent for exponent in range(low, high + 1)]
    if isinstance(parameter, TuneFunction) and parameter.is_integer:
        step = int(parameter.quantum or 1)
        return range(int(parameter.low), int(parameter.high) + 1, step)
    assert isinstance(parameter, Integers), f"{parameter} has infinitely many values"
    return range(parameter.low, parameter.high + 1, parameter.multiple_of)


def boundary_values(parameter: Any) -> tuple[Value, ...]:
    """Return the values of a parameter that its setting must accept for every trial to be valid.

    They are both ends of the range and, if the parameter may be off, 0; or all options of a choice.
    """
    if isinstance(parameter, Choice):
        return parameter.options
    off_value = (0.0,) if isinstance(parameter, LogUniform) and parameter.may_be_off else ()
    return (parameter.low, parameter.high, *off_value)
