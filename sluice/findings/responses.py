"""Likely cause and recommended fix of every kind of failure."""

from dataclasses import dataclass
from typing import Literal

FailureKind = Literal[
    "checkpoint mismatch",
    "user code raised",
    "collapse",
    "constant feature",
    "dead units",
    "bug in Sluice",
    "duplicate rows",
    "wrong epoch selection",
    "split dependence",
    "batch dependence",
    "explosion",
    "feature schema mismatch",
    "few distinct predictions",
    "folds out of order",
    "folds overlap",
    "time limit exceeded",
    "slower than usual",
    "storage not writable",
    "log validation failed",
    "look-ahead",
    "invalid loss type",
    "mini training diverged",
    "no loss decrease",
    "missing columns",
    "missing gradients",
    "NaN gradients",
    "no gradients",
    "cannot overfit one batch",
    "no signal",
    "non-finite loss",
    "non-finite output",
    "parameter not in optimizer",
    "out of memory",
    "process crashed",
    "raw schema mismatch",
    "shape mismatch",
    "symmetric units",
    "target leakage",
    "too few rows",
    "undeclared frozen parameters",
    "nondeterministic predictions",
    "wrong loss shape",
    "zero gradients",
]


@dataclass(frozen=True, slots=True)
class FailureResponse:
    """Likely cause of a failure, and what to do about it."""

    cause: str
    fix: str


_RESPONSES: dict[FailureKind, FailureResponse] = {
    "user code raised": FailureResponse(
        "The code of the workload or the model raised an exception.",
        "Correct the named line, then run the gate again.",
    ),
    "bug in Sluice": FailureResponse(
        "Sluice's own code raised, not the workload's or the model's: this is a bug in Sluice. "
        "It should have handled the value that it received, or rejected it with a reason.",
        "Please report it with this message, and with the dtypes and shapes of your inputs and "
        "targets.",
    ),
    "checkpoint mismatch": FailureResponse(
        "The model differs from the one that was saved: another width, depth or number of "
        "features, or a state that state_dict does not contain.",
        "Build the model from the settings saved with the checkpoint, and register every tensor "
        "that a prediction needs as parameter or buffer.",
    ),
    "collapse": FailureResponse(
        "The model predicts almost the same value for every input: its features do not reach the "
        "output, or a high learning rate saturated its units.",
        "Check the scaling of the features, then lower learning_rate and weight_decay.",
    ),
    "wrong epoch selection": FailureResponse(
        "select_epoch does not return the epoch with the lowest finite score: it may maximise, "
        "compare positions instead of scores, or let NaN win a comparison.",
        "Return the earliest epoch with the lowest finite score, and raise an error when no score "
        "is finite, as sluice.workloads.best_epoch.best_epoch does.",
    ),
    "explosion": FailureResponse(
        "Values grow through the network: unscaled features or targets, a high learning rate, an "
        "output that is not scaled to the target, or a long unnormalised recurrence.",
        "Standardise features and target, lower learning_rate, or lower clip_norm.",
    ),
    "time limit exceeded": FailureResponse(
        "The check exceeded its time limit: the model or the data subset is too large for this "
        "machine, or the workload's code is slow.",
        "Use a smaller data subset (poc settings), profile the named check, or raise its maximum "
        "if the time is justified.",
    ),
    "slower than usual": FailureResponse(
        "The check is slower than usual: a busy machine or a large model.",
        "No action is required. Profile the named check if this repeats.",
    ),
    "log validation failed": FailureResponse(
        "The code that writes the event log omitted a field, or wrote it with another type.",
        "Write the named field with every event of that type, then run again.",
    ),
    "storage not writable": FailureResponse(
        "The folder is read-only, full, or belongs to another user.",
        "Make the folder writable, or set SLUICE_HOME to a writable folder.",
    ),
    "invalid loss type": FailureResponse(
        "The workload's loss does not return a torch tensor of floating-point type.",
        "Return a floating-point tensor computed with torch from the model's output.",
    ),
    "mini training diverged": FailureResponse(
        "The training diverged: learning_rate is too high, clip_norm is too large, or loss() has "
        "the wrong sign.",
        "Lower learning_rate by a factor of 10 until the loss decreases, and check the sign of "
        "loss().",
    ),
    "no loss decrease": FailureResponse(
        "The loss does not decrease by more than the variation between seeds: learning_rate is too "
        "low or too high, layers are frozen, loss() and losses() disagree, or the features carry "
        "no information about the target.",
        "Try learning_rate between 1e-4 and 1e-2, check that every layer requires gradients, "
        "and compare features with targets.",
    ),
    "missing columns": FailureResponse(
        "The source changed its columns, or a feature was renamed.",
        "Rename the columns in the source, or declare the existing columns in the workload's "
        "schema.",
    ),
    "missing gradients": FailureResponse(
        "A parameter does not contribute to the loss: an unused layer, a detach(), or a no_grad() "
        "block.",
        "Use the named parameters in forward(), remove the detach() or no_grad(), or delete the "
        "parameters.",
    ),
    "NaN gradients": FailureResponse(
        "A division by 0, a log of 0, a square root at 0, or NaN in the features or weights.",
        "Clamp the argument of log, sqrt and division, and check features and initial weights.",
    ),
    "no gradients": FailureResponse(
        "The model cannot learn: every layer is frozen, or detach() or no_grad() disconnects the "
        "output from the parameters.",
        "Set requires_grad on the layers to be trained, and remove the detach() or no_grad().",
    ),
    "non-finite loss": FailureResponse(
        "The loss is NaN or infinite on the first batch: a log of 0, a division by 0, an overflow, "
        "or NaN in the targets.",
        "Clamp the argument of log and division in the loss, and check the target column.",
    ),
    "non-finite output": FailureResponse(
        "NaN or infinity in the weights or the features, or an overflow in forward().",
        "Check the initialisation and the features of the named rows.",
    ),
    "shape mismatch": FailureResponse(
        "The model was built for a different number of features or outputs than the workload "
        "provides.",
        "Build the model from the arguments num_features and num_outputs, and return an output of "
        "the shape that output_shape() declares.",
    ),
    "too few rows": FailureResponse(
        "The train split of the fold has fewer rows than the check needs for a conclusion.",
        "Provide more rows, shorten seq_len, or lower the check's required rows in the poc "
        "settings.",
    ),
    "wrong loss shape": FailureResponse(
        "loss() does not reduce over the batch, or losses() reduces over too many axes.",
        "Return one value per example (B,) from losses(), and one value from loss(), for example "
        "losses(...).mean().",
    ),
    "zero gradients": FailureResponse(
        "A parameter has no influence on this batch: dead units, saturated gates, or an "
        "initialisation at exactly 0.",
        "Check activation and initialisation around the named parameters.",
    ),
    "constant feature": FailureResponse(
        "A column has the same value in every train row: a join without matches, a default "
        "that was never replaced, or a window longer than the table.",
        "Drop the feature, repair its source, or declare Column(constant=True) if it may be "
        "constant.",
    ),
    "dead units": FailureResponse(
        "Units that are never active get no gradient and cannot recover: a large negative bias, "
        "an unsuitable initialisation, or a learning rate that is too high.",
        "Check the bias and the initialisation of the named layer, lower learning_rate, or use a "
        "leaky activation.",
    ),
    "duplicate rows": FailureResponse(
        "The source was loaded twice, a join multiplied rows, or two exports overlap.",
        "Remove the repeated rows at the source; rows that occur in both train and test are a "
        "data leak.",
    ),
    "split dependence": FailureResponse(
        "Inputs are scaled or filled with statistics of their own split, so validation and test "
        "inputs contain information that is not known at prediction time.",
        "Fit normalisers on the train rows only and apply them unchanged to every other split.",
    ),
    "batch dependence": FailureResponse(
        "forward() mixes the examples of a batch: a recurrent or transformer layer that treats "
        "axis 0 as time, a statistic over axis 0, or a reshape across it.",
        "Pass batch_first=True to recurrent, attention and transformer layers, and compute "
        "nothing over axis 0. Keep statistics of the data in buffers, as batch norm does.",
    ),
    "few distinct predictions": FailureResponse(
        "The output is rounded, saturated, or depends only on one rare feature.",
        "Check the last layer for a sigmoid, tanh or clamp that saturates, or an integer cast.",
    ),
    "folds out of order": FailureResponse(
        "The rows are newest first, or the folds were shuffled or planned for another order, so "
        "the model is trained on rows that are later than the rows it is evaluated on.",
        "Sort the rows by time, oldest first, and let plan_folds() put train before validation "
        "and test, as walk_forward() does.",
    ),
    "folds overlap": FailureResponse(
        "plan_folds() assigns the same rows to two splits of a fold, so the model is selected or "
        "evaluated on rows it was trained on.",
        "Start each split after the end of the previous one, with a gap of horizon_rows, as "
        "walk_forward() does.",
    ),
    "look-ahead": FailureResponse(
        "A feature uses later rows: a negative shift, a centred window, a statistic of the whole "
        "table, or a backward fill.",
        "Use shift, rolling and expanding windows that end at the row itself.",
    ),
    "cannot overfit one batch": FailureResponse(
        "The model cannot fit even a few examples: the input does not reach the output, the loss "
        "ignores the output, layers are disconnected or saturated, or the capacity is too small.",
        "Follow one example through forward(), and check the activations, detach() calls and the "
        "loss before training on more data.",
    ),
    "no signal": FailureResponse(
        "No dependence of the targets on the features was detected in these rows: labels are "
        "shuffled, shifted or joined to the wrong rows, or there is nothing to learn.",
        "Check how targets are joined to rows. If the target may be unpredictable, set "
        "expects_signal = False on the workload.",
    ),
    "parameter not in optimizer": FailureResponse(
        "A trainable parameter is in no parameter group, so it keeps its initial value: a head "
        "that was replaced after the optimizer was created, or a missing group.",
        "Put every trainable parameter into exactly one group of parameter_groups().",
    ),
    "out of memory": FailureResponse(
        "The model, the batch or the data do not fit into the memory of this machine.",
        "Try first a smaller training.micro_batch_rows, training.precision: bf16, and "
        "training.recompute_activations: true; 'sluice doctor batch-size PIPELINE' measures the "
        "largest batch that fits. Then lower the network's width or depth, load fewer columns, "
        "or use a machine with more memory.",
    ),
    "process crashed": FailureResponse(
        "A library crashed in native code, the operating system ended the process, or the code "
        "called exit().",
        "Run the named line alone; a crash in native code is most often caused by an incompatible "
        "build of a library.",
    ),
    "raw schema mismatch": FailureResponse(
        "The source changed, or an export was truncated or damaged.",
        "Repair the named columns at the source, or correct the declared schema.",
    ),
    "feature schema mismatch": FailureResponse(
        "The columns, dtypes or nulls that compute_features returns differ from the declared "
        "schema of the workload.",
        "Correct compute_features, or declare the returned columns in feature_schema.",
    ),
    "symmetric units": FailureResponse(
        "All units of a layer start with equal weights and get equal gradients, so they never "
        "differ: the weights are initialised with a constant.",
        "Initialise the weights randomly, as torch does by default.",
    ),
    "target leakage": FailureResponse(
        "A feature is the target, or a copy of it under another name.",
        "Remove the column from feature_columns.",
    ),
    "undeclared frozen parameters": FailureResponse(
        "Parameters are excluded from training (requires_grad is False) without being "
        "declared: a backbone that was left frozen, or a loop that froze too many parameters.",
        "Set requires_grad, or name the parameters in the frozen_parameters of the workload.",
    ),
    "nondeterministic predictions": FailureResponse(
        "forward() draws random numbers in eval mode, such as F.dropout without training=, or "
        "keeps state from the previous call.",
        "Pass training=self.training to F.dropout, draw noise only while self.training is True, "
        "and start every forward() from a fresh state.",
    ),
}


def respond(kind: FailureKind) -> FailureResponse:
    """Return the likely cause and the fix for a kind of failure."""
    return _RESPONSES[kind]
