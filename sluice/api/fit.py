"""``sluice.fit``: trains one network for each seed and fold."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.api.ensemble import Ensemble
from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import SettingsError
from sluice.base.extras import naming_extras
from sluice.base.home import Home
from sluice.base.pluralize import pluralize
from sluice.cluster.settings import ComputeSettings
from sluice.config.resolved import TrainingInputs
from sluice.data.folds import Fold
from sluice.data.table import TableRecord, load_table, save_table
from sluice.data.validation import validate_schema
from sluice.failfast.gate.in_script import module_and_script, require_rebuildable, require_workload
from sluice.findings.user_code import wrap_user_errors
from sluice.models.settings import ModelSettings
from sluice.reports.notebook import card, details, fragment, heading, paragraph, text_table
from sluice.training.code import identify_code
from sluice.training.curve_diagnosis import DiagnosisSettings
from sluice.training.fold_run_events import FoldRunEvent
from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.member_diagnosis import MemberSymptom, diagnose_members
from sluice.training.members import TrainedModels
from sluice.training.merged_log import merge_logs
from sluice.training.parallel import train_members
from sluice.training.settings import TrainSettings
from sluice.training.weights import load_member
from sluice.workloads.load import load_workload
from sluice.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

SEEDS = (0, 1, 2, 3, 4)
"""Default seeds of a training. By default, the promotion gate requires five seeds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedModel:
    """Trained networks, one for each seed and fold, with all inputs that determine the networks."""

    inputs: TrainingInputs
    raw: TableRecord
    """Stored raw rows."""
    table: TableRecord
    """Stored feature frame."""
    folds: tuple[Fold, ...]
    trained: TrainedModels
    """Members with their scores, and the digests of data, settings, code and weights."""
    symptoms: tuple[MemberSymptom, ...]
    """Faults that the learning curves show."""
    home: Home

    @property
    def workload(self) -> Workload:
        """Workload on which the networks were trained."""
        return self.inputs.workload

    @property
    def store(self) -> ArtifactStore:
        """Store of the rows and weights."""
        return ArtifactStore(self.home.artifacts)

    @property
    def frame(self) -> "pd.DataFrame":
        """Feature frame on which the networks were trained."""
        return load_table(self.table, self.store)

    def ensemble(self) -> Ensemble:
        """Return the networks of all seeds of the last fold, which has the most training rows."""
        last_fold_id = max(fold.fold_id for fold in self.folds)
        members = sorted(
            (m for m in self.trained.members if m.fold_id == last_fold_id), key=lambda m: m.seed
        )
        store = self.store
        return Ensemble(
            workload=self.workload,
            networks=tuple(
                load_member(member, self.workload, self.inputs.model, store) for member in members
            ),
        )

    def __repr__(self) -> str:
        trained = self.trained
        return (
            f"<FittedModel of {type(self.workload).__name__}: "
            f"{pluralize(len(trained.members), 'network')}, candidate {trained.candidate[:12]}>"
        )

    def _repr_html_(self) -> str:
        trained = self.trained
        return fragment(
            heading(
                f"Training of {type(self.workload).__name__}",
                pluralize(len(trained.members), "network"),
                "unsure" if self.symptoms else "good",
            ),
            paragraph(
                f"{pluralize(len(trained.seeds), 'seed')} on {pluralize(len(self.folds), 'fold')} "
                f"in {trained.seconds:.1f} s; trained before: "
                f"{pluralize(trained.reused, 'network')}. Candidate {trained.candidate[:12]}.",
                soft=True,
            ),
            *(_symptom_card(symptom) for symptom in self.symptoms),
            details(
                f"{pluralize(len(trained.members), 'network')}",
                text_table(
                    ("seed", "fold", "best epoch", "epochs", "train loss", "validation loss"),
                    [
                        (
                            *(str(n) for n in (m.seed, m.fold_id, m.best_epoch, m.epochs_run)),
                            f"{m.train_loss:.4g}",
                            f"{m.val_loss:.4g}",
                        )
                        for m in trained.members
                    ],
                    numbers=frozenset(range(6)),
                ),
            ),
        )


def fit(
    workload: Workload | type[Workload] | None = None,
    *,
    frame: "pd.DataFrame | None" = None,
    target: str | None = None,
    model: ModelSettings | None = None,
    training: TrainSettings = TrainSettings(),  # noqa: B008 - frozen
    seeds: Sequence[int] = SEEDS,
    data_seed: int | None = None,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008 - frozen
    on_event: Callable[[FoldRunEvent], None] | None = None,
) -> FittedModel:
    """Train one network for each seed and fold, in processes of this machine or on a cluster.

    If an interrupted call is repeated, training resumes with bitwise identical results, and
    networks that are already trained are reused. Rows and weights are stored in SLUICE_HOME. Call
    ``sluice.check`` first: it takes seconds, and a training may take hours.

    Args:
        workload: Class of the workload, or an instance whose settings are used. It must be
            importable from a module, because other processes train the networks.
        frame: Data frame with features and target, instead of a workload.
        target: Column of ``frame`` that is predicted.
        model: Architecture and size; by default ``default_architecture`` of the workload, which is
            'mlp' for a frame and 'gru' otherwise.
        training: Settings of the training.
        seeds: Seeds of the weights and of the row order. By default, the promotion gate requires
            five seeds.
        data_seed: Base seed of the row order of all networks; by default each network uses its own
            seed.
        compute: Machines and resources.
        on_event: Called with every event of a training; by default a line on stderr reports each
            finished network.

    Raises:
        SettingsError: The workload cannot be imported by another process, or a setting is invalid.
        SchemaError: The rows do not match the workload's schema.
        TrainingFailed: A training ended without a usable network.
    """
    workload = require_workload(workload, frame=frame, target=target)
    if model is None:
        model = ModelSettings(architecture=workload.default_architecture)
    inputs = _training_inputs(
        workload,
        model=model,
        training=training,
        data_seed=data_seed,
        num_ranks=compute.ranks_per_training,
    )
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    store = ArtifactStore(home.artifacts)
    raw, table, folds = _store_tables(inputs.workload, store)
    specs = [
        FoldRunSpec(
            workload=inputs.path,
            workload_settings=dict(inputs.workload_settings),
            model=model,
            training=training,
            seed=seed,
            data_seed=data_seed,
            fold=fold,
            table=table,
            artifacts=home.artifacts,
            runs=home.runs,
            sys_path=tuple(folder for folder in sys.path if folder),
        )
        for seed in sorted(set(seeds))
        for fold in folds
    ]
    start_s = time.perf_counter()
    with naming_extras("A training on a cluster"):
        members, num_reused = train_members(
            specs, compute=compute, on_event=on_event or _FinishedRunPrinter(len(specs))
        )
    code_identity = identify_code(inputs.workload, model)
    codec = inputs.workload.codec().identity()
    symptoms = diagnose_members(
        members,
        inputs.workload,
        load_table(table, store),
        folds,
        model,
        DiagnosisSettings(),
        training=training,
        store=store,
    )
    trained = TrainedModels(
        data=table.digest,
        config=inputs.config_digest,
        code=code_identity.digest,
        code_identity=code_identity,
        codec=codec,
        seeds=tuple(sorted(set(seeds))),
        members=tuple(members),
        event_log=merge_logs(
            members,
            store,
            workload=inputs.workload,
            architecture=model.architecture,
            config=inputs.config,
        ),
        seconds=time.perf_counter() - start_s,
        reused=num_reused,
    )
    return FittedModel(
        inputs=inputs,
        raw=raw,
        table=table,
        folds=folds,
        trained=trained,
        symptoms=tuple(symptoms),
        home=home,
    )


def _training_inputs(
    workload: Workload | type[Workload],
    *,
    model: ModelSettings,
    training: TrainSettings,
    data_seed: int | None,
    num_ranks: int,
) -> TrainingInputs:
    cls = workload if isinstance(workload, type) else type(workload)
    instance = workload() if isinstance(workload, type) else require_rebuildable(workload)
    module, script = module_and_script(cls)
    if script is not None:
        raise SettingsError(
            f"The workload {cls.__qualname__} must be defined in a module that other processes can "
            f"import, but is defined in the script {Path(script).name}.",
            cause="An import of the script would run it again.",
            fix="Save the class in a file of its own, for example my_model.py, and import it.",
        )
    path = f"{module}:{cls.__qualname__}"
    settings = instance.settings.model_dump()
    return TrainingInputs(
        path=path,
        workload=load_workload(path, settings, where=path),
        workload_settings=settings,
        model=model,
        training=training,
        data_seed=data_seed,
        num_ranks=num_ranks,
    )


def _store_tables(
    workload: Workload, store: ArtifactStore
) -> tuple[TableRecord, TableRecord, tuple[Fold, ...]]:
    """Check the schemas of raw rows and features, store both, and return them with the folds."""
    with wrap_user_errors("load_rows of the workload"):
        rows = workload.load_rows()
    validate_schema(rows, workload.raw_schema, "raw")
    with wrap_user_errors("compute_features of the workload"):
        frame = workload.compute_features(rows)
    validate_schema(frame, workload.feature_schema, "features")
    with wrap_user_errors("plan_folds of the workload"):
        folds = workload.plan_folds(frame)
    return save_table(rows, store), save_table(frame, store), folds


def _symptom_card(member_symptom: MemberSymptom) -> str:
    symptom = member_symptom.symptom
    return card(
        f"{symptom.fault} in {member_symptom.num_affected} of "
        f"{pluralize(member_symptom.num_members, 'network')}",
        "unsure",
        (("seen:", symptom.what), ("why:", symptom.cause), ("do:", symptom.fix)),
    )


class _FinishedRunPrinter:
    """Prints a line on stderr for each finished network."""

    def __init__(self, num_networks: int) -> None:
        self._num_networks = num_networks
        self._num_finished = 0

    def __call__(self, event: FoldRunEvent) -> None:
        if event.kind in ("finished", "reused"):
            self._num_finished += 1
            print(
                f"{self._num_finished}/{self._num_networks} seed {event.seed} fold "
                f"{event.fold_id} {event.kind} after {pluralize(event.epochs_done, 'epoch')}",
                file=sys.stderr,
            )
