"""Defects that end or block a process, and those for a validator that is used alone."""

from sluice.bench.poc import checkpoint_defects as checkpoints
from sluice.bench.poc import log_defects
from sluice.bench.poc import training_defects as training
from sluice.bench.poc import workloads as plain
from sluice.bench.poc.planted import Defect, Planted, PlantedAlone
from sluice.bench.poc.planting import SOON, faulty, planted_in, with_limits

PROCESS_DEFECTS: tuple[Defect, ...] = (
    Planted(
        name="loader that hangs",
        check="data_loads",
        says=("stopped at the limit of 1.5 s", "load_rows"),
        advises="profile",
        setup=planted_in(training.LoaderHangs, poc=with_limits(data_loading=SOON)),
        where="apart",
    ),
    Planted(
        name="loader that ends the process",
        check="data_loads",
        says=("status 3",),
        advises="exit",
        setup=planted_in(training.LoaderLeaves),
        where="apart",
    ),
    Planted(
        name="forward pass that never ends",
        check="model_runs_on_real_batch",
        says=("stopped at the limit of 1.5 s", "forward"),
        advises="profile",
        setup=planted_in(plain.Wine, faulty("NeverReady"), poc=with_limits(instantiation=SOON)),
        where="apart",
    ),
    Planted(
        name="crash in native code",
        check="model_runs_on_real_batch",
        says=("SIGSEGV", "forward"),
        advises="native code",
        setup=planted_in(plain.Iris, faulty("CrashesInside")),
        where="apart",
    ),
    Planted(
        name="disk that cannot be written",
        check="event_log_is_writable",
        says=("Cannot write",),
        advises="the disk",
        setup=planted_in(plain.Iris),
        where="unwritable",
    ),
)

LONE_DEFECTS: tuple[Defect, ...] = (
    PlantedAlone(
        name="checkpoint with other keys",
        check="validate_checkpoint",
        check_id="checkpoint",
        says=("load() left the model as it was",),
        advises="strict=True",
        validate=checkpoints.resumes(checkpoints.OtherKeys),
    ),
    PlantedAlone(
        name="checkpoint that loses optimizer state",
        check="validate_checkpoint",
        check_id="checkpoint",
        says=("optimizer", "0.weight"),
        advises="optimizer's state_dict()",
        validate=checkpoints.resumes(checkpoints.FreshOptimizer),
    ),
    PlantedAlone(
        name="checkpoint that loses the schedule",
        check="validate_checkpoint",
        check_id="checkpoint",
        says=("schedule", "last_epoch"),
        advises="schedule's state_dict()",
        validate=checkpoints.resumes(checkpoints.FreshSchedule),
    ),
    PlantedAlone(
        name="random state not restored",
        check="validate_checkpoint",
        check_id="checkpoint",
        says=("step 1",),
        advises="state of every generator",
        validate=checkpoints.resumes(checkpoints.FreshRandomness),
    ),
    PlantedAlone(
        name="log without a field in its third epoch",
        check="validate_log",
        check_id="event_log",
        says=("line 5", "epoch_complete", "val_loss"),
        advises="named field",
        validate=log_defects.third_event_incomplete,
    ),
    PlantedAlone(
        name="log with a number as text",
        check="validate_log",
        check_id="event_log",
        says=("line 4", "train_loss"),
        advises="another type",
        validate=log_defects.loss_as_text,
    ),
)
