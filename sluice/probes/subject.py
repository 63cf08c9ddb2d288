"""The workload under test, with its rows and its network, created on first access."""

from dataclasses import dataclass
from functools import cached_property

import torch

from sluice.base.errors import ContractError
from sluice.findings.user_code import wrap_user_errors
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from sluice.workloads.fitted_state import fit_workload
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload

_MAX_NETWORK_ROWS = 8
"""Maximum number of rows for probes that run the network. Some probes compare rows, so one row does
not suffice."""

_MAX_SEARCHED_ROWS = 1024
"""Maximum number of rows that are searched for padding in a source that is not in memory."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A workload and its training settings.

    The probes use these attributes of the workload if it has them:

    * ``tokenizers()`` returns the training and the serving tokenizer.
    * ``custom_functions()`` returns pairs of an autograd function and its inputs, by name.
    * ``causal`` is True if outputs must not depend on later positions.
    * ``pad_id`` is the padding token.
    """

    workload: Workload
    model_settings: ModelSettings
    train_settings: TrainSettings
    seed: int

    @cached_property
    def _workload_and_examples(self) -> tuple[Workload, Examples]:
        """The workload, fitted on the first fold, and its training examples of that fold."""
        with wrap_user_errors(
            "load_rows, compute_features, plan_folds, fit or examples of the workload"
        ):
            frame = self.workload.compute_features(self.workload.load_rows())
            folds = self.workload.plan_folds(frame)
            if not folds:
                raise ContractError(
                    "At least one fold is required, plan_folds() returned none.",
                    fix="Provide more rows, or reduce the size of the folds.",
                )
            fitted_workload = fit_workload(self.workload, frame, folds[0])
            return fitted_workload, fitted_workload.examples(frame, folds[0].train)

    @property
    def train(self) -> Examples:
        """Training examples of the first fold."""
        return self._workload_and_examples[1]

    @cached_property
    def first_examples(self) -> Examples:
        """The first training examples, for probes that run the network."""
        return self.train.take(torch.arange(min(_MAX_NETWORK_ROWS, len(self.train))))

    @cached_property
    def padding_candidates(self) -> Examples:
        """Training examples that are searched for padding.

        These are all examples, or the first 1,024 examples of a source that is not in memory.
        """
        if self.train.is_in_memory:
            return self.train
        return self.train.take(torch.arange(min(_MAX_SEARCHED_ROWS, len(self.train))))

    @cached_property
    def network(self) -> Scaled:
        """The untrained network, with the scaling of its inputs and outputs."""
        with wrap_user_errors("build_model of the workload"):
            return prepare_model(
                self._workload_and_examples[0], self.model_settings, self.train, seed=self.seed
            )
