"""The gate as one call in anyone's training script."""

import os
import sys
from pathlib import Path

from rich.console import Console

from sluice.errors import GateBlocked, SettingsError
from sluice.failfast.gate.display import LiveLines, report_page
from sluice.failfast.gate.nested import stop_if_inside
from sluice.failfast.gate.request import GateRequest, WorkloadTarget
from sluice.failfast.gate.supervisor import supervise
from sluice.failfast.result import GateReport, Level
from sluice.failfast.settings import PocSettings
from sluice.home import Home
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
        SettingsError: The workload's class cannot be found by another process.
    """
    cls = workload if isinstance(workload, type) else type(workload)
    stop_if_inside(cls)
    instance = workload() if isinstance(workload, type) else workload
    request = GateRequest(
        target=WorkloadTarget(
            path=f"{cls.__module__}:{cls.__qualname__}",
            settings=instance.settings.model_dump(mode="json"),
            script=_script(cls),
            model=model,
            training=training,
            poc=settings,
        ),
        level=level,
        seed=seed,
    )
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    show = console or Console(stderr=True)
    with LiveLines(show) as lines:
        run = supervise(request, folder=home.gates, on_event=lines)
    show.print(report_page(run.report))
    if not run.report.passed:
        first = (run.report.blocking_failures or run.report.results)[0]
        raise GateBlocked(run.report.reason, cause=first.cause, fix=first.fix)
    return run.report


def _script(cls: type) -> str | None:
    """Return the file to read the class from; None when it imports by its name.

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
        return None
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None or not Path(script).is_file():
        raise SettingsError(
            f"The workload {cls.__qualname__} must be read from a file, and there is none.",
            cause="It was typed into an interactive session.",
            fix="Save it as a module and import it from there.",
        )
    return str(Path(script).resolve())
