"""Takes a few optimizer steps to distinguish gradients that stay 0 from initial zeros."""

import torch
from torch import nn

from sluice.base.seeding import derive_seed
from sluice.models.module_activity import ActivityRecorder
from sluice.training.parameter_groups import ParameterGroups, make_optimizer
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload


class GradientProbe:
    """Records which parameters got a gradient in any batch so far.

    Args:
        model: Model after its first backward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.num_batches = 0
        self.names_with_gradient: set[str] = set()
        """Names of parameters with a gradient, which may be 0."""
        self.names_with_nonzero_gradient: set[str] = set()
        """Names of parameters whose gradient had a nonzero value at least once."""
        self.record()

    def record(self) -> None:
        """Record the gradients of one more batch: the current gradients of the model."""
        self.num_batches += 1
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.names_with_gradient.add(name)
                if name not in self.names_with_nonzero_gradient and bool(parameter.grad.any()):
                    self.names_with_nonzero_gradient.add(name)

    def run(
        self,
        workload: Workload,
        groups: ParameterGroups,
        training: TrainSettings,
        train: Examples,
        recorder: ActivityRecorder,
        *,
        batch_rows: int,
        num_steps: int,
        seed: int,
    ) -> None:
        """Take optimizer steps on new batches, at the peak learning rate of the training.

        The steps end early if the loss becomes non-finite. This is no finding here, because the
        mini training detects a learning rate that is too high.

        Args:
            workload: Defines the loss.
            groups: Parameter groups, as returned by ``complete_groups``.
            training: Learning rate, weight decay, clipping.
            train: Examples from which the batches are drawn.
            recorder: Records the forward passes.
            batch_rows: Rows of a batch.
            num_steps: Number of optimizer steps. Each step is followed by a new batch.
            seed: Seed of the order of the rows.
        """
        optimizer = make_optimizer(groups, training)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        generator = torch.Generator().manual_seed(derive_seed(seed, "poc_gradient_rows"))
        order = torch.randperm(len(train), generator=generator)
        for step in range(num_steps):
            nn.utils.clip_grad_norm_(parameters, training.clip_norm)
            optimizer.step()
            self.model.zero_grad(set_to_none=True)
            rows = order.roll(-step * batch_rows)[:batch_rows]
            recorder.start_pass()
            batch = train.take(rows)
            loss = workload.loss(self.model(batch.inputs), batch.targets)
            if not bool(torch.isfinite(loss)):
                return
            loss.backward()
            self.record()
