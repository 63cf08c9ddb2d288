"""TRAIN-1, REPRO-4: torch optimizers by name or path, with arguments, state and changes."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, SettingsError
from sluice.base.seeding import derive_seed, deterministic
from sluice.training.code import optimizer_code
from sluice.training.fold_run import train_fold_run
from sluice.training.fold_run_spec import fold_run_subject
from sluice.training.optimizer_state import restore_state, split_state
from sluice.training.optimizers import OPTIMIZERS, require_optimizer
from sluice.training.parameter_groups import make_optimizer
from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainingChange, TrainSettings, may_change
from tests.sluice.training.test_fold_run import bits, events, ignore, interrupt_after
from tests.sluice.training.test_loop import (
    SETTINGS,
    TRAIN,
    clone_state,
    drop_seconds,
    loss_of,
    make_model,
    run,
    vector,
)

HERE = "tests.sluice.training.test_optimizers"

TORCH_CLASSES = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adagrad": torch.optim.Adagrad,
}
ARGUMENTS = {
    "adamw": {"betas": [0.8, 0.99], "amsgrad": True},
    "adam": {"betas": [0.8, 0.95], "eps": 1e-6},
    "sgd": {"momentum": 0.9, "nesterov": True},
    "rmsprop": {"alpha": 0.9, "momentum": 0.5, "centered": True},
    "nadam": {"momentum_decay": 0.01, "decoupled_weight_decay": True},
    "radam": {"betas": [0.8, 0.99]},
    "adagrad": {"lr_decay": 0.01, "initial_accumulator_value": 0.1},
}
CHANGES = {
    "adamw": {"betas": [0.5, 0.9], "eps": 1e-4},
    "adam": {"betas": [0.5, 0.9]},
    "sgd": {"momentum": 0.5},
    "rmsprop": {"alpha": 0.5, "momentum": 0.8},
    "nadam": {"betas": [0.5, 0.9], "momentum_decay": 0.1},
    "radam": {"betas": [0.5, 0.9], "eps": 1e-4},
    "adagrad": {"lr_decay": 0.1, "eps": 1e-4},
}


class Counting(torch.optim.Optimizer):
    """SGD with a decaying learning rate whose state also contains values other than tensors."""

    def __init__(self, params, lr, gain=1.0):
        super().__init__(params, {"lr": lr, "gain": gain})
        for group in self.param_groups:
            group["steps"] = 0

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("step", 0)
                state.setdefault("last", [None, (0.1, True)])
                state["step"] += 1
                shrink = (1 + group["steps"]) ** 0.5 + state["step"] + state["last"][1][0]
                parameter.sub_(parameter.grad, alpha=group["gain"] * group["lr"] / shrink)
                state["last"] = [parameter.grad.clone(), (float(parameter.grad.sum()), False)]


class Opaque(Counting):
    def step(self):
        super().step()
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["object"] = object()


class NoRate(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=1.0)


class Forwarding(torch.optim.SGD):
    def __init__(self, params, nothing=0.0, **others):
        self.nothing = nothing
        super().__init__(params, **others)


def no_class(*_, **__):
    raise AssertionError("it must not be called")


def make_settings(name, **values):
    # With the weight decay and learning rate of SETTINGS every optimizer lowers the loss.
    arguments = {"optimizer": name, "optimizer_arguments": ARGUMENTS.get(name, {})} | values
    return SETTINGS.model_copy(update=arguments)


def make_settings_by_path(cls, **values):
    return make_settings(f"{HERE}:{cls}", **values)


def test_every_short_name_is_covered_by_the_cases():
    assert OPTIMIZERS.keys() == TORCH_CLASSES.keys() == ARGUMENTS.keys() == CHANGES.keys()


@pytest.mark.parametrize("name", TORCH_CLASSES)
def test_training_with_changes_equals_a_plain_torch_loop(name):
    """Oracle: the class of torch with all values set manually."""
    change = TrainingChange(
        from_epoch=1, learning_rate=0.01, weight_decay=0.1, optimizer_arguments=CHANGES[name]
    )
    settings = make_settings(name, max_epochs=3, changes=(change,))
    model, oracle = make_model(dropout=0), make_model(dropout=0)
    list(run(model, settings))

    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in ARGUMENTS[name].items()}
    optimizer = TORCH_CLASSES[name](oracle.parameters(), lr=1.0, weight_decay=0.01, **arguments)
    step = 0
    for epoch in (1, 2, 3):
        order = torch.Generator().manual_seed(derive_seed(3, f"order_{epoch}"))
        if epoch == 2:
            optimizer.param_groups[0].update(CHANGES[name], weight_decay=0.1)
        for rows in torch.randperm(100, generator=order).split(16):
            optimizer.zero_grad()
            loss_of(oracle(TRAIN.x[rows]), TRAIN.y[rows]).backward()
            nn.utils.clip_grad_norm_(oracle.parameters(), 0.5)
            optimizer.param_groups[0]["lr"] = learning_rate_at(step, 21, settings.at(epoch))
            optimizer.step()
            step += 1

    torch.testing.assert_close(vector(model), vector(oracle), rtol=1e-5, atol=1e-6)
    unchanged = settings.model_copy(update={"changes": ()})
    list(run(plain := make_model(dropout=0), unchanged))
    assert not torch.allclose(vector(model), vector(plain), rtol=1e-4)


@pytest.mark.parametrize("name", [*TORCH_CLASSES, f"{HERE}:Counting", "torch.optim:Adamax"])
def test_resumed_training_with_changes_ends_with_identical_bits(name):
    changes = ()
    if name in CHANGES:
        changes = (TrainingChange(from_epoch=2, optimizer_arguments=CHANGES[name]),)
    settings = make_settings(name, changes=changes)
    states, whole = {}, make_model()

    def keep(state):
        states[len(state.history)] = clone_state(state)

    with deterministic():
        expected = list(run(whole, settings, on_state=keep))
        for stopped_after in (1, 2, 3):
            resumed = make_model(seed=99)
            rest = list(run(resumed, settings, resume=states[stopped_after]))

            assert torch.equal(vector(resumed), vector(whole))
            assert drop_seconds(rest) == drop_seconds(expected[stopped_after:])
    assert vector(whole).isfinite().all()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", TORCH_CLASSES)
def test_every_optimizer_trains_with_low_precision_micro_batches_and_groups(name, precision):
    settings = make_settings(name, precision=precision, micro_batch_rows=5)
    model = make_model(dropout=0)
    groups = [
        {"params": model[3].parameters(), "weight_decay": 0.0},
        {"params": model[0].parameters(), "rate_share": 0.5},
    ]
    history = list(run(model, settings, groups=groups))

    assert history[-1].val_loss < history[0].val_loss
    assert history[-1].precision == precision


def test_state_of_a_custom_optimizer_is_restored():
    settings = make_settings_by_path("Counting")
    model = make_model()
    optimizer = make_optimizer([{"params": model.parameters()}], settings)
    loss_of(model(TRAIN.x), TRAIN.y).backward()
    optimizer.step()
    other = make_optimizer([{"params": make_model().parameters()}], settings)
    restore_state(other, *split_state(optimizer))

    (group,), (expected,) = other.param_groups, optimizer.param_groups
    assert group["steps"] == 1
    for restored, original in zip(group["params"], expected["params"], strict=True):
        now, before = other.state[restored], optimizer.state[original]
        assert (now["step"], now["last"][1]) == (before["step"], before["last"][1])
        assert type(now["last"][1]) is tuple
        assert torch.equal(now["last"][0], before["last"][0])
        assert now["last"][0] is not before["last"][0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (make_settings("sgd", optimizer_arguments={"momentun": 0.9}), "Did you mean 'momentum'"),
        (
            make_settings("sgd", optimizer_arguments={"betas": [0.9]}),
            "The optimizer takes: momentum, dampening",
        ),
        (
            make_settings("adam", optimizer_arguments={"betas": [0.9, 1.5]}),
            "Invalid beta parameter",
        ),
        (make_settings("adam", optimizer_arguments={"betas": 0.9}), "refuses its arguments"),
        (
            make_settings("sgd", optimizer_arguments={"nesterov": True}),
            "Nesterov momentum requires",
        ),
        (
            make_settings("sgd", precision="fp16", optimizer_arguments={"fused": True}),
            "cannot be fused in fp16",
        ),
        (make_settings("torch.optim:Adamx"), "Did you mean 'Adamax'"),
        (make_settings("no_such_module:Adam"), "no_such_module"),
        (
            make_settings_by_path("no_class"),
            "must be a subclass of torch.optim.Optimizer.*builtins.function",
        ),
        (make_settings("torch.nn:Linear"), "got torch.nn.modules.linear.Linear"),
        (make_settings_by_path("NoRate"), "must take the argument lr"),
        (make_settings_by_path("Forwarding", optimizer_arguments={"momentm": 1.0}), "momentm"),
        (make_settings("torch.optim:LBFGS"), "cannot take a step: .*closure"),
        (make_settings("torch.optim:SparseAdam"), "cannot take a step: .*dense gradients"),
        (
            make_settings(
                "sgd",
                changes=(TrainingChange(from_epoch=1, optimizer_arguments={"momentum": -1.0}),),
            ),
            "Invalid momentum",
        ),
        (
            make_settings_by_path(
                "Counting", changes=(TrainingChange(from_epoch=1, optimizer_arguments={"step": 1}),)
            ),
            "does not take the argument 'step'",
        ),
        (
            make_settings(
                "torch.optim:Adamax",
                changes=(TrainingChange(from_epoch=1, optimizer_arguments={"foreach": 1}),),
            ),
            "cannot change to 1 during training: the parameter groups contain None",
        ),
    ],
)
def test_invalid_optimizer_is_rejected_before_training(settings, message):
    with pytest.raises(SettingsError, match=message):
        require_optimizer(settings)


def test_optimizer_state_that_cannot_be_stored_is_rejected_before_training():
    with pytest.raises(
        ContractError, match=r"Opaque must consist of tensors.*object at '0/object'"
    ):
        require_optimizer(make_settings_by_path("Opaque"))


def test_arguments_reach_a_class_that_forwards_keyword_arguments():
    settings = make_settings_by_path(
        "Forwarding", optimizer_arguments={"momentum": 0.5, "nothing": 1.0}
    )
    optimizer = make_optimizer([{"params": make_model().parameters()}], settings)

    assert (optimizer.param_groups[0]["momentum"], optimizer.nothing) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("decay", "changes", "group", "is_rejected"),
    [
        (0.01, (), {}, False),  # the default is not an explicit request
        (0.0, (), {}, False),
        (0.5, (), {}, True),
        (0.0, (TrainingChange(from_epoch=1, weight_decay=0.5),), {}, True),
        (0.0, (), {"weight_decay": 0.5}, True),
        (0.0, (), {"weight_decay": 0.0}, False),
    ],
)
def test_weight_decay_that_the_optimizer_ignores_is_rejected(decay, changes, group, is_rejected):
    settings = make_settings_by_path("Counting", weight_decay=decay, changes=changes)
    groups = [{"params": make_model().parameters()} | group]
    if not is_rejected:
        assert "weight_decay" not in make_optimizer(groups, settings).param_groups[0]
        return
    with pytest.raises(
        SettingsError, match=r"does not support weight decay, but a weight decay of 0\.5 is set"
    ):
        make_optimizer(groups, settings)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimizer": "adm"}, "unknown optimizer 'adm'. Did you mean 'adam'"),
        ({"optimizer_arguments": {"lr": 0.1}}, "set training.learning_rate instead"),
        ({"optimizer_arguments": {"weight_decay": 0.1}}, "set training.weight_decay instead"),
        ({"optimizer_arguments": {"params": []}}, "the trainer passes"),
        ({"optimizer_arguments": {"betas": {"a": 1}}}, "a list of numbers, got dict"),
        ({"optimizer_arguments": {"eps": None}}, "a list of numbers, got NoneType"),
        (
            {"changes": [{"from_epoch": 1, "optimizer_arguments": {"momentum": 0.5}}]},
            "sets 'momentum' of the optimizer 'adamw', which cannot change",
        ),
    ],
)
def test_settings_reject_invalid_values_without_importing_the_class(values, message):
    with pytest.raises(SettingsError, match=message):
        TrainSettings.parse(values, where="defs.yaml")


def test_default_optimizer_is_omitted_from_the_dump():
    dumped = TrainSettings(optimizer="adamw", optimizer_arguments={}).model_dump(mode="json")

    assert "optimizer" not in dumped
    assert "optimizer_arguments" not in dumped
    assert TrainSettings(optimizer="sgd").model_dump(mode="json")["optimizer"] == "sgd"


@pytest.mark.parametrize(
    ("path", "settings", "expected"),
    [
        ("training.learning_rate", TrainSettings(), True),
        ("training.clip_norm", TrainSettings(), True),
        ("training.batch_rows", TrainSettings(), False),
        ("training.optimizer", TrainSettings(), False),
        ("training.learning_rate.x", TrainSettings(), False),
        ("training.optimizer_arguments", TrainSettings(), False),
        ("training.optimizer_arguments.eps", TrainSettings(), True),
        ("training.optimizer_arguments.amsgrad", TrainSettings(), False),
        ("training.optimizer_arguments.momentum", TrainSettings(), False),
        ("training.optimizer_arguments.momentum", make_settings("sgd"), True),
        ("training.optimizer_arguments.nesterov", make_settings("sgd"), False),
        ("training.optimizer_arguments.betas.1", make_settings("adam"), True),
        ("training.optimizer_arguments.betas.2", make_settings("adam"), False),
        ("training.optimizer_arguments.betas.1", TrainSettings(), False),
        ("training.optimizer_arguments.momentum", make_settings("rmsprop"), True),
        ("training.optimizer_arguments.momentum", TrainSettings(optimizer="rmsprop"), False),
        ("training.optimizer_arguments.gain", make_settings_by_path("Counting"), True),
        ("training.optimizer_arguments.lr", make_settings_by_path("Counting"), False),
        ("model.hidden", TrainSettings(), False),
    ],
)
def test_settings_that_may_change_during_training(path, settings, expected):
    assert may_change(path, settings) is expected


@pytest.mark.parametrize("name", [*TORCH_CLASSES, f"{HERE}:Counting"])
def test_interrupted_fold_run_resumes_with_identical_bits_and_log(name, specs):
    """The state is restored from a checkpoint file, around a change of optimizer arguments."""
    changed = CHANGES.get(name, {"gain": 0.5})
    options = {
        "optimizer": name,
        "optimizer_arguments": ARGUMENTS.get(name, {"gain": 2.0}),
        "changes": (TrainingChange(from_epoch=2, optimizer_arguments=changed),),
        "max_epochs": 3,
        "num_rows": 170,
    }
    (whole,), (cut,) = (specs(folder, **options) for folder in "ab")
    expected = train_fold_run(whole, ignore)
    interrupt_after(cut, 2)
    member = train_fold_run(cut, ignore)

    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


def test_fold_run_key_contains_code_of_a_custom_optimizer_only(specs):
    (plain,) = specs()
    (own,) = specs(optimizer=f"{HERE}:Counting", optimizer_arguments={"gain": 2.0})

    assert "optimizer_code" not in fold_run_subject(plain)
    assert fold_run_subject(own)["optimizer_code"] == optimizer_code(own.training)["optimizer_code"]
    assert fold_run_subject(own)["code"] == fold_run_subject(plain)["code"]
