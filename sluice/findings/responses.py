"""What each kind of failure usually means and what to do about it (RESP-1)."""

from dataclasses import dataclass
from typing import Literal

FailureKind = Literal[
    "checkpoint mismatch",
    "code raised",
    "collapse",
    "constant feature",
    "dead units",
    "defect of Sluice",
    "duplicate rows",
    "epoch selector wrong",
    "examples depend on their split",
    "examples mixed",
    "explosion",
    "feature schema broken",
    "few distinct predictions",
    "folds out of order",
    "folds overlap",
    "gate over time",
    "gate over typical time",
    "log not writable",
    "log validation failed",
    "look-ahead",
    "loss not a number",
    "mini training diverged",
    "mini training without progress",
    "missing columns",
    "missing gradients",
    "NaN gradients",
    "no gradients",
    "no memorization",
    "no signal",
    "non-finite loss",
    "non-finite output",
    "not in the optimizer",
    "out of memory",
    "process ended",
    "raw schema broken",
    "shape mismatch",
    "symmetric units",
    "target among features",
    "too few rows",
    "undeclared frozen",
    "unsteady predictions",
    "wrong loss shape",
    "zero gradients",
]


@dataclass(frozen=True, slots=True)
class Response:
    """The likely cause of a failure and the next thing to do."""

    cause: str
    fix: str


_RESPONSES: dict[FailureKind, Response] = {
    "code raised": Response(
        "The workload's or the model's own code raised an exception.",
        "Correct the named line, then run the gate again.",
    ),
    "defect of Sluice": Response(
        "Sluice's own code raised, not the workload's or the model's: this is a defect of Sluice. "
        "It should have handled the value that it received, or refused it with a reason.",
        "Please report it with this message, and with the dtypes and shapes of your inputs and "
        "targets.",
    ),
    "checkpoint mismatch": Response(
        "The model is built differently from the one that was saved: another width, depth or "
        "feature count, or a state that state_dict does not hold.",
        "Build the model from the settings saved with the checkpoint, and register every tensor "
        "that a prediction needs as parameter or buffer.",
    ),
    "collapse": Response(
        "The model predicts almost the same for every input: its features do not reach the "
        "output, or the rate drove its units into saturation.",
        "Check the scaling of the features, then lower learning_rate and weight_decay.",
    ),
    "epoch selector wrong": Response(
        "select_epoch does not return the epoch with the lowest finite score: it may maximise, "
        "look at positions instead of scores, or let NaN win a comparison.",
        "Return the earliest epoch with the lowest finite score and raise when there is none, "
        "as sluice.workloads.best_epoch.best_epoch does.",
    ),
    "explosion": Response(
        "Numbers grow on their way: unscaled features or targets, a high learning rate, an "
        "output without the target's scale, or a long unnormalised recurrence.",
        "Standardise features and target, lower learning_rate, or lower clip_norm.",
    ),
    "gate over time": Response(
        "The check took longer than it may: the model or its slice is too large for this machine, "
        "or the workload's code is slow.",
        "Use a smaller probe (poc settings), profile the named check, or raise its maximum "
        "if the time is justified.",
    ),
    "gate over typical time": Response(
        "The check is slower than usual: a busy machine or a large model.",
        "Nothing must be done; profile the named check if this repeats.",
    ),
    "log validation failed": Response(
        "Code that writes the event log left a field out, or gave it another type.",
        "Write the named field with every event of that type, then run again.",
    ),
    "log not writable": Response(
        "The folder of the event log is read-only, full, or belongs to someone else.",
        "Make the folder writable or point SLUICE_HOME at one that is.",
    ),
    "loss not a number": Response(
        "The workload's loss does not return a torch tensor of floating-point type.",
        "Return a floating-point tensor computed with torch from the model's output.",
    ),
    "mini training diverged": Response(
        "Training threw the weights far away: learning_rate is too high, clip_norm too large, or "
        "loss() has the wrong sign.",
        "Lower learning_rate by a factor of 10 until the loss falls; check the loss's sign.",
    ),
    "mini training without progress": Response(
        "The loss does not fall by more than seeds explain: learning_rate is too low or too "
        "high, layers are frozen, loss() and losses() disagree, or the features say nothing "
        "about the target.",
        "Try learning_rate between 1e-4 and 1e-2, check that every layer requires gradients, "
        "and compare features with targets.",
    ),
    "missing columns": Response(
        "The source changed its columns, or a feature was renamed.",
        "Rename the columns in the source, or declare what is there in the workload's schema.",
    ),
    "missing gradients": Response(
        "A parameter takes no part in the loss: an unused layer, a detach(), or a no_grad() "
        "block before it.",
        "Use the named parameters in forward(), remove the detach, or delete them.",
    ),
    "NaN gradients": Response(
        "A division by 0, log of 0, square root at 0, or NaN in the features or weights.",
        "Clamp the argument of log, sqrt and division, and check features and initial weights.",
    ),
    "no gradients": Response(
        "Nothing can be learned: every layer is frozen, or the output is cut off from the "
        "parameters by detach() or no_grad().",
        "Set requires_grad on the layers to be trained and remove the detach.",
    ),
    "non-finite loss": Response(
        "The loss is NaN or infinite on the first batch: log of 0, division by 0, an overflow, or "
        "NaN in the targets.",
        "Clamp the argument of log and division in the loss and check the target column.",
    ),
    "non-finite output": Response(
        "NaN or infinity in the weights, in the features, or an overflow in forward().",
        "Check the initialisation and the features of the named rows.",
    ),
    "shape mismatch": Response(
        "The model was built for another number of features or outputs than the workload gives.",
        "Build the model from the given num_features and num_outputs, and return an output of "
        "the shape that output_shape() declares.",
    ),
    "too few rows": Response(
        "The fold's train rows are fewer than the check needs to say anything.",
        "Give more rows, shorten seq_len, or lower the check's own need in the poc settings.",
    ),
    "wrong loss shape": Response(
        "The reduction over the batch is missing in loss(), or too much is reduced in losses().",
        "Return one value per example (B,) from losses(), and from loss() one value, for example "
        "losses(...).mean().",
    ),
    "zero gradients": Response(
        "A parameter has no influence on this batch: dead units, saturated gates, or an "
        "initialisation at exactly 0.",
        "Check activation and initialisation around the named parameters.",
    ),
    "constant feature": Response(
        "A column holds one value in every train row: a join that found nothing, a default "
        "that was never replaced, or a window longer than the table.",
        "Drop the feature, repair its source, or declare Column(constant=True) if it may be "
        "constant.",
    ),
    "dead units": Response(
        "Units that are never active get no gradient and never learn again: a large negative "
        "bias, or an initialisation or rate that pushed them there.",
        "Check bias and initialisation of the named layer, lower learning_rate, or use a "
        "leaky activation.",
    ),
    "duplicate rows": Response(
        "The source was loaded twice, a join multiplied rows, or two exports overlap.",
        "Remove the repeated rows at the source; repeated rows in train and test are a leak.",
    ),
    "examples depend on their split": Response(
        "Inputs are scaled or filled with statistics of the split they are in, so validation "
        "and test are prepared with what is not known then.",
        "Fit normalisers on the train rows only and apply them unchanged to every other split.",
    ),
    "examples mixed": Response(
        "forward() mixes the examples of a batch: a recurrent or transformer layer that takes the "
        "first axis for time, a statistic over axis 0, or a reshape across it.",
        "Pass batch_first=True to recurrent, attention and transformer layers, and compute "
        "nothing over axis 0. Statistics of the data belong into buffers, as batch norm keeps "
        "them.",
    ),
    "few distinct predictions": Response(
        "The output is rounded, saturated, or depends on one rare feature only.",
        "Look at the last layer: a sigmoid, tanh or clamp that saturates, or an integer cast.",
    ),
    "folds out of order": Response(
        "The rows are newest first, or the folds were shuffled or taken from another order, so "
        "training sees what comes after the rows it is measured on.",
        "Sort the rows by time, oldest first, and let plan_folds() put train before validation "
        "and test, as walk_forward() does.",
    ),
    "folds overlap": Response(
        "plan_folds() gives the same rows to two parts of a fold, so the model is chosen or "
        "measured on rows it was fitted to.",
        "Let each part begin where the one before has ended, with a gap of horizon_rows, as "
        "walk_forward() does.",
    ),
    "look-ahead": Response(
        "A feature uses rows that are not known yet: a negative shift, a centred window, a "
        "statistic of the whole table, or filling backwards.",
        "Use shift, rolling and expanding windows that end at the row itself.",
    ),
    "no memorization": Response(
        "The model cannot fit even a few examples: the input does not reach the output, the "
        "loss ignores the output, layers are cut off or saturated, or capacity is too small.",
        "Follow one example through forward(); check activation, detach and the loss before "
        "training on more.",
    ),
    "no signal": Response(
        "Targets do not depend on the features as far as these rows show: labels are "
        "shuffled, shifted or joined to the wrong rows, or there is nothing to learn.",
        "Check how targets are joined to rows. If the target may be unpredictable, set "
        "expects_signal = False on the workload.",
    ),
    "not in the optimizer": Response(
        "A trainable parameter is in no parameter group, so it keeps its initial value: a "
        "head replaced after the optimizer was made, or a group that was forgotten.",
        "Put every trainable parameter into exactly one group of parameter_groups().",
    ),
    "out of memory": Response(
        "Model, batch or data are larger than the memory of this machine.",
        "Try first a smaller training.micro_batch_rows, training.precision: bf16, and "
        "training.recompute_activations: true; 'sluice doctor batch-size PIPELINE' measures the "
        "largest batch that fits. Then lower the network's width or depth, load fewer columns, "
        "or use a machine with more memory.",
    ),
    "process ended": Response(
        "A library crashed in native code, the system ended the process, or the code called exit.",
        "Run the named line alone; a crash in native code is most often a wrong build of a "
        "library.",
    ),
    "raw schema broken": Response(
        "The source changed, or an export was cut off or damaged.",
        "Repair the named columns at the source, or correct the declared schema.",
    ),
    "feature schema broken": Response(
        "compute_features gives other columns, dtypes or gaps than the workload declares.",
        "Correct compute_features, or declare what it gives in feature_schema.",
    ),
    "symmetric units": Response(
        "All units of a layer start alike and get the same gradient, so they stay one unit: "
        "an initialisation at a constant.",
        "Initialise weights at random, as torch does by default.",
    ),
    "target among features": Response(
        "A feature is the target, or a copy of it under another name.",
        "Take the column out of feature_columns.",
    ),
    "undeclared frozen": Response(
        "Parameters are excluded from training (requires_grad is False) without being "
        "declared: a backbone that was left frozen, or a loop that froze too much.",
        "Set requires_grad, or name them in the frozen_parameters of the workload.",
    ),
    "unsteady predictions": Response(
        "forward() draws random numbers in eval mode, such as F.dropout without training=, or "
        "keeps a state from the call before.",
        "Pass training=self.training to F.dropout, draw noise only while self.training, and begin "
        "every forward() from a fresh state.",
    ),
}


def respond(kind: FailureKind) -> Response:
    """Return the likely cause and the fix of a kind of failure."""
    return _RESPONSES[kind]
