"""Planted defects that end or block a process, and defects for validators without the gate."""

from sluice.bench.poc import checkpoint_defects as checkpoints
from sluice.bench.poc import log_defects
from sluice.bench.poc import training_defects as training
from sluice.bench.poc import workloads as plain
from sluice.bench.poc.planted import Defect, PlantedDefect, ValidatorDefect
from sluice.bench.poc.planting import SHORT_LIMIT, faulty_network, make_setup, with_limits

PROCESS_DEFECTS: tuple[Defect, ...] = (
    PlantedDefect(
        name="loader that hangs",
        check="data_loads",
        summary_texts=("stopped at the limit of 1.5 s", "load_rows"),
        advice_text="profile",
        setup=make_setup(training.LoaderHangs, poc=with_limits(data_loading=SHORT_LIMIT)),
        where="apart",
    ),
    PlantedDefect(
        name="loader that ends the process",
        check="data_loads",
        summary_texts=("status 3",),
        advice_text="exit",
        setup=make_setup(training.LoaderExits),
        where="apart",
    ),
    PlantedDefect(
        name="forward pass that never ends",
        check="model_runs_on_real_batch",
        summary_texts=("stopped at the limit of 1.5 s", "forward"),
        advice_text="profile",
        setup=make_setup(
            plain.Wine, faulty_network("EndlessForward"), poc=with_limits(instantiation=SHORT_LIMIT)
        ),
        where="apart",
    ),
    PlantedDefect(
        name="crash in native code",
        check="model_runs_on_real_batch",
        summary_texts=("SIGSEGV", "forward"),
        advice_text="native code",
        setup=make_setup(plain.Iris, faulty_network("SegfaultInForward")),
        where="apart",
    ),
    PlantedDefect(
        name="disk that cannot be written",
        check="event_log_is_writable",
        summary_texts=("Cannot write",),
        advice_text="the disk",
        setup=make_setup(plain.Iris),
        where="unwritable",
    ),
)

VALIDATOR_DEFECTS: tuple[Defect, ...] = (
    ValidatorDefect(
        name="checkpoint with other keys",
        check="validate_checkpoint",
        check_id="checkpoint",
        summary_texts=("load() left the model as it was",),
        advice_text="strict=True",
        validate=checkpoints.resumption_validator(checkpoints.KeysWithWrapperPrefix),
    ),
    ValidatorDefect(
        name="checkpoint that loses optimizer state",
        check="validate_checkpoint",
        check_id="checkpoint",
        summary_texts=("optimizer", "0.weight"),
        advice_text="optimizer's state_dict()",
        validate=checkpoints.resumption_validator(checkpoints.OptimizerStateLost),
    ),
    ValidatorDefect(
        name="checkpoint that loses the schedule",
        check="validate_checkpoint",
        check_id="checkpoint",
        summary_texts=("schedule", "last_epoch"),
        advice_text="schedule's state_dict()",
        validate=checkpoints.resumption_validator(checkpoints.ScheduleStateLost),
    ),
    ValidatorDefect(
        name="random state not restored",
        check="validate_checkpoint",
        check_id="checkpoint",
        summary_texts=("step 1",),
        advice_text="state of every generator",
        validate=checkpoints.resumption_validator(checkpoints.RandomStateLost),
    ),
    ValidatorDefect(
        name="log without a field in its third epoch",
        check="validate_log",
        check_id="event_log",
        summary_texts=("line 5", "epoch_complete", "val_loss"),
        advice_text="named field",
        validate=log_defects.third_epoch_incomplete,
    ),
    ValidatorDefect(
        name="log with a number as text",
        check="validate_log",
        check_id="event_log",
        summary_texts=("line 4", "train_loss"),
        advice_text="another type",
        validate=log_defects.loss_as_text,
    ),
)
