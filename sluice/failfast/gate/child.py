"""Child process of the gate: runs the checks and sends messages to the supervisor.

A second thread listens to the supervisor. On request it sends the line of user code that is
running. When the supervisor has ended, the thread deletes the files of the checks and ends the
process.
"""

import faulthandler
import os
import shutil
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from sluice.base.artifacts import ArtifactStore
from sluice.base.cpu_wait import cpu_wait_s
from sluice.base.error_location import describe_error, locate_error, locate_running_code
from sluice.base.errors import ContractError, SettingsError, SluiceError
from sluice.base.home import Home
from sluice.base.imports import import_object, resolve_attribute
from sluice.config.poc_settings import PocSettings, TimeLimit
from sluice.failfast.gate.checks import CHECKS, GateCheck
from sluice.failfast.gate.inputs import GateInputs, StoredData
from sluice.failfast.gate.messages import (
    CRASH_FILE,
    RELOADING_DATA,
    CheckStarted,
    CodeLocation,
    GateTask,
    SupervisorMessage,
    WorkerMessage,
)
from sluice.failfast.gate.nested import run_on_check_call
from sluice.failfast.gate.plan import GatePlan
from sluice.failfast.gate.request import NamedTarget, PipelineTarget, Target, WorkloadTarget
from sluice.failfast.gate.run import run_checks
from sluice.failfast.result import CheckResult
from sluice.findings.user_code import wrap_user_errors
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.load import build_workload, require_workload_type
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class _GateTarget:
    """A workload's import path, the function that builds it, and the settings of the gate run."""

    path: str
    build: Callable[[type[Workload]], Workload]
    model: ModelSettings
    training: TrainSettings
    poc: PocSettings
    stored_data: StoredData | None = None
    is_served: bool = False
    guarded_metrics: tuple[str, ...] = ()


def serve(pipe_fd: int) -> None:
    """Receive one task and run it; this is the only work of the process.

    Args:
        pipe_fd: File descriptor of the connection to the supervisor.
    """
    pipe: Connection[WorkerMessage, SupervisorMessage] = Connection(pipe_fd)
    lock = threading.Lock()

    def send(message: WorkerMessage) -> None:
        with lock:
            pipe.send(message)

    task = pipe.recv()
    assert isinstance(task, GateTask)
    _prefer_for_oom_kill()
    main_thread_id = threading.get_ident()
    threading.Thread(
        target=_listen, args=(pipe, send, main_thread_id, task.scratch), daemon=True
    ).start()
    with _crash_report(task.scratch):
        _send_errors(send, lambda: _resolve_and_run(task, send))


def _send_errors(send: Callable[[WorkerMessage], None], work: Callable[[], None]) -> None:
    """Run ``work`` and send any exception to the supervisor."""
    try:
        work()
    except SluiceError as error:
        send(_as_sluice_error(error))
    except SystemExit as error:
        send(
            ContractError(
                f"The user's code called exit with status {error.code} ({locate_error(error)}).",
                fix="Do not call exit() at import time; move it under "
                "'if __name__ == \"__main__\"'.",
            )
        )
    except Exception as error:
        traceback.print_exc()
        send(
            SluiceError(
                f"The gate's process failed: {describe_error(error)} ({locate_error(error)}).",
                fix="Please report this with the traceback printed above.",
            )
        )


def _resolve_and_run(task: GateTask, send: Callable[[WorkerMessage], None]) -> None:
    target = _resolve(task.request.target)

    def run_and_exit(cls: type) -> NoReturn:
        # check() in the user's file calls this function. Neither the rest of the file nor its
        # cleanup may run afterwards.
        _send_errors(send, lambda: _run(task, target, cls, send))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    run_on_check_call(target.path.partition(":")[2], run_and_exit)
    _run(task, target, _import_workload_type(task.request.target, target), send)


def _uncontended_time() -> datetime:
    """Return the current time minus the time for which this process waited for a CPU.

    Use it only to compute durations.
    """
    return datetime.now(UTC) - timedelta(seconds=cpu_wait_s())


def _run(
    task: GateTask, target: _GateTarget, cls: type, send: Callable[[WorkerMessage], None]
) -> None:
    workload = target.build(require_workload_type(cls, target.path))
    checks = [check for check in CHECKS if task.request.level in check.levels]
    send(_plan(workload, target, checks))
    inputs = GateInputs(
        workload=workload,
        model_settings=target.model,
        train_settings=target.training,
        settings=target.poc,
        seed=task.request.seed,
        folder=task.scratch,
        clock=_uncontended_time,
        stored_data=target.stored_data,
        is_served=target.is_served,
        guarded_metrics=target.guarded_metrics,
    )
    results = {result.name: result for result in task.earlier_results}
    remaining_checks = [check for check in checks if check.name not in results]
    if results and _needs_data(remaining_checks, results, target.poc):
        send(CheckStarted(RELOADING_DATA))
        # Ignore errors here. The first check that needs the data raises and reports them again.
        with suppress(Exception):
            _ = inputs.train
    run_checks(
        inputs,
        remaining_checks,
        earlier_results=task.earlier_results,
        on_start=lambda name: send(CheckStarted(name)),
        on_result=send,
    )
    send("finished")


def _needs_data(
    remaining_checks: list[GateCheck], results: dict[str, CheckResult], poc: PocSettings
) -> bool:
    """Return whether a remaining check needs the data that an earlier process had loaded."""
    return results.get("features_are_valid") is not None and any(
        check.needs and check.to_planned_check(poc.times).failed_prerequisite(results) is None
        for check in remaining_checks
    )


def _plan(workload: Workload, target: _GateTarget, checks: list[GateCheck]) -> GatePlan:
    times = target.poc.times
    return GatePlan(
        workload=type(workload).__name__,
        checks=tuple(check.to_planned_check(times) for check in checks),
        whole_gate=times.whole_gate,
        reload_limit=TimeLimit(
            typical_s=times.data_loading.typical_s + times.features.typical_s,
            max_s=times.data_loading.max_s + times.features.max_s,
        ),
        max_memory_share=target.poc.max_memory_share,
    )


def _resolve(target: Target) -> _GateTarget:
    """Resolve the target of the request without importing user code."""
    from sluice.config.pipeline import defs_folder, find_pipeline
    from sluice.evaluation.suites.library import SuiteLibrary, require_guarded_suites

    match target:
        case NamedTarget(name=name, overrides=overrides) if _is_import_path(name):
            if overrides:
                raise SettingsError(
                    f"Overrides change settings of a pipeline file, but {name} is a workload "
                    f"class; got {', '.join(overrides)}.",
                    fix="Write a pipeline file with this workload, and run the gate on the file.",
                )
            return _with_settings_advice(_resolve(WorkloadTarget(path=name)))
        case NamedTarget(name=name, overrides=overrides):
            pipeline = find_pipeline(name, defs_folder(), overrides)
            home = Home.from_environment(os.environ, cwd=Path.cwd())
            require_guarded_suites(
                SuiteLibrary(home.suites / pipeline.name, ArtifactStore(home.artifacts)),
                pipeline.suites.guarded_suites,
            )
            return _resolve(
                PipelineTarget(
                    name=pipeline.name,
                    path=pipeline.workload,
                    workload_settings=pipeline.workload_settings,
                    model=pipeline.model,
                    training=pipeline.training,
                    poc=pipeline.poc,
                    guarded_metrics=pipeline.guards.metric_names,
                )
            )
        case PipelineTarget(name=name, path=path, workload_settings=settings):

            def build(cls: type[Workload]) -> Workload:
                where = f"{name}: workload_settings"
                parsed = cls.settings_type.parse(dict(settings), where=where)
                workload = build_workload(cls, parsed, path=path)
                workload.require_known_architecture(target.model)
                return workload

            return _GateTarget(
                path=path,
                build=build,
                model=target.model,
                training=target.training,
                poc=target.poc,
                stored_data=target.stored_data,
                is_served=True,
                guarded_metrics=target.guarded_metrics,
            )
        case WorkloadTarget(path=path, settings=settings_json):
            return _GateTarget(
                path=path,
                build=lambda cls: build_workload(
                    cls, cls.settings_type.parse_json(settings_json, where=path), path=path
                ),
                model=target.model,
                training=target.training,
                poc=target.poc,
            )


def _with_settings_advice(target: _GateTarget) -> _GateTarget:
    """Return the target with a better error if the workload requires settings.

    The target is a class without a pipeline file, so the gate has no settings for the workload. The
    error names a pipeline file that may contain them.
    """

    def build(cls: type[Workload]) -> Workload:
        try:
            cls.settings_type.parse({}, where=target.path)
        except SettingsError as error:
            file = _find_pipeline_file(target.path)
            raise SettingsError(
                error.what,
                cause=f"{target.path} is built without a pipeline file, so all of its settings "
                "must have defaults.",
                fix=f"Run the gate on a pipeline file with the settings: sluice poc {file}.",
            ) from None
        return target.build(cls)

    return replace(target, build=build)


def _find_pipeline_file(path: str) -> str:
    """Return the name of a YAML file in the working folder that contains the import path.

    Without such a file, "my_model.yaml" is returned as an example.
    """
    for file in sorted(Path.cwd().glob("*.yaml")):
        with suppress(OSError, ValueError):
            if path in file.read_text(encoding="utf-8"):
                return file.name
    return "my_model.yaml"


def _is_import_path(name: str) -> bool:
    module, colon, _ = name.partition(":")
    return bool(colon and module) and not Path(name).exists()


def _import_workload_type(target: Target, gate_target: _GateTarget) -> type:
    """Import the user's module or run the script, and return the workload's class.

    Does not return if that code calls ``check()`` with the class: the gate then runs in that call.
    """
    if isinstance(target, WorkloadTarget) and target.script is not None:
        return _run_script(target.script, target)
    sys.argv = [gate_target.path]
    cls: type = import_object(gate_target.path, what="workload")
    return cls


def _run_script(script: str, target: WorkloadTarget) -> type:
    """Run the script under another module name, so that its ``__main__`` block does not run.

    Raises:
        ContractError: The script raises, or does not define the class.
    """
    module = types.ModuleType("__mp_main__")
    module.__file__ = script
    # Worker processes and pickles of the script look up the module under either name.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.path.insert(0, str(Path(script).parent))
    sys.argv = list(target.argv)
    with wrap_user_errors(f"The script {script}, run again by the gate's process,"):
        exec(compile(Path(script).read_bytes(), script, "exec"), vars(module))
    name = target.path.partition(":")[2]
    cls = resolve_attribute(module, name)
    if cls is None:
        raise ContractError(
            f"The gate's process ran {script} again, but the script did not define the workload "
            f"{name}.",
            cause="The class is defined under 'if __name__ == \"__main__\"' or another condition.",
            fix="Define the class at the top level of the script, or in a separate module.",
        )
    value: type = cls
    return value


def _as_sluice_error(error: SluiceError) -> SluiceError:
    """Return the error as a class of Sluice: the supervisor must not import user classes."""
    error_class = next(c for c in type(error).__mro__ if c.__module__ == "sluice.base.errors")
    copy: SluiceError = error_class(error.what, fix=error.fix, cause=error.cause)
    return copy


def _listen(
    pipe: "Connection[WorkerMessage, SupervisorMessage]",
    send: Callable[[WorkerMessage], None],
    main_thread_id: int,
    scratch: Path,
) -> None:
    try:
        while True:
            if pipe.recv() == "where":
                send(CodeLocation(locate_running_code(sys._current_frames().get(main_thread_id))))
    except (EOFError, OSError):  # the supervisor has ended, for example by a signal
        shutil.rmtree(scratch, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # this process and every worker that it started


@contextmanager
def _crash_report(scratch: Path) -> Iterator[None]:
    """Write the Python stack to a file when native code crashes."""
    try:
        file = (scratch / CRASH_FILE).open("w")
    except OSError:  # a check reports a disk that is not writable
        yield
        return
    with file:
        faulthandler.enable(file, all_threads=False)
        try:
            yield
        finally:
            faulthandler.disable()


def _prefer_for_oom_kill() -> None:
    """Make Linux end this process before other processes when memory is exhausted."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return
