"""What may vary about a network."""

from pydantic import Field

from sluice.settings import Settings


class ModelSettings(Settings):
    """Architecture and size."""

    architecture: str = Field(
        "gru",
        description="'linear', 'gru', 'lstm', 'slstm', 'transformer', or 'module:Class' of your "
        "own, called with (num_features, num_outputs, settings).",
    )
    hidden: int = Field(32, ge=1, le=65_536, description="Width of a hidden layer [units].")
    layers: int = Field(1, ge=1, le=64, description="Stacked recurrent layers.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Rate between layers.")
