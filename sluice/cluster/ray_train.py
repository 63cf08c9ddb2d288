"""The one adapter to Ray Train: one model on several processes, on this machine or a cluster.

Ray Train places the processes, makes them a torch.distributed group, and starts all of them again
when one dies. What they do, and their checkpoints, are Sluice's own: Ray Train stores none.
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
from sluice.cluster.leftovers import own_prefix, remove_leftovers
from sluice.cluster.places import require_places
from sluice.cluster.ray_session import join_ray, machines
from sluice.cluster.settings import ComputeSettings

T = TypeVar("T")
Tell = Callable[[Any], None]
OnRank = Callable[[Tell], T]
"""What a rank does inside torch's process group; what it tells is heard where ranks are started."""

_LISTEN_S = 0.2
_END_S = 10.0
"""Longest wait for Ray Train to end its ranks when it is stopped."""

_TIMEOUT_S = 1800
"""Longest wait for another rank that lives, as while the first one writes or scores the test."""
_HEALTH = ("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
"""How often Ray Train looks whether the ranks are done; 2 s of its own choice."""
_RANK_ENV = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    # DistributedDataParallel advises against looking for parameters without a gradient.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def run_on_ranks(function: OnRank[T], *, compute: ComputeSettings, folder: Path, hear: Tell) -> T:
    """Call ``function`` in processes that work together; return what the first of them returned.

    When a process or its machine is lost, all are started again, ``compute.retries`` times; the
    function finds out by itself how far it was. An error of the function's is not tried again.

    Args:
        function: Importable, or ``functools.partial`` of what is.
        compute: Where, how many processes (``ranks_per_training``), and what each reserves.
        folder: For Ray Train's own notes, which are removed at the end; the same for all machines
            of a cluster.
        hear: Gets what any rank tells, in this process.

    Raises:
        SettingsError: The cluster cannot be reached, or has no room for all ranks at once.
        SluiceError: The function raised it, on any rank.
        TrainingFailed: The function raised something else, processes were lost too often, or the
            one through which they report was.
    """
    with join_ray(compute) as ray, _notes(folder) as notes:
        _require_whole_gpus(compute)
        require_places(machines(ray), compute)
        box = open_box(ray)
        run = _Run(ray, pickle.dumps(function), box, compute, notes)
        try:
            while run.wait(_LISTEN_S):
                _listen(ray, box, hear)
            _listen(ray, box, hear)
            failure = _answer(ray, box.failure.remote())
            if failure is None:
                outcome = run.outcome(compute.retries)
        finally:
            run.end()
            ray.kill(box)
    if failure is not None:
        raise pickle.loads(failure)
    return pickle.loads(outcome)  # type: ignore[no-any-return]


class _Run:
    """Ray Train at work, in a process of its own on this machine.

    In this process it would take Ctrl-C away for good in the main thread; and in another thread
    nobody could stop it, and it would crash the process when Ray is left meanwhile.
    """

    def __init__(
        self, ray: Any, function: bytes, box: Any, compute: ComputeSettings, notes: Path
    ) -> None:
        self._ray = ray
        loop = _loop(function, box)
        task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=_here(ray))
        self._answer = task(_fit(loop, compute, notes)).remote()

    def wait(self, seconds: float) -> bool:
        """Return whether it still works after that time."""
        done, _ = self._ray.wait([self._answer], timeout=seconds)
        return not done

    def end(self) -> None:
        """Stop it and the ranks when it still works, and give back what they reserved."""
        if self.wait(0):
            self._ray.cancel(self._answer)  # as Ctrl-C: Ray Train itself then ends the ranks
        if self.wait(_END_S):
            self._ray.cancel(self._answer, force=True)

    def outcome(self, retries: int) -> bytes:
        """Return what the first rank returned.

        Raises:
            TrainingFailed: Ranks were lost, ``retries`` times and once more.
        """
        import ray.train

        lost: tuple[type[Exception], ...] = (
            self._ray.exceptions.RayError,
            ray.train.TrainingFailedError,
        )
        cause: Exception | None = None
        try:
            value: bytes | None = self._ray.get(self._answer)
        except lost as error:
            cause = error
        else:
            if value is not None:
                return value
        why = str(cause or "no rank answered").strip().splitlines()[-1:]
        raise TrainingFailed(
            f"The processes that fit one model together were lost more than {retries} times: "
            f"{why[0]}.",
            cause="Most likely memory ran out, or a machine of the cluster went away.",
            fix="Lower batch_rows or set micro_batch_rows if memory is short, then run again: it "
            "goes on from the last checkpoint.",
        ) from cause


def _fit(
    loop: Callable[[], bytes | None], compute: ComputeSettings, notes: Path
) -> Callable[[], bytes | None]:
    resources = {"CPU": compute.cpus_per_worker}
    if compute.gpus_per_worker:
        resources["GPU"] = compute.gpus_per_worker
    use_gpu, ranks, retries = (
        bool(compute.gpus_per_worker),
        compute.ranks_per_training,
        compute.retries,
    )
    name, place = notes.name, str(notes.parent)

    # Inside a function Ray sends the code itself, as for the ranks.
    def fit() -> bytes | None:
        import os

        os.environ.setdefault(*_HEALTH)
        import ray.train
        import ray.train.torch

        # Which version of its classes these names mean is decided when it is imported.
        api: Any = ray.train
        backend = "nccl" if use_gpu else "gloo"
        trainer = api.torch.TorchTrainer(
            loop,
            torch_config=api.torch.TorchConfig(backend=backend, timeout_s=_TIMEOUT_S),
            scaling_config=api.ScalingConfig(
                num_workers=ranks, use_gpu=use_gpu, resources_per_worker=resources
            ),
            run_config=api.RunConfig(
                name=name,
                storage_path=place,
                failure_config=api.FailureConfig(max_failures=retries),
                logging_config=api.LoggingConfig(log_level="ERROR"),
                worker_runtime_env={"env_vars": _RANK_ENV},
            ),
        )
        return trainer.fit().return_value  # type: ignore[no-any-return]

    return fit


def _loop(function: bytes, box: Any) -> Callable[[], bytes | None]:
    package = str(Path(sluice.__file__).parent.parent)
    path = [*(os.path.abspath(part) for part in sys.path), package]
    here = os.getcwd()

    # Inside a function Ray sends the code itself, so that a rank needs nothing but its path.
    def loop() -> bytes | None:
        import contextlib
        import os
        import sys

        sys.path.extend(part for part in path if part not in sys.path)
        with contextlib.suppress(OSError):  # Ray Train works in a folder of its own
            os.chdir(here)
        from sluice.cluster.ray_train import serve

        return serve(function, box)

    return loop


def serve(function: bytes, box: Any) -> bytes | None:
    """Be one rank: call the function and return what it returned; run in the rank's process.

    An error of the function's is put into ``box`` and this process leaves the group, so that the
    others do not wait for it. Those raise, and Ray Train starts all again: then this ends at once.
    """
    import ray
    from torch import distributed as dist

    from sluice.base.errors import RankLost

    def tell(event: Any) -> None:
        ray.get(box.tell.remote(pickle.dumps(event)))

    try:
        if ray.get(box.failure.remote()) is not None:
            return None
        return pickle.dumps(pickle.loads(function)(tell))
    except ray.exceptions.RayActorError:
        pass  # nobody listens any more
    except RankLost:
        raise
    except SluiceError as error:
        ray.get(box.fail.remote(pickle.dumps(error)))
    except Exception as error:  # the edge of the process: the user's code may raise anything
        from sluice.findings.user_code import training_error

        ray.get(box.fail.remote(pickle.dumps(training_error(error))))
    dist.destroy_process_group()
    return None


def open_box(ray: Any) -> Any:
    """Start the process through which ranks report, on this machine: lost with it or not at all."""

    class Box:
        """Where ranks leave what they tell, and the first error."""

        def __init__(self) -> None:
            self.events: list[bytes] = []
            self.error: bytes | None = None

        def tell(self, event: bytes) -> None:
            self.events.append(event)

        def take(self) -> list[bytes]:
            events, self.events = self.events, []
            return events

        def fail(self, error: bytes) -> None:
            self.error = self.error or error

        def failure(self) -> bytes | None:
            return self.error

    return ray.remote(num_cpus=0, scheduling_strategy=_here(ray))(Box).remote()


def _here(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _listen(ray: Any, box: Any, hear: Tell) -> None:
    for event in _answer(ray, box.take.remote()):
        hear(pickle.loads(event))


def _answer(ray: Any, asked: Any) -> Any:
    try:
        return ray.get(asked)
    except ray.exceptions.RayError as error:
        raise TrainingFailed(
            "The process through which the ranks of a training report was lost "
            f"({type(error).__name__}).",
            cause="Most likely memory ran out on this machine and the system killed it.",
            fix="Free memory on this machine, then run again: it goes on from the last checkpoint.",
        ) from error


@contextlib.contextmanager
def _notes(folder: Path) -> Iterator[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder, "ranks")
        notes = Path(tempfile.mkdtemp(prefix=own_prefix("ranks"), dir=folder.absolute()))
    except OSError as error:
        raise storage_error(folder, error) from error
    try:
        yield notes
    finally:
        shutil.rmtree(notes, ignore_errors=True)


def _require_whole_gpus(compute: ComputeSettings) -> None:
    if compute.gpus_per_worker % 1:
        raise SettingsError(
            f"gpus_per_worker must be whole with ranks_per_training above 1, got "
            f"{compute.gpus_per_worker:g}.",
            cause="NCCL needs a GPU for every rank.",
            fix="Set gpus_per_worker to 1, or to 0 to train on processors.",
        )
