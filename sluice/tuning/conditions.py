"""Values of searched parameters, and the condition under which a parameter counts."""

from pydantic import Field

from sluice.base.settings import Settings

Value = bool | int | float | str | list[int | float]
Params = dict[str, Value]
"""Values by dotted path, such as 'training.learning_rate'; inactive parameters are absent."""


class When(Settings):
    """The parameter counts only while another one has one of these values."""

    path: str = Field(description="Dotted path of the other parameter or setting.")
    one_of: tuple[Value, ...] = Field(
        min_length=1, strict=False, description="Values with which the parameter counts."
    )


class Conditional(Settings):
    """Base of every kind of parameter."""

    when: When | None = Field(None, description="Condition under which it counts; always if none.")


def is_number(value: object) -> bool:
    """Return whether a value is an integer or a float, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def option_index(options: tuple[Value, ...], value: object) -> int | None:
    """Return the place of the option that equals ``value`` in kind and value; None if none does.

    1, 1.0 and True are equal in Python and are three options.
    """
    return next((i for i, option in enumerate(options) if repr(option) == repr(value)), None)
