"""The adapter to Ray Train: one model on several processes, on this machine or a cluster.

Ray Train places the processes, forms a torch.distributed group, and restarts all of them when one
dies. The training function and its checkpoints are Sluice's own; Ray Train stores none.
"""

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import sluice
from sluice.base.errors import SettingsError, SluiceError, TrainingFailed
from sluice.base.files import storage_error
from sluice.cluster.ray_session import join_ray, machine_resources
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.slots import require_slots
from sluice.cluster.stale_files import process_prefix, remove_stale_files

T = TypeVar("T")
Emit = Callable[[Any], None]
RankFunction = Callable[[Emit], T]
"""Function of a rank inside torch's process group; its messages are received by the caller of
``run_on_ranks``."""

_POLL_S = 0.2
_STOP_TIMEOUT_S = 10.0
"""Longest wait for Ray Train to stop its ranks."""

_COLLECTIVE_TIMEOUT_S = 1800
"""Longest wait of a collective operation, such as while the first rank writes or computes test
metrics."""
_HEALTH_CHECK = ("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
"""How often Ray Train checks whether the ranks have finished; its default is 2 s."""
_RANK_ENV = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    # DistributedDataParallel warns about find_unused_parameters.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def run_on_ranks(
    function: RankFunction[T], *, compute: ComputeSettings, folder: Path, on_message: Emit
) -> T:
    """Call ``function`` in several cooperating processes; return the result of the first rank.

    When a process or its machine is lost, all ranks are started again, up to ``compute.retries``
    times; the function must resume from its own checkpoint. An error raised by the function is not
    retried.

    Args:
        function: An importable function, or a ``functools.partial`` of one.
        compute: Cluster address, number of processes (``ranks_per_training``), and resources of
            each.
        folder: Folder for Ray Train's run storage, which is removed at the end; shared by all
            machines of a cluster.
        on_message: Called in this process with every message of any rank.

    Raises:
        SettingsError: The cluster cannot be reached, or has no room for all ranks at once.
        SluiceError: Raised by the function, on any rank.
        TrainingFailed: The function raised another exception, processes were lost too often, or the
            process that relays messages was lost.
    """
    with join_ray(compute) as ray, _run_storage(folder) as storage:
        _require_whole_gpus(compute)
        require_slots(machine_resources(ray), compute)
        mailbox = open_mailbox(ray)
        run = _RayTrainRun(ray, pickle.dumps(function), mailbox, compute, storage)
        try:
            while run.wait(_POLL_S):
                _forward_messages(ray, mailbox, on_message)
            _forward_messages(ray, mailbox, on_message)
            failure = _get(ray, mailbox.error.remote())
            if failure is None:
                outcome = run.outcome(compute.retries)
        finally:
            run.end()
            ray.kill(mailbox)
    if failure is not None:
        raise pickle.loads(failure)
    return pickle.loads(outcome)  # type: ignore[no-any-return]


class _RayTrainRun:
    """Ray Train in a separate process on this machine.

    In the main thread of this process it would disable Ctrl-C for good. In another thread it could
    not be stopped, and it would crash the process when Ray is shut down meanwhile.
    """

    def __init__(
        self, ray: Any, function: bytes, mailbox: Any, compute: ComputeSettings, storage: Path
    ) -> None:
        self._ray = ray
        loop = _loop(function, mailbox)
        task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=_on_this_node(ray))
        self._result = task(_fit(loop, compute, storage)).remote()

    def wait(self, seconds: float) -> bool:
        """Return whether the run is still active after ``seconds``."""
        done, _ = self._ray.wait([self._result], timeout=seconds)
        return not done

    def end(self) -> None:
        """Stop an active run and its ranks, and release their resources."""
        if self.wait(0):
            self._ray.cancel(self._result)  # like Ctrl-C: Ray Train stops its ranks
        if self.wait(_STOP_TIMEOUT_S):
            self._ray.cancel(self._result, force=True)

    def outcome(self, retries: int) -> bytes:
        """Return the pickled result of the first rank.

        Raises:
            TrainingFailed: Ranks were lost more than ``retries`` times.
        """
        import ray.train

        lost: tuple[type[Exception], ...] = (
            self._ray.exceptions.RayError,
            ray.train.TrainingFailedError,
        )
        cause: Exception | None = None
        try:
            value: bytes | None = self._ray.get(self._result)
        except lost as error:
            cause = error
        else:
            if value is not None:
                return value
        why = str(cause or "no rank returned a result").strip().splitlines()[-1:]
        raise TrainingFailed(
            f"The processes that fit one model together were lost more than {retries} times: "
            f"{why[0]}.",
            cause="Most likely memory ran out, or a machine of the cluster was lost.",
            fix="Lower batch_rows or set micro_batch_rows if memory is short, then run again: the "
            "training resumes from the last checkpoint.",
        ) from cause


def _fit(
    loop: Callable[[], bytes | None], compute: ComputeSettings, storage: Path
) -> Callable[[], bytes | None]:
    resources = {"CPU": compute.cpus_per_worker}
    if compute.gpus_per_worker:
        resources["GPU"] = compute.gpus_per_worker
    use_gpu, ranks, retries = (
        bool(compute.gpus_per_worker),
        compute.ranks_per_training,
        compute.retries,
    )
    name, parent = storage.name, str(storage.parent)

    # Ray pickles a nested function by value.
    def fit() -> bytes | None:
        import os

        os.environ.setdefault(*_HEALTH_CHECK)
        import ray.train
        import ray.train.torch

        # Ray Train selects version 1 or 2 of its classes at import.
        api: Any = ray.train
        backend = "nccl" if use_gpu else "gloo"
        trainer = api.torch.TorchTrainer(
            loop,
            torch_config=api.torch.TorchConfig(backend=backend, timeout_s=_COLLECTIVE_TIMEOUT_S),
            scaling_config=api.ScalingConfig(
                num_workers=ranks, use_gpu=use_gpu, resources_per_worker=resources
            ),
            run_config=api.RunConfig(
                name=name,
                storage_path=parent,
                failure_config=api.FailureConfig(max_failures=retries),
                logging_config=api.LoggingConfig(log_level="ERROR"),
                worker_runtime_env={"env_vars": _RANK_ENV},
            ),
        )
        return trainer.fit().return_value  # type: ignore[no-any-return]

    return fit


def _loop(function: bytes, mailbox: Any) -> Callable[[], bytes | None]:
    package = str(Path(sluice.__file__).parent.parent)
    path = [*(os.path.abspath(part) for part in sys.path), package]
    working_dir = os.getcwd()

    # Ray pickles a nested function by value, so a rank needs only its path.
    def loop() -> bytes | None:
        import contextlib
        import os
        import sys

        sys.path.extend(part for part in path if part not in sys.path)
        with contextlib.suppress(OSError):  # Ray Train changes the working folder
            os.chdir(working_dir)
        from sluice.cluster.ray_train import serve

        return serve(function, mailbox)

    return loop


def serve(function: bytes, mailbox: Any) -> bytes | None:
    """Run one rank: call the function and return its pickled result. Called in the rank's process.

    An error of the function is stored in ``mailbox``, and this process leaves the process group so
    that the other ranks do not wait for it. They raise, Ray Train restarts all ranks, and each of
    them returns at once.
    """
    import ray
    from torch import distributed as dist

    from sluice.base.errors import RankLost

    def emit(event: Any) -> None:
        ray.get(mailbox.put.remote(pickle.dumps(event)))

    try:
        if ray.get(mailbox.error.remote()) is not None:
            return None
        return pickle.dumps(pickle.loads(function)(emit))
    except ray.exceptions.RayActorError:
        pass  # the parent process has ended
    except RankLost:
        raise
    except SluiceError as error:
        ray.get(mailbox.set_error.remote(pickle.dumps(error)))
    except Exception as error:  # process boundary: user code may raise anything
        from sluice.findings.user_code import training_error

        ray.get(mailbox.set_error.remote(pickle.dumps(training_error(error))))
    dist.destroy_process_group()
    return None


def open_mailbox(ray: Any) -> Any:
    """Start the process that relays messages of the ranks.

    It runs on this machine, so that it cannot be lost alone.
    """

    class Mailbox:
        """Stores the messages of all ranks, and the first error."""

        def __init__(self) -> None:
            self.events: list[bytes] = []
            self.first_error: bytes | None = None

        def put(self, event: bytes) -> None:
            self.events.append(event)

        def drain(self) -> list[bytes]:
            events, self.events = self.events, []
            return events

        def set_error(self, error: bytes) -> None:
            self.first_error = self.first_error or error

        def error(self) -> bytes | None:
            return self.first_error

    return ray.remote(num_cpus=0, scheduling_strategy=_on_this_node(ray))(Mailbox).remote()


def _on_this_node(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _forward_messages(ray: Any, mailbox: Any, on_message: Emit) -> None:
    for event in _get(ray, mailbox.drain.remote()):
        on_message(pickle.loads(event))


def _get(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise TrainingFailed(
            f"The process that relays messages of the ranks was lost ({type(error).__name__}).",
            cause="Most likely memory ran out on this machine and the system killed it.",
            fix="Free memory on this machine, then run again: the training resumes from the last "
            "checkpoint.",
        ) from error


@contextlib.contextmanager
def _run_storage(folder: Path) -> Iterator[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale_files(folder, "ranks")
        storage = Path(tempfile.mkdtemp(prefix=process_prefix("ranks"), dir=folder.absolute()))
    except OSError as error:
        raise storage_error(folder, error) from error
    try:
        yield storage
    finally:
        shutil.rmtree(storage, ignore_errors=True)


def _require_whole_gpus(compute: ComputeSettings) -> None:
    if compute.gpus_per_worker % 1:
        raise SettingsError(
            "gpus_per_worker must be an integer if ranks_per_training is above 1, got "
            f"{compute.gpus_per_worker:g}.",
            cause="NCCL needs a whole GPU for every rank.",
            fix="Set gpus_per_worker to 1, or to 0 to train on CPUs.",
        )
