"""The gate's own process: it runs the checks and tells the supervisor, one message at a time.

A second thread listens. Asked where the checks are, it answers with the line of the user's code
that runs now; when the supervisor is gone, it removes what the checks have written and leaves.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from sluice.base.error_location import place_of, told, user_place
from sluice.base.errors import ContractError, SettingsError, SluiceError
from sluice.base.imports import find_in, import_named
from sluice.config.poc_settings import PocSettings, TimeLimit
from sluice.failfast.gate.checks import CHECKS, GateCheck
from sluice.failfast.gate.inputs import GateInputs, StoredData
from sluice.failfast.gate.messages import (
    CRASH_FILE,
    PREPARING,
    Message,
    Place,
    Question,
    Started,
    Task,
)
from sluice.failfast.gate.nested import await_class
from sluice.failfast.gate.plan import Plan
from sluice.failfast.gate.request import NamedTarget, StoredTarget, Target, WorkloadTarget
from sluice.failfast.gate.run import run_checks
from sluice.failfast.result import CheckResult
from sluice.findings.user_code import users_code
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.load import build_workload, require_workload_type
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which workload to find, how to build it, and how it is to be trained."""

    path: str
    build: Callable[[type[Workload]], Workload]
    model: ModelSettings
    training: TrainSettings
    poc: PocSettings
    stored: StoredData | None = None
    served: bool = False


def serve(handle: int) -> None:
    """Run one task from beginning to end; this is the process's only work."""
    pipe: Connection[Message, Question] = Connection(handle)
    lock = threading.Lock()

    def send(message: Message) -> None:
        with lock:
            pipe.send(message)

    task = pipe.recv()
    assert isinstance(task, Task)
    _die_first()
    main = threading.get_ident()
    threading.Thread(target=_listen, args=(pipe, send, main, task.scratch), daemon=True).start()
    with _crash_report(task.scratch):
        _guarded(send, lambda: _find_and_run(task, send))


def _guarded(send: Callable[[Message], None], work: Callable[[], None]) -> None:
    """Do the work and send what went wrong, whatever it is."""
    try:
        work()
    except SluiceError as error:
        send(_plain(error))
    except SystemExit as error:
        send(
            ContractError(
                f"The user's code called exit with status {error.code} ({place_of(error)}).",
                fix="Let a module define things when it is imported, and run them elsewhere.",
            )
        )
    except Exception as error:
        traceback.print_exc()
        send(
            SluiceError(
                f"The gate's process broke: {told(error)} ({place_of(error)}).",
                fix="Please report it with the lines printed above.",
            )
        )


def _find_and_run(task: Task, send: Callable[[Message], None]) -> None:
    wanted = _wanted(task.request.target)

    def run_and_leave(cls: type) -> NoReturn:
        # In the middle of the user's file: neither the rest of it nor its clean-up may run.
        _guarded(send, lambda: _run(task, wanted, cls, send))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    await_class(wanted.path.partition(":")[2], run_and_leave)
    _run(task, wanted, _workload_type(task.request.target, wanted), send)


def _run(task: Task, wanted: _Wanted, cls: type, send: Callable[[Message], None]) -> None:
    workload = wanted.build(require_workload_type(cls, wanted.path))
    checks = [check for check in CHECKS if task.request.level in check.levels]
    send(_plan(workload, wanted, checks))
    inputs = GateInputs(
        workload=workload,
        model=wanted.model,
        training=wanted.training,
        settings=wanted.poc,
        seed=task.request.seed,
        folder=task.scratch,
        clock=lambda: datetime.now(UTC),
        stored=wanted.stored,
        served=wanted.served,
    )
    known = {result.name: result for result in task.done}
    left = [check for check in checks if check.name not in known]
    if task.done and _need_data(left, known, wanted.poc):
        send(Started(PREPARING))
        # What goes wrong here goes wrong again in the first check that needs the data, which says
        # so; unlike this line it has a name.
        with suppress(Exception):
            _ = inputs.train
    run_checks(
        inputs,
        left,
        done=task.done,
        on_start=lambda name: send(Started(name)),
        on_result=send,
    )
    send("finished")


def _need_data(left: list[GateCheck], known: dict[str, CheckResult], poc: PocSettings) -> bool:
    """Tell whether a check is left that stands on data which an earlier process had."""
    return known.get("features_compute") is not None and any(
        check.needs and check.planned(poc.times).blocked_by(known) is None for check in left
    )


def _plan(workload: Workload, wanted: _Wanted, checks: list[GateCheck]) -> Plan:
    times = wanted.poc.times
    return Plan(
        workload=type(workload).__name__,
        checks=tuple(check.planned(times) for check in checks),
        whole_gate=times.whole_gate,
        preparing=TimeLimit(
            typical_s=times.data_loading.typical_s + times.features.typical_s,
            max_s=times.data_loading.max_s + times.features.max_s,
        ),
        max_memory_share=wanted.poc.max_memory_share,
    )


def _wanted(target: Target) -> _Wanted:
    """Read what is to be judged; nothing of the user's is imported yet."""
    from sluice.config.pipeline import defs_folder, find_pipeline

    match target:
        case NamedTarget(name=name, overrides=overrides) if _is_import_path(name):
            if overrides:
                raise SettingsError(
                    f"Overrides belong to a pipeline's file, and {name} is a workload without one: "
                    f"{', '.join(overrides)}.",
                    fix="Write a YAML with this workload, and gate that.",
                )
            return _wanted(WorkloadTarget(path=name))
        case NamedTarget(name=name, overrides=overrides):
            pipeline = find_pipeline(name, defs_folder(), overrides)
        case StoredTarget(pipeline=pipeline):
            pass
        case WorkloadTarget(path=path, settings=text):
            return _Wanted(
                path=path,
                build=lambda cls: build_workload(
                    cls, cls.settings_type.parse_json(text, where=path), path=path
                ),
                model=target.model,
                training=target.training,
                poc=target.poc,
            )
    return _Wanted(
        path=pipeline.workload,
        build=pipeline.build_workload,
        model=pipeline.model,
        training=pipeline.training,
        poc=pipeline.poc,
        stored=target.data if isinstance(target, StoredTarget) else None,
        served=True,
    )


def _is_import_path(name: str) -> bool:
    before, colon, _ = name.partition(":")
    return bool(colon and before) and not Path(name).exists()


def _workload_type(target: Target, wanted: _Wanted) -> type:
    """Import the user's module, or read the script; it may never return, see ``nested``."""
    if isinstance(target, WorkloadTarget) and target.script is not None:
        return _from_script(target.script, target)
    sys.argv = [wanted.path]
    cls: type = import_named(wanted.path, what="workload")
    return cls


def _from_script(script: str, target: WorkloadTarget) -> type:
    """Read the script under another name, so that what is guarded for ``__main__`` does not run.

    Raises:
        ContractError: It raises, or ends without the class.
    """
    module = types.ModuleType("__mp_main__")
    module.__file__ = script
    # The script's own processes and pickles look for it under both names.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.path.insert(0, str(Path(script).parent))
    sys.argv = list(target.argv)
    with users_code(f"The script {script}, read once more by the gate's process,"):
        exec(compile(Path(script).read_bytes(), script, "exec"), vars(module))
    name = target.path.partition(":")[2]
    cls = find_in(module, name)
    if cls is None:
        raise ContractError(
            f"The workload {name} must be found by reading {script} again, and is not.",
            cause="It is defined under 'if __name__ == \"__main__\"', or only now and then.",
            fix="Define the class at the top level of the script, or in a module of its own.",
        )
    found: type = cls
    return found


def _plain(error: SluiceError) -> SluiceError:
    """Return the error as one of our own classes: the supervisor must not import the user's."""
    kind = next(k for k in type(error).__mro__ if k.__module__ == "sluice.base.errors")
    plain: SluiceError = kind(error.what, fix=error.fix, cause=error.cause)
    return plain


def _listen(
    pipe: "Connection[Message, Question]",
    send: Callable[[Message], None],
    main: int,
    scratch: Path,
) -> None:
    try:
        while True:
            if pipe.recv() == "where":
                send(Place(user_place(sys._current_frames().get(main))))
    except (EOFError, OSError):  # the supervisor is gone, killed perhaps
        shutil.rmtree(scratch, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # this process and every worker that it started


@contextmanager
def _crash_report(scratch: Path) -> Iterator[None]:
    """Let a crash in native code leave the Python lines that led to it."""
    try:
        file = (scratch / CRASH_FILE).open("w")
    except OSError:  # a disk that cannot be written is for a check to say
        yield
        return
    with file:
        faulthandler.enable(file, all_threads=False)
        try:
            yield
        finally:
            faulthandler.disable()


def _die_first() -> None:
    """When memory runs out, the system should end this process and no other (Linux)."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return


def _ours(error: Exception) -> SluiceError:
    return SluiceError(
        f"The gate's process broke: {type(error).__name__}: {error}.",
        fix="Please report it with the lines printed above.",
    )
