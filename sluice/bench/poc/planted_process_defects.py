"""Planted defects that end or block a process, and defects for validators without the gate."""

from sluice.bench.poc import checkpoint_defects, log_defects, training_defects, workloads
from sluice.bench.poc.planted import Defect, PlantedDefect, ValidatorDefect
from sluice.bench.poc.planting import SHORT_LIMIT, faulty_network, make_setup, with_time_limits

PROCESS_DEFECTS: tuple[Defect, ...] = (
    PlantedDefect(
        name="loader that hangs",
        check="data_loads",
        summary_texts=("stopped at the limit of 1.5 s", "load_rows"),
        advice_text="profile",
        setup=make_setup(
            training_defects.LoaderHangs, poc=with_time_limits(data_loading=SHORT_LIMIT)
        ),
        run_mode="child process",
    ),
    PlantedDefect(
        name="loader that ends the process",
        check="data_loads",
        summary_texts=("status 3",),
        advice_text="exit",
        setup=make_setup(training_defects.LoaderExits),
        run_mode="child process",
    ),
    PlantedDefect(
        name="forward pass that never ends",
        check="model_runs_on_real_batch",
        summary_texts=("stopped at the limit of 1.5 s", "forward"),
        advice_text="profile",
        setup=make_setup(
            workloads.Wine,
            faulty_network("EndlessForward"),
            poc=with_time_limits(instantiation=SHORT_LIMIT),
        ),
        run_mode="child process",
    ),
    PlantedDefect(
        name="crash in native code",
        check="model_runs_on_real_batch",
        summary_texts=("SIGSEGV", "forward"),
        advice_text="native code",
        setup=make_setup(workloads.Iris, faulty_network("SegfaultInForward")),
        run_mode="child process",
    ),
    PlantedDefect(
        name="folder that cannot be written",
        check="event_log_is_writable",
        summary_texts=("Cannot write",),
        advice_text="the disk",
        setup=make_setup(workloads.Iris),
        run_mode="unwritable folder",
    ),
)

VALIDATOR_DEFECTS: tuple[Defect, ...] = (
    ValidatorDefect(
        name="checkpoint with other keys",
        check="validate_checkpoint",
        check_id="checkpoint",
        summary_texts=("load() left the model as it was",),
        advice_text="strict=True",
        validate=checkpoint_defects.resumption_validator(checkpoint_defects.KeysWithWrapperPrefix),
    ),
    ValidatorDefect(
        name="checkpoint that loses optimizer state",
        check="validate_checkpoint",
        check_id="checkpoint",
        summary_texts=("optimizer", "0.weight"),
        advice_text="optimizer's state_dict()",
        validate=checkpoint_defects.resumption_validator(checkpoint_defects.OptimizerStateLost),
    ),
    ValidatorDefect(
        name="checkpoint that loses the schedule",
        check="validate_checkpoint",
        check_id="checkpoint",
        summary_texts=("schedule", "last_epoch"),
        advice_text="schedule's state_dict()",
        validate=checkpoint_defects.resumption_validator(checkpoint_defects.ScheduleStateLost),
    ),
    ValidatorDefect(
        name="random state not restored",
        check="validate_checkpoint",
        check_id="checkpoint",
        summary_texts=("step 1",),
        advice_text="state of every generator",
        validate=checkpoint_defects.resumption_validator(checkpoint_defects.RandomStateLost),
    ),
    ValidatorDefect(
        name="log without a field in its third epoch",
        check="validate_log",
        check_id="event_log",
        summary_texts=("line 5", "epoch_complete", "val_loss"),
        advice_text="named field",
        validate=log_defects.validate_log_without_val_loss,
    ),
    ValidatorDefect(
        name="log with a number as text",
        check="validate_log",
        check_id="event_log",
        summary_texts=("line 4", "train_loss"),
        advice_text="another type",
        validate=log_defects.validate_log_with_loss_as_text,
    ),
)
