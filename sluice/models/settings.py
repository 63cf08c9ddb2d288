"""Settings of a network."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from sluice.base.settings import Settings


def _require_option(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    invalid_items = [item for item in items if not isinstance(item, bool | int | float | str)]
    if invalid_items:
        type_name = type(invalid_items[0]).__name__
        received = f"a list with {type_name}" if isinstance(value, list) else type_name
        raise ValueError(f"must be a number, boolean, string or a list of these, got {received}")
    return value


Option = Annotated[
    bool | int | float | str | list[bool | int | float | str],
    BeforeValidator(_require_option),
]
"""Value of an option of a user-defined network."""


def _is_empty(options: dict[str, Option]) -> bool:
    return not options


class ModelSettings(Settings):
    """Architecture and size of a network."""

    architecture: str = Field(
        "gru",
        description="'linear', 'mlp', 'gru', 'lstm', 'slstm', 'transformer', or your own class as "
        "'module:Class', called with (num_features, num_outputs, settings).",
    )
    hidden: int = Field(32, ge=1, le=65_536, description="Width of a hidden layer [units].")
    layers: int = Field(1, ge=1, le=64, description="Number of stacked layers.")
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Dropout rate. The architecture defines where it applies, such as between "
        "layers or before the output layer; 'linear' has no dropout.",
    )
    heads: int = Field(
        4,
        ge=1,
        le=1024,
        description="Number of attention heads of 'transformer' and CausalTransformer; must divide "
        "hidden. Ignored by other built-in architectures.",
    )

    options: dict[str, Option] = Field(
        {},
        exclude_if=_is_empty,
        description="Options of your own network by name, which it reads from settings.options. "
        "Built-in architectures have no options.",
    )

    @model_validator(mode="after")
    def _require_width_divisible_by_heads(self) -> Self:
        if self.architecture == "transformer" and self.hidden % self.heads:
            raise ValueError(
                f"hidden must be a multiple of heads for the architecture 'transformer', got "
                f"hidden {self.hidden} with heads {self.heads}: set hidden to "
                f"{nearest_multiples(self.hidden, self.heads)}"
            )
        return self


def nearest_multiples(value: int, step: int) -> str:
    """Return the nearest positive multiples of ``step`` below and above ``value``, as "a or b"."""
    below = value // step * step
    return f"{below} or {below + step}" if below else f"{step}"
