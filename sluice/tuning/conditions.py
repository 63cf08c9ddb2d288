"""Types of parameter values, and the conditions under which a searched parameter is active."""

from pydantic import Field

from sluice.base.settings import Settings

Value = bool | int | float | str | list[int | float]
"""Value of one searched parameter."""

Params = dict[str, Value]
"""Values of a trial's parameters by dotted path, such as 'training.learning_rate'. Inactive
parameters are absent."""


class Condition(Settings):
    """Condition that another parameter or setting has one of a list of values."""

    path: str = Field(description="Dotted path of the other parameter or setting.")
    one_of: tuple[Value, ...] = Field(
        min_length=1,
        strict=False,
        description="Values of the other parameter or setting for which this parameter is active.",
    )


class ConditionalParameter(Settings):
    """Base class of every kind of parameter, with an optional condition."""

    when: Condition | None = Field(
        None, description="Condition under which the parameter is active; always active if not set."
    )


def is_number(value: object) -> bool:
    """Return whether a value is an integer or a float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def option_index(options: tuple[Value, ...], value: object) -> int | None:
    """Return the index of the option that equals ``value`` in type and value; None if none does.

    The type is compared because 1, 1.0 and True are equal in Python, but are different options.
    """
    return next((i for i, option in enumerate(options) if repr(option) == repr(value)), None)
