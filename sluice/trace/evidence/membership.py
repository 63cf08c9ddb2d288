"""Identity and membership: which parameters are in which network and which optimizer.

A parameter, network or optimizer keeps its index as long as the object lives, so that a layer that
is replaced by an equal one has new indices.
"""

from pydantic import Field

from sluice.base.settings import Record


class ParameterFact(Record):
    """One parameter."""

    index: int
    names: tuple[str, ...] = Field(
        description="As 'network.name'; more than one when it is tied, none when it belongs to no "
        "network that was called."
    )
    shape: tuple[int, ...]
    dtype: str
    is_trainable: bool = Field(description="requires_grad.")
    has_had_gradient: bool = Field(description="It was seen with a gradient up to here.")


class GroupFact(Record):
    """One parameter group of an optimizer."""

    parameters: tuple[int, ...]
    options: dict[str, float | int | bool | str | None] = Field(
        description="Its plain settings, the learning rate among them."
    )


class OptimizerFact(Record):
    """One optimizer."""

    index: int
    kind: str = Field(description="Class name.")
    groups: tuple[GroupFact, ...]
    steps: int = Field(description="Its steps up to here.")


class StrayModule(Record):
    """A module that is called inside a network but registered in none of its modules."""

    kind: str
    parameters: tuple[int, ...] = Field(description="Its trainable ones.")


class MisnamedFact(Record):
    """An attribute that looks like a parameter's ``requires_grad`` and that torch never reads."""

    owner: str = Field(description="Name of the module or parameter that has it.")
    attribute: str
    value: bool
    parameters: tuple[int, ...] = Field(description="Of the owner, that the value was meant for.")


class TieFact(Record):
    """A setting whose name says whether the output weight is the embedding's own."""

    owner: str = Field(description="Name of the module that has it, or holds what has it.")
    attribute: str
    value: bool


class NetworkFact(Record):
    """A module that the program calls from outside any module."""

    index: int
    kind: str = Field(description="Class name.")
    name: str = Field(description="Its class name, numbered when there are several.")
    parameters: tuple[int, ...]
    num_modules: int
    stray: tuple[StrayModule, ...] = ()
    misnamed: tuple[MisnamedFact, ...] = ()
    ties_said: tuple[TieFact, ...] = ()
    parted: tuple[tuple[int, int], ...] = Field(
        (), description="Two that are in the places of one; the newer is the first."
    )


class Membership(Record):
    """Who belonged to whom at one step, taken before the optimizer moved anything.

    One is recorded at the first steps, whenever a module, parameter, network or optimizer was
    added, and from time to time; only when it differs from the one before.
    """

    step: int = Field(description="The step that was about to be made.")
    parameters: tuple[ParameterFact, ...]
    optimizers: tuple[OptimizerFact, ...]
    networks: tuple[NetworkFact, ...]

    def name_of(self, parameter: int) -> str:
        """Return the first name of a parameter, or its index when it has none."""
        names = next((p.names for p in self.parameters if p.index == parameter), ())
        return names[0] if names else f"parameter {parameter}"

    @property
    def optimized(self) -> frozenset[int]:
        """Parameters in any optimizer."""
        return frozenset(
            parameter
            for optimizer in self.optimizers
            for group in optimizer.groups
            for parameter in group.parameters
        )
