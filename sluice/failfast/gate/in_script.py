"""The gate as one call in anyone's training script."""

import os
import pickle
import sys
from pathlib import Path

from rich.console import Console

from sluice.base.errors import GateBlocked, SettingsError
from sluice.base.home import Home
from sluice.config.poc_settings import PocSettings, TimeLimit
from sluice.failfast.gate.display import LiveLines, report_page, stderr_console
from sluice.failfast.gate.nested import reached
from sluice.failfast.gate.request import GateRequest, WorkloadTarget
from sluice.failfast.gate.supervisor import supervise
from sluice.failfast.result import CheckResult, GateReport, Level
from sluice.findings.finding import Finding
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload


def check(
    workload: Workload | type[Workload],
    *,
    level: Level = "full",
    model: ModelSettings = ModelSettings(),  # noqa: B008 - frozen
    training: TrainSettings = TrainSettings(),  # noqa: B008 - frozen
    settings: PocSettings = PocSettings(),  # noqa: B008 - frozen
    seed: int = 0,
    console: Console | None = None,
) -> GateReport:
    """Run the gate on a workload; return its report, or raise when training must not start.

    Put it before the training, in the script itself::

        from sluice import failfast

        failfast.check(MyWorkload)
        train_for_hours()

    The gate runs in a process of its own, which imports the workload again: a class that stands in
    the script is found by reading the script up to this call, so what is above it runs twice.

    Args:
        workload: The class, or an instance whose settings count.
        level: 'full', or 'minimum' for POC-1 to POC-5 and the data they stand on.
        model: Architecture and size.
        training: Settings of the real training.
        settings: Thresholds and time limits.
        seed: Base seed of everything drawn.
        console: Where progress and the summary go; stderr when not given.

    Raises:
        GateBlocked: A check failed or could not say; the message names the first and its fix.
        SettingsError: Another process cannot find the workload's class, or would build another
            instance from its settings.
    """
    cls = workload if isinstance(workload, type) else type(workload)
    if reached(cls):
        return _not_again(cls, level)
    instance = workload() if isinstance(workload, type) else _rebuildable(workload)
    module, script = _found_in(cls)
    request = GateRequest(
        target=WorkloadTarget(
            path=f"{module}:{cls.__qualname__}",
            settings=instance.settings.model_dump_json(),
            script=script,
            argv=tuple(sys.argv),
            model=model,
            training=training,
            poc=settings,
        ),
        level=level,
        seed=seed,
    )
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    show = console or stderr_console()
    with LiveLines(show) as lines:
        run = supervise(request, folder=home.gates, on_event=lines)
    show.print(report_page(run.report))
    if not run.report.passed:
        first = (run.report.blocking_failures or run.report.results)[0]
        raise GateBlocked(run.report.reason, cause=first.cause, fix=first.fix)
    return run.report


def _found_in(cls: type) -> tuple[str, str | None]:
    """Return the module to import the class from, and the file to read when it is a script.

    Raises:
        SettingsError: Another process cannot find it.
    """
    if "<locals>" in cls.__qualname__:
        raise SettingsError(
            f"The workload {cls.__qualname__} must be found by another process, and is defined "
            "inside a function.",
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
            f"The workload {cls.__qualname__} must be read from a file, and there is none.",
            cause="It was typed into an interactive session.",
            fix="Save it as a module and import it from there.",
        )
    return "__main__", str(Path(script).resolve())


def _rebuildable(workload: Workload) -> Workload:
    """Return the instance, if its settings alone make one that is alike.

    Raises:
        SettingsError: They do not; another process would judge something else.
    """
    cls = type(workload)
    try:
        again = cls(workload.settings)
    except TypeError as error:
        differing = [f"__init__ ({error})"]
    else:
        mine, other = vars(workload), vars(again)
        differing = [
            name for name in sorted(mine | other) if _told(mine, name) != _told(other, name)
        ]
    if differing:
        raise SettingsError(
            f"{cls.__qualname__}(settings) must make the instance that is to be judged; these "
            f"differ: {', '.join(differing)}.",
            cause="The gate runs in a process of its own, which builds it from its settings.",
            fix="Make what differs a field of the workload's settings class.",
        )
    return workload


def _told(values: dict[str, object], name: str) -> bytes | None:
    """Return a value in a form that can be compared; None for what has none."""
    if name not in values:
        return b"absent"
    try:
        return pickle.dumps(values[name])
    except (pickle.PicklingError, TypeError, AttributeError):  # a connection, a function
        return None


def _not_again(cls: type, level: Level) -> GateReport:
    """Return what a call inside the gate's own process gets: nothing is known there."""
    finding = Finding(
        outcome="skipped",
        summary="Not run: this process belongs to a gate itself, which judges one workload.",
        fix="Nothing: the process that calls check() first gets the report.",
    )
    nothing = CheckResult.of(
        finding,
        name="gate_runs",
        requirement="POC-12",
        seconds=0.0,
        limit=TimeLimit(typical_s=1.0, max_s=1.0),
    )
    return GateReport(level=level, workload=cls.__name__, results=(nothing,), seconds=0.0)
