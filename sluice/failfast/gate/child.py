"""The gate's own process: it runs the checks and tells the supervisor, one message at a time.

A second thread listens. Asked where the checks are, it answers with the line of the user's code
that runs now; when the supervisor is gone, it removes what the checks have written and leaves.
"""

import faulthandler
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

from sluice.errors import ContractError, SluiceError
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
from sluice.failfast.gate.nested import ReachedInside, inside_gate
from sluice.failfast.gate.plan import Plan
from sluice.failfast.gate.request import NamedTarget, StoredTarget, Target, WorkloadTarget
from sluice.failfast.gate.run import run_checks
from sluice.failfast.settings import PocSettings, TimeLimit
from sluice.failfast.user_code import user_place
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    workload: Workload
    model: ModelSettings
    training: TrainSettings
    poc: PocSettings
    stored: StoredData | None = None


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
    try:
        with _crash_report(task.scratch):
            _run(task, send)
    except SluiceError as error:
        send(error)
    except Exception as error:
        traceback.print_exc()
        send(_ours(error))


def _run(task: Task, send: Callable[[Message], None]) -> None:
    subject = _open(task.request.target)
    wanted = [check for check in CHECKS if task.request.level in check.levels]
    send(_plan(subject, wanted))
    inputs = GateInputs(
        workload=subject.workload,
        model=subject.model,
        training=subject.training,
        settings=subject.poc,
        seed=task.request.seed,
        folder=task.scratch,
        clock=lambda: datetime.now(UTC),
        stored=subject.stored,
    )
    known = {result.name: result for result in task.done}
    left = [check for check in wanted if check.name not in known]
    if "features_compute" in known and known["features_compute"].passed:
        send(Started(PREPARING))
        _ = inputs.train
    run_checks(
        inputs,
        left,
        done=task.done,
        on_start=lambda name: send(Started(name)),
        on_result=send,
    )
    send("finished")


def _plan(subject: _Subject, checks: list[GateCheck]) -> Plan:
    times = subject.poc.times
    return Plan(
        workload=type(subject.workload).__name__,
        checks=tuple(check.planned(times) for check in checks),
        whole_gate=times.whole_gate,
        preparing=TimeLimit(
            typical_s=times.data_loading.typical_s + times.features.typical_s,
            max_s=times.data_loading.max_s + times.features.max_s,
        ),
        max_memory_share=subject.poc.max_memory_share,
    )


def _open(target: Target) -> _Subject:
    """Import the user's module and build the workload."""
    from sluice.pipeline import defs_folder, find_pipeline
    from sluice.workloads.load import load_workload

    match target:
        case NamedTarget(name=name) if _is_import_path(name):
            return _open(WorkloadTarget(path=name))
        case NamedTarget(name=name):
            pipeline = find_pipeline(name, defs_folder())
        case StoredTarget(pipeline=pipeline):
            pass
        case WorkloadTarget(path=path, settings=settings):
            workload = (
                _from_script(target)
                if target.script is not None
                else load_workload(path, settings, where=path)
            )
            return _Subject(
                workload=workload, model=target.model, training=target.training, poc=target.poc
            )
    return _Subject(
        workload=pipeline.loaded_workload,
        model=pipeline.model,
        training=pipeline.training,
        poc=pipeline.poc,
        stored=target.data if isinstance(target, StoredTarget) else None,
    )


def _is_import_path(name: str) -> bool:
    module, colon, _ = name.partition(":")
    return bool(colon) and "/" not in module and not Path(name).exists()


def _from_script(target: WorkloadTarget) -> Workload:
    """Build a workload whose class stands in a script, by running it up to its own check().

    Raises:
        ContractError: The script ends without reaching check(), or raises before.
    """
    import runpy

    script = str(target.script)
    sys.path.insert(0, str(Path(script).parent))
    with inside_gate():
        try:
            space = runpy.run_path(script, run_name="__mp_main__")
        except ReachedInside as reached:
            cls: object = reached.workload_type
        else:
            cls = space.get(target.path.partition(":")[2])
    if not (isinstance(cls, type) and issubclass(cls, Workload)):
        raise ContractError(
            f"The workload of {target.path} must be found again by running {script}, and is not.",
            cause="The gate runs in a process of its own, which reads the script once more.",
            fix="Define the class at the top level of the script, or in a module of its own.",
        )
    return cls(cls.settings_type.parse(dict(target.settings), where=target.path))


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
        os._exit(1)


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
