"""Jobs for the ranks of a data-parallel training, and a function that runs ranks without Ray."""

import dataclasses
import multiprocessing
import os
import signal
import time
import traceback
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sluice.base.errors import ContractError, SluiceError, TrainingFailed
from sluice.base.seeding import deterministic
from sluice.training.accumulation import count_rows
from sluice.training.distributed import joined_group
from sluice.training.fold_run import train_fold_run
from sluice.training.loop import train
from sluice.training.ranks import SINGLE_PROCESS
from sluice.training.settings import TrainingChange, TrainSettings
from sluice.workloads.examples import Examples

SETTINGS = TrainSettings(max_epochs=2, batch_rows=16, learning_rate=0.02, clip_norm=0.5)


def start_ranks(job, world_size: int, folder: Path, *args, timeout_s: float = 60.0) -> list:
    """Call ``job(ranks, *args)`` in each of ``world_size`` processes.

    Returns the result or the error of each process, or None for a killed process.
    """
    context = multiprocessing.get_context("forkserver")
    # These modules are imported once, before the forks. DistributedDataParallel imports dynamo, and
    # fold runs import pyarrow.
    context.set_forkserver_preload([__name__, "torch._dynamo", "pyarrow.parquet"])
    pipes, processes = [], []
    for rank in range(world_size):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_run_rank, args=(sender, job, rank, world_size, folder, args)
        )
        process.start()
        sender.close()
        pipes.append(receiver)
        processes.append(process)
    deadline, results = time.monotonic() + timeout_s, []
    for pipe in pipes:
        try:
            assert pipe.poll(max(deadline - time.monotonic(), 0)), "a rank hangs"
            results.append(pipe.recv())
        except EOFError:
            results.append(None)
    for process in processes:
        process.kill()
        process.join()
    return results


def _run_rank(pipe, job, rank, world_size, folder, args):
    torch.set_num_threads(1)
    try:
        init_method = f"file://{folder / 'rendezvous'}"
        with joined_group(
            rank=rank, world_size=world_size, init_method=init_method, timeout_s=30
        ) as ranks:
            result = job(ranks, *args)
    except SluiceError as error:
        result = error
    except Exception:
        result = traceback.format_exc()
    pipe.send(result)


def examples(num_rows: int, seed: int, dtype=torch.float32) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, 4, generator=generator)
    y = x[:, :1] * 2 - x[:, 1:2] + 0.1 * torch.randn(num_rows, 1, generator=generator)
    return Examples(x=x.to(dtype), y=y.to(dtype), rows=np.arange(num_rows))


def losses_of(output, y):
    return (output - y).square().mean(dim=1)


def fit(
    ranks=SINGLE_PROCESS,
    *,
    dtype=torch.float32,
    rows: int = 70,
    val_rows: int = 41,
    dropout: float = 0.0,
    layers=None,
    loss_weight=count_rows,
    resume=None,
    keep=None,
    stop_after: int | None = None,
    kill_at: tuple[int, int] | None = None,
    loss=None,
    seed: int = 3,
    **settings,
) -> dict:
    """Train a small network; return weights, history, the targets of each batch, and seeds."""
    torch.manual_seed(0)
    make_layers = layers or (
        lambda: (nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))
    )
    model = nn.Sequential(*make_layers()).to(dtype)
    batch_targets, seeds = [], []

    def loss_of(output, y):
        if torch.is_grad_enabled():
            batch_targets.append(y.flatten().tolist())
            seeds.append(torch.initial_seed())
            if kill_at == (ranks.shard.rank, len(batch_targets)):
                os.kill(os.getpid(), signal.SIGKILL)
        return (loss or (lambda o, t: losses_of(o, t).mean()))(output, y)

    history = []
    with deterministic():
        for result in train(
            model,
            loss_of,
            losses_of,
            examples(rows, 1, dtype),
            examples(val_rows, 2, dtype),
            SETTINGS.model_copy(update=settings),
            seed=seed,
            loss_weight=loss_weight,
            resume=resume,
            on_state=keep if ranks.is_first else None,
            ranks=ranks,
        ):
            history.append(result)
            if len(history) == stop_after:
                break
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().clone().numpy()
    return {
        "weights": weights,
        "history": history,
        "batch_targets": batch_targets,
        "seeds": list(dict.fromkeys(seeds)),
    }


class Spare(nn.Module):
    """A network with an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x):
        return self.used(x)


def weigh_positive(y) -> float:
    return float((y > 0).sum())


def loss_of_positive(output, y):
    return losses_of(output, y)[y[:, 0] > 0].mean()


def loss_that_overflows(output, y):
    """Return a loss that overflows in fp16 for rows with large targets, maybe on one rank only."""
    factor = torch.where(y[:, 0].abs() > 3.5, 1e4, 1.0)
    return (losses_of(output, y) * factor).mean()


CASES: dict[str, dict] = {
    # The last of the 70 rows form a batch of 6 rows, which two or three ranks divide evenly.
    "float32": {},
    # The last batch has one row, and there is one validation row: fewer rows than ranks.
    "float64": {"dtype": torch.float64, "rows": 65, "val_rows": 1},
    "odd": {"dtype": torch.float64, "batch_rows": 7},
    "micro": {"dtype": torch.float64, "micro_batch_rows": 3},
    "weighed": {
        "dtype": torch.float64,
        "batch_rows": 5,
        "loss_weight": weigh_positive,
        "loss": loss_of_positive,
    },
    "spare": {"dtype": torch.float64, "layers": lambda: (Spare(),)},
    "fp16": {"precision": "fp16", "loss": loss_that_overflows, "max_epochs": 4},
    "sgd": {
        "dtype": torch.float64,
        "optimizer": "sgd",
        "optimizer_arguments": {"momentum": 0.9, "nesterov": True},
        "changes": (TrainingChange(from_epoch=1, optimizer_arguments={"momentum": 0.5}),),
    },
    "stopped early": {
        "dtype": torch.float64,
        "learning_rate": 0.5,
        "max_epochs": 20,
        "patience_epochs": 2,
    },
}


def run_all_cases(ranks) -> dict:
    """Return the results of all cases and of two trainings with dropout, and two error messages."""
    results = {name: fit(ranks, **options) for name, options in CASES.items()}
    results["dropout"] = [fit(ranks, dropout=0.3)["weights"] for _ in range(2)]
    try:
        fit(ranks, layers=lambda: (nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)))
    except ContractError as error:
        results["batch norm"] = str(error)
    try:
        ranks.broadcast_from_first(_raise_error)
    except ContractError as error:
        results["refused"] = error.what
    return results


def _raise_error():
    raise ContractError("the first rank's refusal", fix="none")


def resume_in_the_middle(ranks) -> tuple:
    """Return the weights of a full training, and of a training that resumed after one epoch."""
    kept_states = []

    def keep(state):
        copied_fields = {
            field: {name: tensor.clone() for name, tensor in getattr(state, field).items()}
            for field in ("model", "best", "optimizer", "rng")
        }
        kept_states.append(dataclasses.replace(state, **copied_fields))

    layers = {"layers": lambda: (nn.Linear(4, 33), nn.Tanh(), nn.Dropout(0.3), nn.Linear(33, 1))}
    full = fit(ranks, keep=keep, **layers)
    resumed = fit(ranks, resume=ranks.broadcast_from_first(lambda: kept_states[0]), **layers)
    return full["weights"], resumed["weights"]


def die_in_a_step(ranks) -> None:
    fit(ranks, kill_at=(1, 7))


def fail_on(ranks, rank: int):
    """Raise on one rank while the other ranks wait in a collective operation."""
    ranks.all_reduce_sum(torch.ones(1))
    if ranks.shard.rank == rank:
        raise TrainingFailed("this rank's own trouble", fix="none")
    return ranks.all_reduce_sum(torch.ones(1))


def train_on_rank(ranks, spec):
    """Run a fold run; return the member, and the kinds of events on this rank."""
    events = []
    member = train_fold_run(spec, events.append, ranks=ranks)
    return member, [event.kind for event in events]
