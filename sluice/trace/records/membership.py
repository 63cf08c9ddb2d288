"""Records of networks, optimizers, and the parameters that they contain.

A parameter, network or optimizer keeps its index as long as the object exists. If a layer is
replaced by an equal one, the parameters of the new layer therefore get new indices.
"""

from pydantic import Field

from sluice.base.settings import Record


class ParameterRecord(Record):
    """One parameter."""

    index: int
    names: tuple[str, ...] = Field(
        description="Names as 'network.name'; several if the parameter is tied, empty if it "
        "belongs to no network that was called."
    )
    shape: tuple[int, ...]
    dtype: str
    is_trainable: bool = Field(description="Value of requires_grad.")
    has_had_gradient: bool = Field(
        description="Whether the parameter had a gradient when this or an earlier snapshot was "
        "taken, or before a probe of the network."
    )


class ParameterGroupRecord(Record):
    """One parameter group of an optimizer."""

    parameters: tuple[int, ...]
    options: dict[str, float | int | bool | str | None] = Field(
        description="Settings of the group that are numbers, booleans, texts or None, including "
        "the learning rate."
    )


class OptimizerRecord(Record):
    """One optimizer."""

    index: int
    kind: str = Field(description="Class name.")
    groups: tuple[ParameterGroupRecord, ...]
    steps: int = Field(description="Number of steps of this optimizer so far.")

    @property
    def parameters(self) -> tuple[int, ...]:
        """Indices of the parameters of all groups."""
        return tuple(parameter for group in self.groups for parameter in group.parameters)


class UnregisteredModuleRecord(Record):
    """A module that is called inside a network without being registered in it."""

    kind: str = Field(description="Class name.")
    parameters: tuple[int, ...] = Field(description="Indices of the module's trainable parameters.")


class MisspelledAttributeRecord(Record):
    """An attribute that resembles ``requires_grad`` and that torch never reads."""

    owner: str = Field(description="Name of the module or parameter with the attribute.")
    attribute: str
    value: bool
    parameters: tuple[int, ...] = Field(
        description="Indices of the owner's parameters, which the program meant to change."
    )


class TyingSettingRecord(Record):
    """A setting that states whether the output weight is tied to the embedding."""

    owner: str = Field(
        description="Name of the module that has the setting, as an attribute or in its config."
    )
    attribute: str = Field(description="Name of the setting, such as tie_word_embeddings.")
    value: bool


class NetworkRecord(Record):
    """A top-level module, whose calls are not nested in calls of another module with parameters."""

    index: int
    kind: str = Field(description="Class name.")
    name: str = Field(
        description="Class name; a number is appended from the second network of the class on, "
        "such as 'Net_2'."
    )
    parameters: tuple[int, ...]
    num_modules: int = Field(description="Number of modules, including the network itself.")
    unregistered_modules: tuple[UnregisteredModuleRecord, ...] = ()
    misspelled_attributes: tuple[MisspelledAttributeRecord, ...] = ()
    tying_settings: tuple[TyingSettingRecord, ...] = ()
    broken_ties: tuple[tuple[int, int], ...] = Field(
        (),
        description="Broken ties: two modules shared one parameter and now have different ones. "
        "Each tie is the pair of these parameters: the first one replaced the shared parameter; "
        "the second one is the shared parameter itself, or another replacement.",
    )


class Membership(Record):
    """Networks, optimizers and their parameters at one step, before the optimizer updates them.

    A snapshot is taken before the first step, after steps 1, 2, 4, 8 and so on (counted again from
    the start of each training phase), and after a module, parameter, network or optimizer is added.
    If objects are added at many steps, some of these snapshots are omitted. A snapshot is recorded
    if it differs from the previous snapshot in more than step numbers and optimizer settings.
    """

    step: int = Field(description="The step that is about to be made.")
    parameters: tuple[ParameterRecord, ...]
    optimizers: tuple[OptimizerRecord, ...]
    networks: tuple[NetworkRecord, ...]

    def name_of(self, parameter: int) -> str:
        """Return the first name of a parameter; 'parameter INDEX' if it has no name."""
        names = next((p.names for p in self.parameters if p.index == parameter), ())
        return names[0] if names else f"parameter {parameter}"

    @property
    def optimized(self) -> frozenset[int]:
        """Indices of the parameters of all optimizers."""
        return frozenset(p for optimizer in self.optimizers for p in optimizer.parameters)
