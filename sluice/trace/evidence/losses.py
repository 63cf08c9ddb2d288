"""What loss functions were given, and what evaluation passes came to."""

from pydantic import Field

from sluice.base.settings import Record

BY_HAND = "a difference by hand"
CLASSES_BY_HAND = "a cross entropy by hand"
BINARY_BY_HAND = "a logistic loss by hand"
MASKED_BY_HAND = "a loss masked by hand"
"""Kind of a loss that is no function of torch."""


class NextTokens(Record):
    """Targets of shape (rows, positions) beside the tokens that the network was given."""

    num_rows: int
    num_positions: int = Field(0, description="Places that have a target, in a row.")
    is_cut: bool = Field(
        False, description="One place less than the input: the program itself shifted the targets."
    )
    is_own: bool = Field(
        False,
        description="The targets are the tokens themselves: the network shifts its input, or it "
        "names each token.",
    )
    next_share: float = Field(
        description="Of the targets that count, those that are the next token of the input; or "
        "the token itself."
    )
    num_tails: int = Field(description="Rows whose last target is ignored.")
    shortest_tail: int = Field(description="Ignored targets at the end of a row, at least.")
    longest_tail: int = Field(0, description="And at most.")
    num_last: int = Field(description="Different last targets that count, in rows with a tail.")
    last_share: float = Field(description="Of the most frequent of them, in rows with a tail.")
    num_unsupervised: int = Field(description="Rows in which every target is ignored.")


class LossFact(Record):
    """One call of a function of ``torch.nn.functional`` that compares outputs with targets.

    The first calls of each function and network are recorded, those of some steps with
    statistics, and those that a loss comes from that is not finite.
    """

    step: int = Field(description="Steps made before it.")
    kind: str = Field(description="Name of the function, such as 'cross_entropy'.")
    network: int = Field(description="That was called last; -1 for none.")
    loader: int = Field(description="Of the last batch; -1 for none.")
    is_learning: bool = Field(description="The loss can be differentiated.")
    reduction: str = Field(description="'mean', 'sum' or 'none'.")
    made_by: str = Field(
        description="Name of the autograd node that made the input, such as 'SoftmaxBackward0', "
        "behind those that only change its shape; '' when it has none."
    )
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    smallest: float = Field(description="Of the input.")
    largest: float
    row_sum_low: float = Field(
        description="Smallest sum over the classes, of exp(input) for nll_loss; NaN without "
        "classes."
    )
    row_sum_high: float
    target_is_integer: bool
    target_smallest: float = Field(description="Of the targets that count; NaN for none.")
    target_largest: float
    num_targets: int
    num_supervised: int = Field(description="Targets that are not ignored.")
    num_classless: int = Field(
        0, description="Rows of one-hot targets without a 1; 0 unless all targets are 0 or 1."
    )
    column_counts: tuple[int, ...] = Field(
        (), description="Ones in each column of one-hot targets of a binary loss, at most 64."
    )
    value: float = Field(description="The loss, its mean when it is not reduced.")
    tokens: NextTokens | None = Field(
        None, description="None unless input and targets are whole numbers of the same rows."
    )


class EvaluationFact(Record):
    """The losses of one pass without gradients.

    It ends with the next learning step, and with weights that are loaded.
    """

    step: int = Field(description="Steps made before it.")
    network: int
    loader: int = Field(description="-1 for none.")
    kind: str = Field(description="Of the loss function.")
    num_calls: int
    mean: float = Field(description="Of the calls; for a sum or none reduced, over its numbers.")
