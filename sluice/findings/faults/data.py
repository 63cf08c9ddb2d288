"""Faults of the data: its columns, rows, labels, splits and loading."""

from functools import partial
from typing import Literal

from sluice.findings.fault import Fault

DataFault = Literal[
    "constant column",
    "constant target",
    "duplicate rows",
    "raw schema mismatch",
    "feature schema mismatch",
    "missing columns",
    "too few rows",
    "folds out of order",
    "folds overlap",
    "look-ahead",
    "split dependence",
    "target leakage",
    "sequence of one row",
    "shuffled labels",
    "preprocessing skew",
    "train-validation leakage",
    "non-finite input",
    "index out of range",
    "duplicate worker seeds",
    "repeated epoch order",
]

_fault = partial(Fault, topic="data")

DATA_FAULTS: tuple[Fault, ...] = (
    _fault(
        id="constant-column",
        name="constant column",
        severity="error",
        description=(
            "A feature has the same value in every training row, so the network learns nothing "
            "from it."
        ),
        cause=(
            "A column has the same value in every train row: a join without matches, a default "
            "that was never replaced, or a window longer than the table."
        ),
        fix=(
            "Drop the feature, repair its source, or declare Column(constant=True) if it may be "
            "constant."
        ),
        detectors=(
            "POC gate",
            "tracer",
        ),
    ),
    _fault(
        id="constant-target",
        name="constant target",
        severity="error",
        description="All training targets are equal, so there is nothing to learn.",
        cause=(
            "The target was joined from an empty source or filled with a default, or the train "
            "rows contain only one class."
        ),
        fix=(
            "Repair the target. If the loss computes its own target, set expects_signal = False "
            "on the workload."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="duplicate-rows",
        name="duplicate rows",
        severity="error",
        description="Rows occur more than once in the source.",
        cause="The source was loaded twice, a join multiplied rows, or two exports overlap.",
        fix=(
            "Remove the repeated rows at the source; rows that occur in both train and test are a "
            "data leak."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="raw-schema-mismatch",
        name="raw schema mismatch",
        severity="error",
        description="The source does not have the declared columns, dtypes or values.",
        cause="The source changed, or an export was truncated or damaged.",
        fix="Repair the named columns at the source, or correct the declared schema.",
        detectors=("POC gate",),
    ),
    _fault(
        id="feature-schema-mismatch",
        name="feature schema mismatch",
        severity="error",
        description="The computed features do not have the declared columns, dtypes or values.",
        cause=(
            "The columns, dtypes or nulls that compute_features returns differ from the declared "
            "schema of the workload."
        ),
        fix="Correct compute_features, or declare the returned columns in feature_schema.",
        detectors=("POC gate",),
    ),
    _fault(
        id="missing-columns",
        name="missing columns",
        severity="error",
        description="Columns that the workload requires are absent.",
        cause="The source changed its columns, or a feature was renamed.",
        fix=(
            "Rename the columns in the source, or declare the existing columns in the workload's "
            "schema."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="too-few-rows",
        name="too few rows",
        severity="error",
        description="A split has fewer rows than a check requires.",
        cause="The train split of the fold has fewer rows than the check needs for a conclusion.",
        fix=(
            "Provide more rows, shorten seq_len, or lower the minimum number of rows of the check "
            "in the poc settings."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="folds-out-of-order",
        name="folds out of order",
        severity="error",
        description="The training rows of a fold are later than the rows it is evaluated on.",
        cause=(
            "The rows are newest first, or the folds were shuffled or planned for another order of "
            "the rows."
        ),
        fix=(
            "Sort the rows by time, oldest first, and let plan_folds() put train before "
            "validation and test, as walk_forward() does."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="folds-overlap",
        name="folds overlap",
        severity="error",
        description="A row belongs to two splits of one fold.",
        cause=(
            "plan_folds() assigns the same rows to two splits of a fold, so the model is selected "
            "or evaluated on rows it was trained on."
        ),
        fix=(
            "Start each split after the end of the previous one, with a gap of horizon_rows, as "
            "walk_forward() does."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="look-ahead",
        name="look-ahead",
        severity="error",
        description=(
            "A feature of a row changes when later rows change, so it uses information that is "
            "unknown at prediction time."
        ),
        cause=(
            "A feature uses later rows: a negative shift, a centred window, a statistic of the "
            "whole table, or a backward fill."
        ),
        fix="Use positive shifts, and rolling or expanding windows that end at the row itself.",
        detectors=("POC gate",),
    ),
    _fault(
        id="split-dependence",
        name="split dependence",
        severity="error",
        description="The inputs of a row depend on the other rows of its split.",
        cause=(
            "Inputs are scaled or filled with statistics of their own split, so validation and "
            "test inputs contain information that is not known at prediction time."
        ),
        fix="Fit normalisers on the train rows only and apply them unchanged to every other split.",
        detectors=("POC gate",),
    ),
    _fault(
        id="target-leakage",
        name="target leakage",
        severity="error",
        description=(
            "A feature equals or nearly equals the target, because it is computed from the target."
        ),
        cause="A feature is the target, or a copy of it under another name.",
        fix="Remove the column from feature_columns.",
        detectors=("POC gate",),
    ),
    _fault(
        id="sequence-of-one-row",
        name="sequence of one row",
        severity="warning",
        description=(
            "Inputs are windows of one row, so the recurrent weights of the network have no effect."
        ),
        cause="seq_len is 1: a recurrent network has no earlier row in its window.",
        fix="Raise seq_len, or use another architecture, such as 'linear'.",
        detectors=("POC gate",),
    ),
    _fault(
        id="shuffled-labels",
        name="shuffled labels",
        severity="error",
        description=(
            "The targets do not depend on the inputs, so the network can only memorize them."
        ),
        cause=(
            "No dependence of the targets on the features was detected in these rows: labels are "
            "shuffled, shifted or joined to the wrong rows, or there is nothing to learn."
        ),
        fix=(
            "Check how targets are joined to rows. If the target may be unpredictable, set "
            "expects_signal = False on the workload."
        ),
        detectors=(
            "POC gate",
            "tracer",
        ),
    ),
    _fault(
        id="preprocessing-skew",
        name="preprocessing skew",
        severity="error",
        description=(
            "Inputs are preprocessed differently in training and in evaluation, or their columns "
            "have another order."
        ),
        cause=(
            "A scaler is fitted again for the evaluation, a scaler is applied only in training or "
            "only in evaluation, or training and evaluation select their columns separately."
        ),
        fix=(
            "Fit one preprocessing on the training rows. Use it, with one list of columns, for "
            "training and evaluation."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="train-validation-leakage",
        name="train-validation leakage",
        severity="error",
        description=(
            "Evaluation rows, or windows that overlap them, are also training rows, so the scores "
            "do not predict the scores on new data."
        ),
        cause="Rows were copied, resampled or cut into windows before they were split.",
        fix=(
            "Split the rows before any other step, and remove duplicates across the splits. Split "
            "a series by time, with a gap of one window."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="non-finite-input",
        name="non-finite input",
        severity="error",
        description=(
            "A batch contains NaN or infinity, which can make the loss, all gradients and then all "
            "weights NaN."
        ),
        cause=(
            "Missing values were not imputed, or a transformation divides by 0 or takes the "
            "logarithm of 0."
        ),
        fix="Impute or drop missing values before the first epoch, and check each column.",
        detectors=("tracer",),
    ),
    _fault(
        id="index-out-of-range",
        name="index out of range",
        severity="error",
        description="An id is outside its table, or classes are numbered incorrectly.",
        cause=(
            "Ids or classes are not numbered from 0, the table is too small, or a missing value "
            "is coded as -1."
        ),
        fix=(
            "Number ids and classes from 0 without gaps, and make the table one row larger than "
            "the largest id."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="duplicate-worker-seeds",
        name="duplicate worker seeds",
        severity="error",
        description="Workers of a data loader draw the same random numbers or yield the same rows.",
        cause=(
            "Each worker copies the generators of the dataset, so all workers draw the same "
            "numbers; or a stream is not divided among the workers."
        ),
        fix=(
            "Use torch's random numbers, which differ in each worker, or seed other generators in "
            "worker_init_fn with torch.initial_seed() % 2**32. Divide a stream: each worker yields "
            "every num_workers-th row."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="repeated-epoch-order",
        name="repeated epoch order",
        severity="error",
        description="A shuffling loader yields the same batches in the same order in every epoch.",
        cause=(
            "set_epoch() of a distributed sampler is not called, or the generator is seeded again "
            "in every epoch."
        ),
        fix="Call sampler.set_epoch(epoch) before each epoch, or create the generator once.",
        detectors=("tracer",),
    ),
)
