"""How numbers flow through a network, and what an extra pass through a copy of it showed."""

from typing import Literal

from pydantic import Field

from sluice.settings import Record


class CallFact(Record):
    """One leaf module in one learning forward pass."""

    module: str = Field(description="Name inside the network.")
    kind: str
    parameters: tuple[int, ...] = Field(description="Its own.")
    takes_gradient: bool = Field(description="Its input can be differentiated.")
    gives_gradient: bool = Field(description="Its output can be differentiated.")
    cut_from: str = Field(
        description="Module whose differentiable output is in the same memory as its input, which "
        "cannot be differentiated: detached in between. '' for none."
    )


class FlowFact(Record):
    """One learning forward pass: its leaf modules in the order of their calls."""

    step: int = Field(description="Steps made before it.")
    network: int
    calls: tuple[CallFact, ...]


class MaskFact(Record):
    """A padding mask that an attention module was given."""

    step: int
    network: int
    module: str
    num_masked: int
    num_positions: int
    num_padding: int = Field(description="Positions that hold the token that ends rows in a run.")
    num_padding_masked: int


class ProbeFact(Record):
    """What a changed input did to a copy of a network that was set aside (TRACE-4)."""

    step: int
    network: int
    probe: Literal["later tokens", "padding"]
    changed: int = Field(description="Positions that were changed.")
    largest_effect: float = Field(
        description="Largest change at positions that must not move, of the largest number there."
    )
