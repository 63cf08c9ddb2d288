"""Records of single forward passes: gradient flow, padding masks, and probes on a copy."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record


class ModuleCallRecord(Record):
    """One call of a module that has parameters of its own or no children."""

    module: str = Field(description="Name inside the network; '' is the network itself.")
    kind: str = Field(description="Class name of the module.")
    parameters: tuple[int, ...] = Field(
        description="Indices of the module's own parameters; of nn.MultiheadAttention, also those "
        "of its children."
    )
    input_requires_grad: bool = Field(description="Whether an input requires gradients.")
    output_requires_grad: bool = Field(description="Whether an output requires gradients.")
    detached_from: str = Field(
        description="Name ('network.module') of the module whose output was detached and passed to "
        "this module: the output and the input share memory, but only the output requires "
        "gradients. '' if the input was not detached."
    )


class ForwardPassRecord(Record):
    """One forward pass with gradients enabled: its module calls, in the order of their returns.

    Recorded before the first step, after about 1, 2, 4, 8, ... steps, at the start of a new
    training phase, and when an input sequence is much longer than all earlier sequences.
    """

    step: int = Field(description="Number of optimizer steps before the pass.")
    network: int
    calls: tuple[ModuleCallRecord, ...]


class PaddingMaskRecord(Record):
    """A padding mask that an attention module received, or that the graph of a loss contains."""

    step: int = Field(description="Number of optimizer steps before the pass.")
    network: int
    module: str = Field(description="Name of the module; '' if found in the graph of the loss.")
    num_rows: int = Field(
        description="Number of rows of the mask; for a mask found in the graph, rows with padding."
    )
    num_masked: int = Field(
        description="Number of positions of these rows that are excluded from attention."
    )
    num_positions: int = Field(description="Number of positions of these rows.")
    num_padding: int = Field(
        description="Number of padding positions: a repeated token at the ends or beginnings of "
        "rows, or zero vectors at the ends."
    )
    num_padding_masked: int = Field(description="Number of padding positions that are masked.")


class ProbeRecord(Record):
    """Effect of a perturbation of the input or the weights on the outputs of a network's copy.

    The outputs with and without the perturbation are compared. The perturbation depends on the
    probe:

    - later tokens: The second half of each sequence of tokens or values is changed. The outputs of
      the first half are compared. Only for networks that are trained to predict the next token or
      value.
    - own tokens: The same change as for 'later tokens'. The output at the first changed position is
      compared, too: it does not change if the network shifts its input itself. Only for networks
      whose targets are the input tokens.
    - padding: The embeddings of padding are changed; in separate passes, the embeddings of real
      tokens are changed. The outputs at the unchanged real tokens are compared. Outputs without
      positions are compared as a whole.
    - rows: Every second row of a batch is replaced by the row before it. The outputs of the other
      rows are compared. Only for networks with a layer that may process the rows of the input as
      positions.
    - weights: Parameters without a gradient are changed. The outputs that the loss depends on are
      compared.
    """

    step: int = Field(description="Number of optimizer steps before the pass.")
    network: int
    probe: Literal["later tokens", "own tokens", "padding", "rows", "weights"]
    changed: int = Field(
        description="Number of changed positions of a row, of changed rows, or of changed "
        "parameters. For 'padding': number of changed padding positions, over all rows."
    )
    largest_effect: float = Field(
        description="Largest change of a compared output, divided by the largest absolute output."
    )
    earlier_effect: float = Field(
        float("nan"),
        description="Largest change of an output before the first changed token, divided by the "
        "largest absolute output. NaN for probes other than 'own tokens'.",
    )
    real_effect: float = Field(
        float("nan"),
        description="Largest change of a compared output if real tokens are changed instead of "
        "padding, divided by the largest absolute output. NaN for probes other than 'padding', "
        "whose ``largest_effect`` is the effect of padding.",
    )
    parameters: tuple[int, ...] = Field((), description="Indices of the changed parameters.")
    is_matrix: bool = Field(
        False,
        description="Whether the changed input of the probe 'rows' is a 2-D float tensor, which "
        "torch layers process as one sequence.",
    )
    modules: tuple[str, ...] = Field(
        (),
        description="Layers that may process rows as positions; empty for probes other than "
        "'rows'.",
    )
