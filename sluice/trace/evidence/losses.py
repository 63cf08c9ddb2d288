"""What loss functions were given, and what evaluation passes came to."""

from pydantic import Field

from sluice.settings import Record


class LossFact(Record):
    """One call of a function of ``torch.nn.functional`` that compares outputs with targets.

    The first calls of each function and network are recorded, and those of steps with statistics.
    """

    step: int = Field(description="Steps made before it.")
    kind: str = Field(description="Name of the function, such as 'cross_entropy'.")
    network: int = Field(description="That was called last; -1 for none.")
    loader: int = Field(description="Of the last batch; -1 for none.")
    is_learning: bool = Field(description="The loss can be differentiated.")
    reduction: str = Field(description="'mean', 'sum' or 'none'.")
    made_by: str = Field(
        description="Name of the autograd node that made the input, such as 'SoftmaxBackward0'; "
        "'' when it has none."
    )
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    smallest: float = Field(description="Of the input.")
    largest: float
    row_sum_low: float = Field(description="Smallest sum over the classes; NaN without classes.")
    row_sum_high: float
    target_is_integer: bool
    target_smallest: float = Field(description="Of the targets that count.")
    target_largest: float
    num_targets: int
    num_supervised: int = Field(description="Targets that are not ignored.")
    value: float = Field(description="The loss, its mean when it is not reduced.")


class EvaluationFact(Record):
    """The losses of one pass without gradients: from one learning step to the next."""

    step: int = Field(description="Steps made before it.")
    network: int
    loader: int = Field(description="-1 for none.")
    kind: str = Field(description="Of the loss function.")
    num_calls: int
    mean: float
