"""Adapter to Ray Train: trains one model in several processes, on this machine or a cluster.

Ray Train starts the processes (ranks), forms a torch.distributed group, and restarts all ranks when
one dies. Sluice provides the training function and writes the checkpoints itself.
"""

import contextlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sluice.base.errors import SettingsError, SluiceError, TrainingFailed
from sluice.base.files import storage_error
from sluice.base.pluralize import pluralize
from sluice.cluster.process import worker_sys_path
from sluice.cluster.ray_session import join_ray, last_line, machine_resources
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.slots import require_slots
from sluice.cluster.stale_files import process_prefix, remove_stale_files

T = TypeVar("T")
Emit = Callable[[Any], None]
"""Function that sends a picklable message from a rank to the caller of ``run_on_ranks``."""
RankFunction = Callable[[Emit], T]
"""Function that every rank calls inside torch's process group. The caller of ``run_on_ranks``
receives the messages that the function emits."""

_POLL_S = 0.2
"""Interval at which messages of the ranks are forwarded [s]."""
_STOP_TIMEOUT_S = 10.0
"""Maximum wait for Ray Train to stop its ranks [s]."""

_COLLECTIVE_TIMEOUT_S = 1800
"""Maximum wait of a rank for the other ranks in a collective operation [s]. For example, ranks wait
while the first rank writes files or computes test metrics."""
_HEALTH_CHECK = ("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
"""Environment variable and value: interval at which Ray Train checks whether the ranks have
finished [s]. The default is 2 s."""
_RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    # Suppresses the warning of DistributedDataParallel about find_unused_parameters.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def run_on_ranks(
    function: RankFunction[T], *, compute: ComputeSettings, folder: Path, on_message: Emit
) -> T:
    """Call ``function`` in several cooperating processes; return the result of the first rank.

    If a process or its machine is lost, all ranks are started again, up to ``compute.retries``
    times. The function must therefore resume from its own checkpoint. If the function raises an
    error, it is not called again.

    Args:
        function: An importable function, or a ``functools.partial`` of one.
        compute: Cluster address, number of processes (``ranks_per_training``), and resources of
            each process.
        folder: Folder in which Ray Train's storage is created; it is removed at the end. On a
            cluster, all machines must share the folder.
        on_message: Called in this process with every message of any rank.

    Raises:
        SettingsError: The cluster cannot be reached, or is too small for all ranks at once.
        SluiceError: Raised by the function, on any rank.
        StorageError: The folder cannot be written.
        TrainingFailed: The function raised another exception, processes were lost too often, or the
            process that relays messages was lost.
    """
    with join_ray(compute) as ray, _run_storage(folder) as storage:
        _require_whole_gpus(compute)
        require_slots(machine_resources(ray), compute)
        mailbox = open_mailbox(ray)
        run = _RayTrainRun(ray, pickle.dumps(function), mailbox, compute, storage)
        try:
            while run.is_active_after(_POLL_S):
                _forward_messages(ray, mailbox, on_message)
            _forward_messages(ray, mailbox, on_message)
            pickled_error = _get_from_mailbox(ray, mailbox.error.remote())
            if pickled_error is None:
                pickled_result = run.fetch_pickled_result(compute.retries)
        finally:
            run.end()
            ray.kill(mailbox)
    if pickled_error is not None:
        raise pickle.loads(pickled_error)
    return pickle.loads(pickled_result)  # type: ignore[no-any-return]


class _RayTrainRun:
    """A run of Ray Train in a separate process on this machine.

    Ray Train does not run in this process for two reasons. In the main thread, Ray Train would
    permanently disable Ctrl-C. In another thread, it could not be stopped, and it would crash the
    process if Ray is shut down during the run.
    """

    def __init__(
        self,
        ray: Any,
        pickled_function: bytes,
        mailbox: Any,
        compute: ComputeSettings,
        storage: Path,
    ) -> None:
        self._ray = ray
        rank_function = _make_rank_function(pickled_function, mailbox)
        task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=_on_this_node(ray))
        self._result_reference = task(_make_fit(rank_function, compute, storage)).remote()

    def is_active_after(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the end of the run; return whether it is still active."""
        ready_references, _ = self._ray.wait([self._result_reference], timeout=seconds)
        return not ready_references

    def end(self) -> None:
        """Stop the run and its ranks if it is still active, and release their resources."""
        if self.is_active_after(0):
            # A cancelled task gets the exception of Ctrl-C, with which Ray Train stops its ranks.
            self._ray.cancel(self._result_reference)
        if self.is_active_after(_STOP_TIMEOUT_S):
            self._ray.cancel(self._result_reference, force=True)

    def fetch_pickled_result(self, retries: int) -> bytes:
        """Return the pickled result of the first rank.

        Raises:
            TrainingFailed: Ranks were lost more than ``retries`` times.
        """
        import ray.train

        rank_loss_errors: tuple[type[Exception], ...] = (
            self._ray.exceptions.RayError,
            ray.train.TrainingFailedError,
        )
        cause: Exception | None = None
        try:
            pickled_result: bytes | None = self._ray.get(self._result_reference)
        except rank_loss_errors as error:
            cause = error
        else:
            if pickled_result is not None:
                return pickled_result
        reason = "no rank returned a result" if cause is None else last_line(cause)
        raise TrainingFailed(
            "The processes that fit one model together were lost more than "
            f"{pluralize(retries, 'time')}: {reason}.",
            cause="The memory probably ran out, or a machine of the cluster was lost.",
            fix="If memory is short, lower batch_rows or set micro_batch_rows. Then run again: the "
            "training resumes from the last checkpoint.",
        ) from cause


def _make_fit(
    rank_function: Callable[[], bytes | None], compute: ComputeSettings, storage: Path
) -> Callable[[], bytes | None]:
    """Return the function that runs Ray Train and returns the pickled result of the first rank."""
    resources = {"CPU": compute.cpus_per_worker}
    if compute.gpus_per_worker:
        resources["GPU"] = compute.gpus_per_worker
    use_gpu = bool(compute.gpus_per_worker)
    num_ranks, retries = compute.ranks_per_training, compute.retries
    storage_name, storage_parent = storage.name, str(storage.parent)

    # The function is nested, because Ray pickles nested functions by value.
    def fit() -> bytes | None:
        import os

        os.environ.setdefault(*_HEALTH_CHECK)
        import ray.train
        import ray.train.torch

        # The type is Any, because Ray Train selects version 1 or 2 of its classes at import.
        api: Any = ray.train
        backend = "nccl" if use_gpu else "gloo"
        trainer = api.torch.TorchTrainer(
            rank_function,
            torch_config=api.torch.TorchConfig(backend=backend, timeout_s=_COLLECTIVE_TIMEOUT_S),
            scaling_config=api.ScalingConfig(
                num_workers=num_ranks, use_gpu=use_gpu, resources_per_worker=resources
            ),
            run_config=api.RunConfig(
                name=storage_name,
                storage_path=storage_parent,
                failure_config=api.FailureConfig(max_failures=retries),
                logging_config=api.LoggingConfig(log_level="ERROR"),
                worker_runtime_env={"env_vars": _RANK_ENVIRONMENT},
            ),
        )
        return trainer.fit().return_value  # type: ignore[no-any-return]

    return fit


def _make_rank_function(pickled_function: bytes, mailbox: Any) -> Callable[[], bytes | None]:
    """Return the function that Ray Train calls in every rank."""
    sys_path = worker_sys_path()
    working_dir = os.getcwd()

    # The function is nested, because Ray pickles nested functions by value. A rank can then load
    # the function before ``sys.path`` contains the folder of sluice.
    def run_rank() -> bytes | None:
        import contextlib
        import os
        import sys

        sys.path.extend(folder for folder in sys_path if folder not in sys.path)
        with contextlib.suppress(OSError):
            os.chdir(working_dir)  # Ray Train has changed the working folder
        from sluice.cluster.ray_train import run_rank_function

        return run_rank_function(pickled_function, mailbox)

    return run_rank


def run_rank_function(pickled_function: bytes, mailbox: Any) -> bytes | None:
    """Call the function of a rank, in the process of the rank, and return its pickled result.

    If the function raises, the error is stored in ``mailbox``, and this process leaves the process
    group. The other ranks then raise ``RankLost`` instead of waiting for this rank. Ray Train
    restarts all ranks, and each returns immediately because ``mailbox`` contains an error.
    """
    import ray
    from torch import distributed as dist

    from sluice.base.errors import RankLost

    def emit(message: Any) -> None:
        ray.get(mailbox.put.remote(pickle.dumps(message)))

    try:
        if ray.get(mailbox.error.remote()) is not None:
            return None
        return pickle.dumps(pickle.loads(pickled_function)(emit))
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
    """Start a Ray actor that receives messages of the ranks, and return the actor.

    The actor runs on this machine, so it is not lost if another machine is lost.
    """

    class Mailbox:
        """Stores the messages of all ranks, and the first error."""

        def __init__(self) -> None:
            self.messages: list[bytes] = []
            self.first_error: bytes | None = None

        def put(self, message: bytes) -> None:
            self.messages.append(message)

        def drain(self) -> list[bytes]:
            messages, self.messages = self.messages, []
            return messages

        def set_error(self, error: bytes) -> None:
            self.first_error = self.first_error or error

        def error(self) -> bytes | None:
            return self.first_error

    return ray.remote(num_cpus=0, scheduling_strategy=_on_this_node(ray))(Mailbox).remote()


def _on_this_node(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _forward_messages(ray: Any, mailbox: Any, on_message: Emit) -> None:
    for message in _get_from_mailbox(ray, mailbox.drain.remote()):
        on_message(pickle.loads(message))


def _get_from_mailbox(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise TrainingFailed(
            f"The process that relays messages of the ranks was lost ({type(error).__name__}).",
            cause="The memory of this machine probably ran out, so the system killed the process.",
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
