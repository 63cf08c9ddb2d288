"""The gate as one function call in a training script."""

import os
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rich.console import Console

from sluice.base.errors import GateBlocked, SettingsError
from sluice.base.home import Home
from sluice.base.settings import suggest_nearest
from sluice.config.poc_settings import PocSettings, TimeLimit
from sluice.failfast.gate.display import LiveLines, report_page, stderr_console
from sluice.failfast.gate.nested import is_inside_gate, run_registered_callback
from sluice.failfast.gate.request import GateRequest, WorkloadTarget
from sluice.failfast.gate.supervisor import supervise
from sluice.failfast.result import CheckResult, GateReport, Level
from sluice.findings.check_outcome import CheckOutcome
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


def check(
    workload: Workload | type[Workload] | None = None,
    *,
    frame: "pd.DataFrame | None" = None,
    target: str | None = None,
    level: Level = "full",
    model: ModelSettings | None = None,
    training: TrainSettings = TrainSettings(),  # noqa: B008 - frozen
    settings: PocSettings = PocSettings(),  # noqa: B008 - frozen
    seed: int = 0,
    console: Console | None = None,
    stop: bool = True,
) -> GateReport:
    """Run the gate on a workload; return the report, or raise when training must not start.

    Call it before the training, in the script itself::

        from sluice import failfast

        failfast.check(MyWorkload)
        train_for_hours()

    A data frame needs no workload: ``failfast.check(frame=rows, target="price")``. For other
    inputs, another task or another order of rows, see ``workload_of_frame``.

    The gate runs in a separate process, which imports the workload again. If the class is defined
    in the script, that process runs the script up to this call, so the code above it runs twice.

    Args:
        workload: A workload class, or an instance, of which the gate uses the class and the
            settings.
        frame: Rows from which ``target`` is predicted, instead of a workload.
        target: Name of the target column of ``frame``.
        level: 'full', or 'minimum' for the checks of rows, schema, features, model, gradients,
            event log, epoch selector and mini training.
        model: Architecture and size; by default ``default_architecture`` of the workload, which is
            'mlp' for a frame and 'gru' otherwise.
        training: Settings of the real training.
        settings: Thresholds and time limits.
        seed: Base seed of all random numbers.
        console: Destination of progress and report; stderr by default.
        stop: Whether to raise ``GateBlocked`` if the gate does not pass, so that a training after
            the call does not start. If false, the report is always returned.

    Raises:
        GateBlocked: A check failed or was inconclusive; the message names the first such check and
            its fix.
        SettingsError: Neither a workload nor a frame with a target is given, or both are;
            ``workload`` is not a workload; ``level`` is unknown; the workload's class cannot be
            imported in another process; or the settings do not reproduce the instance.
    """
    if level not in get_args(Level):
        raise SettingsError(
            f"level must be {' or '.join(map(repr, get_args(Level)))}, got {level!r}."
            f"{suggest_nearest(str(level), list(get_args(Level)))}",
            fix="Pass one of these levels.",
        )
    workload = require_workload(workload, frame=frame, target=target)
    cls = workload if isinstance(workload, type) else type(workload)
    run_registered_callback(cls)
    if is_inside_gate():
        return _nested_report(cls, level)
    instance = workload() if isinstance(workload, type) else require_rebuildable(workload)
    module, script = module_and_script(cls)
    request = GateRequest(
        target=WorkloadTarget(
            path=f"{module}:{cls.__qualname__}",
            settings=instance.settings.model_dump_json(),
            script=script,
            argv=tuple(sys.argv),
            model=model or ModelSettings(architecture=workload.default_architecture),
            training=training,
            poc=settings,
        ),
        level=level,
        seed=seed,
    )
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    output_console = console or stderr_console()
    with LiveLines(output_console, report_follows=True) as lines:
        run = supervise(request, folder=home.gates, on_event=lines)
    output_console.print(report_page(run.report))
    if stop and not run.report.passed:
        first_failure = (run.report.blocking_failures or run.report.results)[0]
        raise GateBlocked(run.report.reason, cause=first_failure.cause, fix=first_failure.fix)
    return run.report


def require_workload(
    workload: Workload | type[Workload] | None,
    *,
    frame: "pd.DataFrame | None",
    target: str | None,
) -> Workload | type[Workload]:
    """Return the workload, or a workload of the data frame.

    Raises:
        SettingsError: Neither a workload nor a frame is given, or both are; the frame or its target
            is missing; or ``workload`` is not a workload.
    """
    if workload is not None and not _is_workload(workload):
        is_frame = type(workload).__name__ == "DataFrame"
        raise SettingsError(
            "workload must be a workload class or an instance of one, got "
            f"{'a data frame' if is_frame else _describe_argument(workload)}.",
            fix="Pass a data frame by keyword, with its target: frame=..., target='...'."
            if is_frame
            else "Pass the class of your workload; or frame=... and target='...'.",
        )
    if workload is not None and frame is None and target is None:
        return workload
    if workload is None and frame is not None and target is not None:
        from sluice.workloads.frame import workload_of_frame

        return workload_of_frame(frame, target)
    arguments = {"workload": workload, "frame": frame, "target": target}
    names = ", ".join(name for name, value in arguments.items() if value is not None)
    raise SettingsError(
        f"Either a workload, or a frame and its target, are required, got {names or 'neither'}.",
        fix="Pass the class of your workload; or frame=... and target='...'.",
    )


def _is_workload(value: object) -> bool:
    return isinstance(value, Workload) or (isinstance(value, type) and issubclass(value, Workload))


def _describe_argument(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}, which is not a subclass of sluice.Workload"
    return repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def module_and_script(cls: type) -> tuple[str, str | None]:
    """Return the module that defines the class, and the file if the module is a script.

    Raises:
        SettingsError: Another process cannot import the class.
    """
    if "<locals>" in cls.__qualname__:
        raise SettingsError(
            f"Another process must be able to import the workload {cls.__qualname__}, but the "
            "class is defined inside a function.",
            fix="Define the class at the top level of its module.",
        )
    if cls.__module__ != "__main__":
        return cls.__module__, None
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name), None
    script = getattr(main, "__file__", None)
    if script is None or not Path(script).is_file():
        raise SettingsError(
            f"The workload {cls.__qualname__} must be defined in a file, and is not.",
            cause="The class was defined in an interactive session.",
            fix="Save the class in a module, and import it from the module.",
        )
    return "__main__", str(Path(script).resolve())


def require_rebuildable(workload: Workload) -> Workload:
    """Return the instance if its settings alone reproduce it.

    Raises:
        SettingsError: The settings do not reproduce the instance, so another process would check
            another workload.
    """
    cls = type(workload)
    try:
        rebuilt = cls(workload.settings)
    except TypeError as error:
        differing_names = [f"__init__ ({error})"]
    else:
        attributes, rebuilt_attributes = vars(workload), vars(rebuilt)
        differing_names = [
            name
            for name in sorted(attributes | rebuilt_attributes)
            if _pickle_attribute(attributes, name) != _pickle_attribute(rebuilt_attributes, name)
        ]
    if differing_names:
        raise SettingsError(
            f"{cls.__qualname__}(settings) must reproduce the instance that was passed to check(); "
            f"these attributes differ: {', '.join(differing_names)}.",
            cause="The gate runs in a separate process, which builds the workload from its "
            "settings.",
            fix="Make the differing attributes fields of the workload's settings class.",
        )
    return workload


def _pickle_attribute(values: dict[str, object], name: str) -> bytes | None:
    """Return an attribute's value as comparable bytes; None if the value cannot be pickled."""
    if name not in values:
        return b"absent"
    try:
        return pickle.dumps(values[name])
    except (pickle.PicklingError, TypeError, AttributeError):  # a connection, a function
        return None


def _nested_report(cls: type, level: Level) -> GateReport:
    """Return the report of a ``check()`` call inside the gate's process: one skipped check."""
    outcome = CheckOutcome(
        outcome="skipped",
        summary="Skipped: this process belongs to a running gate, which checks one workload.",
        fix="No action is required: the process that called check() first gets the report.",
    )
    skipped = CheckResult.of(
        outcome,
        name="gate_runs",
        check_id="gate",
        seconds=0.0,
        limit=TimeLimit(typical_s=1.0, max_s=1.0),
    )
    return GateReport(level=level, workload=cls.__name__, results=(skipped,), seconds=0.0)
