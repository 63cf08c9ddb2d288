"""TUNE-1: training with the settings from the winner's schedule reproduces the winner."""

import json

import pytest
import torch
import yaml

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import SettingsError
from sluice.base.seeding import deterministic
from sluice.config.pipeline import PipelineSettings, read_pipeline
from sluice.config.pipeline_file import COMPONENT, merge_attributes
from sluice.config.resolved import resolve
from sluice.training.checkpoint import load_checkpoint, save_checkpoint
from sluice.training.fold_run import train_fold_run
from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.settings import TrainingChange, TrainSettings
from sluice.training.weights import unpack_tensors
from sluice.tuning.records import ScheduleStep
from sluice.tuning.schedule_to_settings import (
    changed_settings,
    settings_from_schedule,
    settings_yaml,
)
from sluice.tuning.search import run_search
from sluice.tuning.settings import SearchSettings
from sluice.tuning.space_validation import require_trainable
from sluice.tuning.spaces import Space, TrialSettings
from tests.sluice.training.test_loop import drop_seconds, make_model, run
from tests.sluice.tuning.conftest import SINE
from tests.sluice.tuning.toy_space import HERE, ignore
from tests.support.simulated_tune import simulate

RATE, DECAY, CLIP = "training.learning_rate", "training.weight_decay", "training.clip_norm"


def steps(*pairs):
    return tuple(ScheduleStep(from_epoch=epoch, params=params) for epoch, params in pairs)


def test_only_changed_values_become_training_changes():
    schedule = steps(
        (0, {RATE: 0.1, DECAY: 0.0, "training.batch_rows": 64}),
        (2, {RATE: 0.2, DECAY: 0.0, "training.batch_rows": 64}),
        (4, {RATE: 0.2, DECAY: 0.0, "training.batch_rows": 64}),
        (5, {RATE: 0.1, DECAY: 0.3, "training.batch_rows": 64}),
    )
    training = settings_from_schedule(TrialSettings(), schedule, where="test").training

    assert (training.learning_rate, training.weight_decay, training.batch_rows) == (0.1, 0.0, 64)
    assert training.changes == (
        TrainingChange(from_epoch=2, learning_rate=0.2),
        TrainingChange(from_epoch=5, learning_rate=0.1, weight_decay=0.3),
    )
    for epoch, rate in ((1, 0.1), (2, 0.1), (3, 0.2), (5, 0.2), (6, 0.1)):
        assert training.at(epoch).learning_rate == rate


def test_changes_of_the_base_settings_are_kept():
    base = TrialSettings(
        training=TrainSettings(
            changes=(
                TrainingChange(from_epoch=3, clip_norm=1.0),
                TrainingChange(from_epoch=9, clip_norm=2.0),
            )
        )
    )
    schedule = steps((0, {RATE: 0.1}), (3, {RATE: 0.2}), (5, {RATE: 0.3}))

    assert settings_from_schedule(base, schedule, where="test").training.changes == (
        TrainingChange(from_epoch=3, clip_norm=1.0, learning_rate=0.2),
        TrainingChange(from_epoch=5, learning_rate=0.3),
        TrainingChange(from_epoch=9, clip_norm=2.0),
    )


def test_changed_optimizer_arguments_become_changes():
    base = TrialSettings(
        training=TrainSettings(
            optimizer="sgd", optimizer_arguments={"momentum": 0.9, "nesterov": True}
        )
    )
    momentum, dampening = (f"training.optimizer_arguments.{n}" for n in ("momentum", "dampening"))
    schedule = steps(
        (0, {RATE: 0.1, momentum: 0.8}),
        (2, {RATE: 0.1, momentum: 0.7}),
        (4, {RATE: 0.2, momentum: 0.7}),
        (5, {RATE: 0.2, momentum: 0.6}),
    )
    training = settings_from_schedule(base, schedule, where="test").training

    assert training.optimizer_arguments == {"momentum": 0.8, "nesterov": True}
    assert training.changes == (
        TrainingChange(from_epoch=2, optimizer_arguments={"momentum": 0.7}),
        TrainingChange(from_epoch=4, learning_rate=0.2),
        TrainingChange(from_epoch=5, optimizer_arguments={"momentum": 0.6}),
    )
    assert training.at(5).optimizer_arguments == {"momentum": 0.7, "nesterov": True}
    training_with_changes = base.training.model_copy(
        update={"changes": (TrainingChange(from_epoch=2, optimizer_arguments={"dampening": 0.1}),)}
    )
    both = settings_from_schedule(
        base.model_copy(update={"training": training_with_changes}), schedule, where="test"
    ).training
    assert both.changes[0].optimizer_arguments == {"dampening": 0.1, "momentum": 0.7}
    with pytest.raises(SettingsError, match=r"dampening' cannot be searched while"):
        require_trainable(
            PBT_SPACE.model_copy(update={"parameters": {dampening: PBT_SPACE.parameters[RATE]}}),
            base.model_copy(update={"training": training_with_changes}),
        )


SCHEDULES = {
    "momentum of SGD": (
        {"optimizer": "sgd", "optimizer_arguments": {"momentum": 0.9, "nesterov": True}},
        ({"momentum": 0.9}, {"momentum": 0.7}, {"momentum": 0.55}),
    ),
    "betas of Adam": (
        {"optimizer": "adam", "optimizer_arguments": {"betas": [0.9, 0.99], "eps": 1e-6}},
        (
            {"betas.0": 0.95, "betas.1": 0.99},
            {"betas.0": 0.8, "betas.1": 0.99},
            {"betas.0": 0.8, "betas.1": 0.9},
        ),
    ),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedule_in_a_pipeline_file_reproduces_the_bits_of_the_trial(case, tmp_path):
    """The trial resumes from checkpoints with new values; the file contains all changes."""
    training, argument_steps = SCHEDULES[case]
    base = TrialSettings(training=TrainSettings(max_epochs=6, batch_rows=16, **training))
    schedule = steps(
        *(
            (
                epoch,
                {
                    RATE: rate,
                    **{f"training.optimizer_arguments.{k}": v for k, v in arguments.items()},
                },
            )
            for epoch, rate, arguments in zip(
                (0, 2, 4), (0.02, 0.01, 0.01), argument_steps, strict=True
            )
        )
    )
    model, state, epochs = make_model(), None, []
    with deterministic():
        for done, until in ((1, 2), (2, 4), (3, 6)):
            setup, kept = settings_from_schedule(base, schedule[:done], where="trial"), []
            for result in run(model, setup.training, resume=state, on_state=kept.append):
                epochs.append(result)
                if result.epoch == until:
                    break
            save_checkpoint(tmp_path / "trial", kept[-1], subject={})
            state = load_checkpoint(tmp_path / "trial", subject={}).state
            model = make_model(seed=99)

    found = settings_from_schedule(base, schedule, where="winner")
    file = tmp_path / "defs.yaml"
    attributes = {
        "name": "sine",
        "workload": "tests.support.synthetic:SineWorkload",
        "training": base.training.model_dump(mode="json", exclude={"changes"}),
    }
    pasted = merge_attributes(
        attributes, yaml.safe_load(settings_yaml(changed_settings(base, found)))
    )
    file.write_text(yaml.safe_dump({"type": COMPONENT, "attributes": pasted}))
    pipeline = read_pipeline(file)
    assert resolve(pipeline).search.trial_settings == found
    assert len(found.training.changes) == 2
    with deterministic():
        again = list(run(trained := make_model(), pipeline.training))

    assert drop_seconds(again) == drop_seconds(epochs)
    assert all(torch.equal(state.best[n], p) for n, p in trained.state_dict().items())


def test_another_optimizer_drops_the_arguments_of_the_base():
    base = TrialSettings(
        training=TrainSettings(optimizer="sgd", optimizer_arguments={"momentum": 0.9})
    )
    params = {"training.optimizer": "adam", "training.optimizer_arguments.eps": 1e-6}

    with pytest.raises(SettingsError, match=r"'betas' is None: write the whole list of 'betas'"):
        base.with_params({"training.optimizer_arguments.betas.0": 0.5}, where="test")
    found = base.with_params(params, where="test").training
    assert (found.optimizer, found.optimizer_arguments) == ("adam", {"eps": 1e-6})


PBT_SPACE = Space.parse(
    {
        "parameters": {
            RATE: {"kind": "log_uniform", "low": 1e-4, "high": 1e-1},
            DECAY: {"kind": "log_uniform", "low": 1e-3, "high": 1.0, "may_be_off": True},
            CLIP: {"kind": "log_uniform", "low": 0.01, "high": 10.0},
            "training.batch_rows": {"kind": "powers_of_two", "low": 16, "high": 64},
            "model.dropout": {"kind": "uniform", "low": 0.0, "high": 0.4},
        }
    },
    where="test",
)


@pytest.fixture(scope="module")
def pbt_search(tmp_path_factory):
    """PBT search whose winner copied the weights of another trial."""
    from tests.sluice.tuning.conftest import make_objective

    home = tmp_path_factory.mktemp("pbt")
    training = SINE.training.model_copy(update={"patience_epochs": 6})
    base = SINE.model_copy(update={"training": training})
    objective = make_objective(home, base=base)
    result = run_search(
        objective,
        PBT_SPACE,
        base,
        SearchSettings(num_trials=4, scheduler="pbt", perturbation_epochs=2, seed=4),
        folder=home / "search",
        on_report=ignore,
        compute=HERE,
        run=simulate,
    )
    return objective, result, home


@pytest.mark.slow
def test_retrained_winner_has_identical_weights_and_losses(pbt_search):
    objective, result, home = pbt_search
    winner, changes = result.winner, result.setup.training.changes
    # The test needs a copy before the last epoch, because a later one trains no step.
    assert [change.from_epoch for change in changes] == [4]
    spec = FoldRunSpec(
        workload=objective.workload,
        workload_settings=objective.workload_settings,
        model=result.setup.model,
        training=result.setup.training,
        seed=objective.seed,
        fold=objective.folds[0],
        table=objective.table,
        artifacts=home / "artifacts",
        runs=home / "runs",
    )
    received = []
    member = train_fold_run(spec, received.append)
    results = [event.result for event in received if event.result]

    assert [(r.train_loss, r.val_loss) for r in results] == [
        (e.train_loss, e.val_loss) for e in winner.epochs
    ]
    assert member.val_loss == winner.loss
    folder = next((home / "search" / "checkpoints").glob(f"{winner.id}-*-6")) / "fold-0"
    best = load_checkpoint(folder, subject=objective._checkpoint_subject()).state.best
    weights, _ = unpack_tensors(ArtifactStore(spec.artifacts).get(member.weights), where="test")
    assert weights.keys() == best.keys()
    assert all(torch.equal(weights[name], best[name]) for name in best)


@pytest.mark.slow
def test_winner_settings_survive_yaml_and_change_the_digest(pbt_search):
    """A winner copied into defs.yaml keeps every bit of its numbers."""
    _, result, _ = pbt_search
    text = yaml.safe_dump(json.loads(result.setup.model_dump_json()))
    attributes = {
        "name": "sine",
        "workload": "tests.support.synthetic:SineWorkload",
        **yaml.safe_load(text),
    }
    pipeline = PipelineSettings.parse(attributes, where="defs.yaml")

    assert resolve(pipeline).search.trial_settings == result.setup
    plain = pipeline.training.model_copy(update={"changes": ()})
    without = pipeline.model_copy(update={"training": plain})
    assert resolve(pipeline).training.config_digest != resolve(without).training.config_digest
