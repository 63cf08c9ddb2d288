"""How numbers flow through a network, and what an extra pass through a copy of it showed."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record


class CallFact(Record):
    """One call of a module that has no children, or parameters of its own."""

    module: str = Field(description="Name inside the network; '' is the network itself.")
    kind: str
    parameters: tuple[int, ...] = Field(description="Its own.")
    takes_gradient: bool = Field(description="Its input can be differentiated.")
    gives_gradient: bool = Field(description="Its output can be differentiated.")
    cut_from: str = Field(
        description="'network.module' whose differentiable output is in the same memory as its "
        "input, which cannot be differentiated: detached in between. '' for none."
    )


class FlowFact(Record):
    """One forward pass with gradients on: its modules in the order of their calls.

    One at the first step, and one at each power of two.
    """

    step: int = Field(description="Steps made before it.")
    network: int
    calls: tuple[CallFact, ...]


class MaskFact(Record):
    """A padding mask that an attention module of torch was given, or what an attention hid."""

    step: int
    network: int
    module: str = Field(description="'' where it was told by the graph behind the loss.")
    num_rows: int
    num_masked: int = Field(description="Positions that nothing may look at.")
    num_positions: int
    num_padding: int = Field(description="Positions that hold the token that ends rows in a run.")
    num_padding_masked: int


class ProbeFact(Record):
    """What a change did to a copy of a network that was set aside (TRACE-4).

    later tokens: the tokens of the second half were changed; watched are the outputs of the first.
    Only of networks that learn to tell the next token.
    own tokens: the same, and the output at the first changed token is watched, too. Only of
    networks that learn to tell the very tokens they are given: one that shifts them does not move.
    padding: the vectors of padding were changed, and in another pass those of real tokens; watched
    are the outputs at other real positions, or of the rows when there are none of positions.
    weights: parameters without a gradient were changed; watched are all outputs.
    """

    step: int
    network: int
    probe: Literal["later tokens", "own tokens", "padding", "weights"]
    changed: int = Field(description="Positions or parameters that were changed.")
    largest_effect: float = Field(description="Largest change watched, of the largest number.")
    real_effect: float = Field(float("nan"), description="Of real tokens; only for padding.")
    parameters: tuple[int, ...] = Field((), description="Those that were changed.")
