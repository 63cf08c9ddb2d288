"""TUNE-1: settings made from the winner's schedule reproduce the winner."""

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
from tests.sluice.training.test_loop import make_model, run, timeless
from tests.sluice.tuning.conftest import SINE
from tests.sluice.tuning.toy_space import HERE, ignore
from tests.support.simulated_tune import simulate

RATE, DECAY, CLIP = "training.learning_rate", "training.weight_decay", "training.clip_norm"


def steps(*given):
    return tuple(ScheduleStep(from_epoch=epoch, params=params) for epoch, params in given)


def test_later_values_become_changes_and_equal_ones_do_not():
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


def test_changes_of_the_base_stay():
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


def test_optimizer_arguments_become_changes_argument_by_argument():
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
    own = base.training.model_copy(
        update={"changes": (TrainingChange(from_epoch=2, optimizer_arguments={"dampening": 0.1}),)}
    )
    both = settings_from_schedule(
        base.model_copy(update={"training": own}), schedule, where="test"
    ).training
    assert both.changes[0].optimizer_arguments == {"dampening": 0.1, "momentum": 0.7}
    with pytest.raises(SettingsError, match=r"dampening' cannot be searched while"):
        require_trainable(
            PBT_SPACE.model_copy(update={"parameters": {dampening: PBT_SPACE.parameters[RATE]}}),
            base.model_copy(update={"training": own}),
        )


MOVES = {
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


@pytest.mark.parametrize("case", MOVES)
def test_a_schedule_pasted_into_a_file_trains_the_bits_of_the_trial_that_changed(case, tmp_path):
    """The trial goes on from its checkpoint with other values, and knows nothing of later ones."""
    training, moves = MOVES[case]
    base = TrialSettings(training=TrainSettings(max_epochs=6, batch_rows=16, **training))
    schedule = steps(
        *(
            (
                epoch,
                {RATE: rate, **{f"training.optimizer_arguments.{k}": v for k, v in own.items()}},
            )
            for epoch, rate, own in zip((0, 2, 4), (0.02, 0.01, 0.01), moves, strict=True)
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

    assert timeless(again) == timeless(epochs)
    assert all(torch.equal(state.best[n], p) for n, p in trained.state_dict().items())


def test_a_trial_with_another_optimizer_has_none_of_the_files_arguments():
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
def searched(tmp_path_factory):
    """A population search whose winner took over another member's weights on its way."""
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
def test_a_winner_trained_again_ends_with_its_very_weights_and_losses(searched):
    objective, result, home = searched
    winner, changes = result.winner, result.setup.training.changes
    # Or it shows nothing: a copy after the last epoch trains no step.
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
def test_a_recipe_is_yaml_and_part_of_the_digest(searched):
    """As a person copies a winner into defs.yaml: every bit of its numbers survives."""
    _, result, _ = searched
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
