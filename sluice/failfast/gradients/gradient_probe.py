"""A few real optimizer steps, to tell a gradient that starts at 0 from one that stays there."""

import torch
from torch import nn

from sluice.base.seeding import derive_seed
from sluice.models.module_activity import Watch
from sluice.training.parameter_groups import ParameterGroups, make_optimizer
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Examples, Workload


class GradientProbe:
    """Which parameters ever got a gradient, over the batches so far.

    Args:
        model: After its first backward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.num_batches = 0
        self.present: set[str] = set()
        """With a gradient, be it 0."""
        self.alive: set[str] = set()
        """With a gradient that was not 0 everywhere at least once."""
        self.note()

    def note(self) -> None:
        """Take the gradients that are there as one more batch."""
        self.num_batches += 1
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.present.add(name)
                if name not in self.alive and bool(parameter.grad.any()):
                    self.alive.add(name)

    def run(
        self,
        workload: Workload,
        groups: ParameterGroups,
        training: TrainSettings,
        train: Examples,
        watch: Watch,
        *,
        batch_rows: int,
        num_steps: int,
        seed: int,
    ) -> None:
        """Take steps as training does, at its peak rate, each on another batch.

        Ends early, without a verdict of its own, when the loss is no longer finite: whether the
        rate is too high is for the mini training to say.

        Args:
            workload: Has the loss.
            groups: What is trained, as ``listed_groups`` returns them.
            training: Rate, decay, clipping.
            train: Rows that the batches are drawn from.
            watch: Sees the forward passes.
            batch_rows: Rows of a batch.
            num_steps: Steps, and batches after the first.
            seed: Of the order of the rows.
        """
        optimizer = make_optimizer(groups, training)
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        generator = torch.Generator().manual_seed(derive_seed(seed, "poc_gradient_rows"))
        order = torch.randperm(len(train), generator=generator)
        for step in range(num_steps):
            nn.utils.clip_grad_norm_(trained, training.clip_norm)
            optimizer.step()
            self.model.zero_grad(set_to_none=True)
            rows = order.roll(-step * batch_rows)[:batch_rows]
            watch.next_pass()
            loss = workload.loss(
                self.model(train.x.index_select(0, rows)), train.y.index_select(0, rows)
            )
            if not bool(torch.isfinite(loss)):
                return
            loss.backward()
            self.note()
