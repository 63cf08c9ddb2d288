"""POC-10, REPRO-4: state missing in the checkpoint of a plain torch script is reported."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, StorageError
from sluice.failfast.checkpoints.resumption import (
    StoppableTraining,
    _describe_first_change,
    check_resumption,
    validate_checkpoint,
)
from sluice.failfast.checkpoints.resumption_findings import load_error_finding

X = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 1)

    def forward(self, x):
        return self.second(self.between(torch.tanh(self.norm(self.first(x)))))

    def between(self, hidden):
        return hidden


class Dropout(Net):
    def between(self, hidden):
        return nn.functional.dropout(hidden, 0.2, self.training)


class OwnGenerator(Net):
    """Draws its noise from a generator that no state_dict holds."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def between(self, hidden):
        noise = torch.rand(hidden.shape, generator=self.generator)
        return hidden * (noise < 0.8) if self.training else hidden


class NumpyGenerator(Net):
    def __init__(self):
        super().__init__()
        self.noise = {"rng": np.random.default_rng(0)}

    def between(self, hidden):
        keep = torch.from_numpy(self.noise["rng"].random(hidden.shape) < 0.8)
        return hidden * keep if self.training else hidden


class Unseeded(NumpyGenerator):
    def __init__(self):
        super().__init__()
        self.noise = {"rng": np.random.default_rng()}


class RunningScale(Net):
    """Follows the data with a buffer that predictions need and no file holds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(8), persistent=False)

    def between(self, hidden):
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * hidden.detach().std(dim=0)
        return hidden / self.scale


class RandomProjection(Net):
    """Fixed random features that every process draws again."""

    def __init__(self):
        super().__init__()
        self.projection = torch.randn(8, 8)

    def between(self, hidden):
        return hidden @ self.projection


class ConstantBuffer(Net):
    """Healthy: an unstored buffer that every model makes alike, as a causal mask."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.linspace(1, 2, 8), persistent=False)

    def between(self, hidden):
        return hidden * self.scale


@dataclass
class Script:
    """What people write; every option is a mistake or a matter of taste."""

    net: type[nn.Module] = Net
    make_optimizer: object = lambda p: torch.optim.AdamW(p, 1e-2)
    keep_optimizer: bool = True
    keep_schedule: bool = True
    keep_random: bool = True
    keep_position: bool = True
    rename: object = lambda name: name
    strict: bool = True
    change: object = lambda value: value
    swallow: bool = False
    position: list = field(default_factory=list)

    def start(self):
        model = self.net()
        optimizer = self.make_optimizer(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        order = torch.Generator().manual_seed(7)

        def step():
            model.train()
            rows = torch.randperm(64, generator=order)[:16]
            loss = (model(X[rows]) - Y[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss

        def save(path):
            content = {
                "model": {self.rename(k): self.change(v) for k, v in model.state_dict().items()}
            }
            content["order"] = order.get_state()
            content |= {"optimizer": optimizer.state_dict()} if self.keep_optimizer else {}
            content |= {"schedule": schedule.state_dict()} if self.keep_schedule else {}
            content |= {"random": torch.get_rng_state()} if self.keep_random else {}
            torch.save(content, path)

        def load(path):
            try:
                content = torch.load(path, weights_only=True)
            except Exception:
                if not self.swallow:
                    raise
                # A fall-back that takes over a part.
                nn.init.zeros_(model.second.weight)
                return
            model.load_state_dict(content["model"], strict=self.strict)
            if self.keep_optimizer:
                optimizer.load_state_dict(content["optimizer"])
            if self.keep_schedule:
                schedule.load_state_dict(content["schedule"])
            if self.keep_random:
                torch.set_rng_state(content["random"])
            if self.keep_position:
                order.set_state(content["order"])

        return StoppableTraining(
            model=model,
            step=step,
            predict=lambda: model(X[:8]),
            save=save,
            load=load,
            states={"optimizer": optimizer, "schedule": schedule},
        )


@pytest.fixture
def check(tmp_path):
    def run(script, *, num_steps=3, seed=0):
        finding = check_resumption(script.start, num_steps=num_steps, seed=seed, folder=tmp_path)
        assert list(tmp_path.iterdir()) == []
        return finding

    return run


HEALTHY = {
    "batch norm and AdamW": Script(),
    "dropout": Script(net=Dropout),
    "plain SGD": Script(make_optimizer=lambda p: torch.optim.SGD(p, 1e-2)),
    "SGD with momentum": Script(make_optimizer=lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9)),
    "Adagrad": Script(make_optimizer=lambda p: torch.optim.Adagrad(p, 1e-2)),
    "an unstored buffer made alike": Script(net=ConstantBuffer),
    "random state not kept and not needed": Script(keep_random=False),
    "a rate that is too high by far": Script(make_optimizer=lambda p: torch.optim.SGD(p, 1e30)),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("seed", range(2))
def test_a_valid_checkpoint_raises_no_false_alarm(check, name, seed):
    finding = check(HEALTHY[name], seed=seed)

    assert finding.outcome == "pass", finding
    assert finding.numbers["num_values"] > 20


DEFECTS = {
    "prefix of a wrapper": (
        Script(rename=lambda name: f"module.{name}"),
        ["could not be loaded", "module.first.weight", "DataParallel", "in load"],
    ),
    "one name changed": (
        Script(rename=lambda name: name.replace("second", "head")),
        ["could not be loaded", "Missing key(s)", '"second.weight"', "head.weight"],
    ),
    "other names, not strict": (
        Script(rename=lambda name: f"module.{name}", strict=False),
        ["load() left the model as it was initialised", "first.weight", "DataParallel"],
    ),
    "some other names, not strict": (
        Script(rename=lambda name: name.replace("second", "head"), strict=False),
        ["The loaded model differs from the saved one", "second.weight: at [0, 0] was", "strict"],
    ),
    "saved in half precision": (
        Script(change=lambda v: v.half() if v.is_floating_point() else v),
        ["The loaded model differs from the saved one", "first.weight: at [0, 0] was"],
    ),
    "optimizer not saved": (
        Script(keep_optimizer=False),
        ["The state of the optimizer was not restored", "first.weight/step: was saved and is miss"],
    ),
    "schedule not saved": (
        Script(keep_schedule=False),
        ["The state of the schedule was not restored", "was 3, is 0"],
    ),
    "global random state not restored": (
        Script(net=Dropout, keep_random=False),
        [
            "the loss of step 1 after the checkpoint is",
            "A random state or the position in the data was not restored",
        ],
    ),
    "position in the data not restored": (
        Script(keep_position=False),
        [
            "the loss of step 1 after the checkpoint is",
            "order of step()",
            "position in the data was not restored",
        ],
    ),
    "own torch generator": (
        Script(net=OwnGenerator),
        [
            "the loss of step 1 after the checkpoint is",
            "generator (random generator)/state",
            "get_state()",
        ],
    ),
    "own numpy generator": (
        Script(net=NumpyGenerator),
        [
            "the loss of step 1 after the checkpoint is",
            "noise/rng (random generator)/state/state",
            "bit_generator",
        ],
    ),
    "generator without a seed": (
        Script(net=Unseeded),
        ["differ from each other", "noise/rng (random generator)", "generator is not seeded"],
    ),
    "buffer that is not stored": (
        Script(net=RunningScale),
        ["the predictions differ", "Not stored, and different: scale", "persistent=False"],
    ),
    "random features drawn again": (
        Script(net=RandomProjection),
        ["the predictions differ", "Not stored, and different: projection: at [0, 0] was"],
    ),
    "torn file half loaded": (
        Script(swallow=True),
        ["truncated to half its size was partially loaded", "raise"],
    ),
}


NOT_RESUMED = (
    *("optimizer not saved", "schedule not saved", "global random state not restored"),
    *("position in the data not restored", "own torch generator", "own numpy generator"),
    "generator without a seed",
)
"""Defects of a checkpoint that restores the model but not the training."""


@pytest.mark.parametrize("name", DEFECTS)
def test_a_lost_state_is_named_with_cause_and_fix(check, name):
    script, said = DEFECTS[name]

    finding = check(script)

    fault = "resume state lost" if name in NOT_RESUMED else "checkpoint mismatch"
    assert (finding.outcome, finding.fault) == ("fail", fault), finding
    text = " ".join((finding.summary, *finding.response))
    for part in said:
        assert part in text, text


def test_a_torn_file_is_a_mismatch_and_not_a_crash(check):
    class Torn(Script):
        def start(self):
            training = super().start()

            def save(path):
                training.save(path)
                path.write_bytes(path.read_bytes()[:-200])

            return StoppableTraining(
                model=training.model,
                step=training.step,
                predict=training.predict,
                save=save,
                load=training.load,
                states=training.states,
            )

    finding = check(Torn())

    assert "The checkpoint could not be loaded: " in finding.summary
    assert "test_resumption.py" in finding.summary
    assert "not written completely" in finding.response[0]


def changed(training, **changes):
    names = ("model", "step", "predict", "save", "load", "states")
    return StoppableTraining(**{name: getattr(training, name) for name in names} | changes)


def test_missing_checkpoint_file_is_reported(check):
    class Elsewhere(Script):
        def start(self):
            return changed(super().start(), save=lambda _: None)

    assert "and did not" in check(Elsewhere()).summary


def test_a_folder_is_a_checkpoint_too(check):
    class Folder(Script):
        def start(self):
            training = super().start()

            def save(path):
                path.mkdir()
                training.save(path / "all.pt")

            return changed(training, save=save, load=lambda path: training.load(path / "all.pt"))

    assert check(Folder()).outcome == "pass"


@pytest.mark.parametrize("error", [OSError(28, "No space left"), StorageError("full", fix="free")])
def test_unwritable_disk_is_not_a_checkpoint_mismatch(check, tmp_path, error):
    class Full(Script):
        def start(self):
            def save(_):
                raise error

            return changed(super().start(), save=save)

    assert check(Full()).fault == "storage not writable"
    with pytest.raises(StorageError):
        validate_checkpoint(Full().start, num_steps=1, seed=0, folder=tmp_path)


def test_a_folder_that_does_not_exist_is_reported(tmp_path):
    finding = check_resumption(Script().start, num_steps=1, seed=0, folder=tmp_path / "none")

    assert finding.fault == "storage not writable"
    assert "none" in finding.summary


def test_the_validator_raises_with_cause_and_fix_and_is_silent_when_sound(tmp_path):
    validate_checkpoint(Script().start, num_steps=2, seed=0, folder=tmp_path)

    with pytest.raises(ContractError, match=r"optimizer was not restored.*optimizer's state_dict"):
        validate_checkpoint(
            Script(keep_optimizer=False).start, num_steps=2, seed=0, folder=tmp_path
        )


def test_the_scripts_own_mistakes_pass_through(check):
    class Broken(Script):
        def start(self):
            def step():
                raise KeyError("no such batch")

            return changed(super().start(), step=step)

    with pytest.raises(KeyError, match="no such batch"):
        check(Broken())


def test_the_callers_random_numbers_are_left_alone(check):
    torch.manual_seed(5)
    random.seed(5)
    before = torch.get_rng_state(), random.getstate()

    check(Script(net=Dropout))

    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_layers_that_are_in_eval_mode_on_purpose_stay_there(tmp_path):
    models = []

    def start():
        model = Net()
        model.norm.eval()
        models.append(model)
        return changed(
            Script().start(),
            model=model,
            step=lambda: 1.0,
            predict=lambda: model(X),
            save=lambda path: torch.save(model.state_dict(), path),
            load=lambda path: model.load_state_dict(torch.load(path, weights_only=True)),
            states={},
        )

    assert check_resumption(start, num_steps=1, seed=0, folder=tmp_path).outcome == "pass"
    assert [(m.training, m.first.training, m.norm.training) for m in models] == [
        (True, True, False)
    ] * len(models)


@pytest.mark.parametrize(
    ("name", "is_wrapper"),
    [("module.first.weight", True), ("net.module.weight", True), ("my_module.weight", False)],
)
def test_only_the_prefix_of_a_wrapper_points_to_a_wrapper(name, is_wrapper):
    finding = load_error_finding(RuntimeError("Missing key(s) in state_dict."), {name: 1}, {})

    assert ("DataParallel" in finding.response[0]) is is_wrapper
    assert "state_dict. Names" in finding.summary


def test_one_step_with_an_equal_loss_is_counted_in_the_singular():
    text = _describe_first_change([1.0], [1.0], {"model": {"w": 1}}, {"model": {"w": 2}})

    assert text == "after 1 step with equal losses the model differs, w: was 1, is 2"
