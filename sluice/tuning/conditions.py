"""Values of searched parameters, and conditions under which a parameter is active."""

from pydantic import Field

from sluice.base.settings import Settings

Value = bool | int | float | str | list[int | float]
Params = dict[str, Value]
"""Values by dotted path, such as 'training.learning_rate'; inactive parameters are absent."""


class Condition(Settings):
    """The parameter is active only while another parameter or setting has one of these values."""

    path: str = Field(description="Dotted path of the other parameter or setting.")
    one_of: tuple[Value, ...] = Field(
        min_length=1, strict=False, description="Values for which the parameter is active."
    )


class ConditionalParameter(Settings):
    """Base class of every kind of parameter."""

    when: Condition | None = Field(
        None, description="Condition under which the parameter is active; always active if not set."
    )


def is_number(value: object) -> bool:
    """Return whether a value is an integer or a float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def option_index(options: tuple[Value, ...], value: object) -> int | None:
    """Return the index of the option that equals ``value`` in type and value; None without one.

    1, 1.0 and True are equal in Python, but are three different options.
    """
    return next((i for i, option in enumerate(options) if repr(option) == repr(value)), None)
