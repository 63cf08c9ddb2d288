"""Records of loss function calls and of evaluation passes."""

from pydantic import Field

from sluice.base.settings import Record

MANUAL_DIFFERENCE = "a manual difference"
MANUAL_CROSS_ENTROPY = "a manual cross entropy"
MANUAL_LOGISTIC_LOSS = "a manual logistic loss"
MANUAL_MASKED_LOSS = "a manually masked loss"
"""The four kinds of losses that a program computes without a loss function of torch."""


class NextTokenTargets(Record):
    """Alignment of targets of shape (rows, positions) with the input tokens of the network.

    A supervised target is a target that the loss does not ignore.
    """

    num_rows: int
    num_positions: int = Field(0, description="Number of positions of a row that have a target.")
    is_shifted: bool = Field(
        False,
        description="Whether targets have one position less than the input, because the program "
        "shifts them.",
    )
    targets_are_inputs: bool = Field(
        False,
        description="Whether targets equal the input token at the same position more often than "
        "the token at the next position. The network then shifts its input itself, or it "
        "reconstructs its input.",
    )
    next_share: float = Field(
        description="Share of supervised targets that equal the next input token. If targets are "
        "inputs: share of supervised targets that equal the input token at the same position."
    )
    num_tails: int = Field(
        description="Number of rows with a tail, that is, ignored targets at the end of the row. "
        "Rows in which every target is ignored are included."
    )
    shortest_tail: int = Field(description="Minimum number of ignored targets at the end of a row.")
    longest_tail: int = Field(
        0, description="Maximum number of ignored targets at the end of a row."
    )
    num_last: int = Field(
        description="Number of distinct values of the last supervised target of a row, over the "
        "rows with a tail and at least one supervised target."
    )
    last_share: float = Field(
        description="Share of the rows with a tail and at least one supervised target in which the "
        "last supervised target has the most frequent value."
    )
    num_unsupervised: int = Field(description="Number of rows in which every target is ignored.")


class LossRecord(Record):
    """A call of a loss function of ``torch.nn.functional``, or a loss that the program computes.

    These calls are recorded:

    - The first calls of each function, network and gradient mode in a training phase.
    - Calls at some steps with statistics.
    - The last call before the backward pass of a non-finite loss, if it is cross_entropy or
      nll_loss.
    - Calls of binary_cross_entropy that raise an error.
    """

    step: int = Field(description="Number of optimizer steps before the call.")
    kind: str = Field(
        description="Name of the function, such as 'cross_entropy'; for a loss that the program "
        "computes itself, one of the four ``MANUAL_*`` names."
    )
    network: int = Field(description="Network that was called last; -1 without one.")
    loader: int = Field(description="Loader of the last batch; -1 without one.")
    is_learning: bool = Field(
        description="Whether the loss requires gradients. If the loss is not available, such as "
        "after an error: whether gradients are enabled."
    )
    reduction: str = Field(description="'mean', 'sum', 'none' or, for kl_div, 'batchmean'.")
    producer_node: str = Field(
        description="Autograd node that computed the input, such as 'SoftmaxBackward0', ignoring "
        "changes of shape; '' without a graph."
    )
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    smallest: float = Field(description="Smallest value of the input; NaN if the input was freed.")
    largest: float = Field(description="Largest value of the input; NaN if the input was freed.")
    min_row_sum: float = Field(
        description="Smallest sum of a row of the input (for nll_loss, of exp(input)) over the "
        "classes; NaN without classes."
    )
    max_row_sum: float = Field(
        description="Largest sum of a row of the input (for nll_loss, of exp(input)) over the "
        "classes; NaN without classes."
    )
    target_is_integer: bool
    target_smallest: float = Field(
        description="Smallest supervised target; NaN if all are ignored."
    )
    target_largest: float = Field(description="Largest supervised target; NaN if all are ignored.")
    num_targets: int = Field(description="Number of elements of the target.")
    num_supervised: int = Field(description="Number of supervised (not ignored) targets.")
    num_rows_without_class: int = Field(
        0,
        description="Number of rows of one-hot targets without a 1; 0 if the targets are not "
        "one-hot.",
    )
    column_counts: tuple[int, ...] = Field(
        (),
        description="Number of ones in each column of one-hot targets of a binary loss, for 3 to "
        "64 columns; otherwise empty.",
    )
    value: float = Field(
        description="Value of the loss; the mean of its elements without a reduction; NaN if "
        "unknown."
    )
    tokens: NextTokenTargets | None = Field(
        None,
        description="Alignment of the targets with the input tokens of the network. None if the "
        "targets are not class ids, or if no input of tokens has a matching size.",
    )


class EvaluationPassRecord(Record):
    """The losses of one evaluation pass, computed without gradients.

    A pass ends with the next training loss or step, when weights are loaded, or with the trace.
    """

    step: int = Field(description="Number of optimizer steps before the pass.")
    network: int
    loader: int = Field(description="Loader of the last batch; -1 without one.")
    kind: str = Field(description="Name of the loss function.")
    num_calls: int
    mean: float = Field(
        description="Mean loss over the calls. A loss with the reduction 'sum' or 'none' is first "
        "averaged over its targets."
    )
