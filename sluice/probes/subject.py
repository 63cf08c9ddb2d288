"""The workload that probes are put to, with its rows and its network, made when first asked for."""

from dataclasses import dataclass
from functools import cached_property

from sluice.base.errors import ContractError
from sluice.findings.user_code import users_code
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Examples, Workload

_FEW_ROWS = 8


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A workload and how it is to be trained.

    Beyond what ``Workload`` demands it may offer: ``tokenizers()``, the pair of training and
    serving; ``custom_functions()``, from names to an autograd function and its inputs; ``causal``,
    whether outputs may not see later positions; ``pad_id``, the token of padding.
    """

    workload: Workload
    model: ModelSettings
    training: TrainSettings
    seed: int

    @cached_property
    def train(self) -> Examples:
        """Train examples of the first fold."""
        with users_code("load_rows, compute_features, plan_folds or examples of the workload"):
            frame = self.workload.compute_features(self.workload.load_rows())
            folds = self.workload.plan_folds(frame)
            if not folds:
                raise ContractError(
                    "At least one fold is required, plan_folds() gave none.",
                    fix="Give more rows, or fewer and larger folds.",
                )
            return self.workload.examples(frame, folds[0].train)

    @cached_property
    def few(self) -> Examples:
        """The first train examples."""
        rows = slice(0, _FEW_ROWS)
        return Examples(x=self.train.x[rows], y=self.train.y[rows], rows=self.train.rows[rows])

    @cached_property
    def network(self) -> Scaled:
        """The network with its scalings, as it is trained, freshly initialised."""
        with users_code("build_model of the workload"):
            return prepare_model(self.workload, self.model, self.train, seed=self.seed)
