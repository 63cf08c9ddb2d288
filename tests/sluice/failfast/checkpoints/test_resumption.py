"""POC-10, REPRO-4: state missing in the checkpoint of a plain torch script is reported."""

import random
from dataclasses import dataclass

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
    """Training updates a non-persistent buffer that predictions need."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(8), persistent=False)

    def between(self, hidden):
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * hidden.detach().std(dim=0)
        return hidden / self.scale


class RandomProjection(Net):
    """Fixed random features that are drawn again in every process."""

    def __init__(self):
        super().__init__()
        self.projection = torch.randn(8, 8)

    def between(self, hidden):
        return hidden @ self.projection


class ConstantBuffer(Net):
    """Healthy: a non-persistent buffer that is the same in every instance, like a causal mask."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.linspace(1, 2, 8), persistent=False)

    def between(self, hidden):
        return hidden * self.scale


@dataclass
class Script:
    """A user's training script; its options insert faults or choose healthy variants."""

    net: type[nn.Module] = Net
    make_optimizer: object = lambda p: torch.optim.AdamW(p, 1e-2)
    keep_optimizer: bool = True
    keep_schedule: bool = True
    keep_random: bool = True
    keep_position: bool = True
    rename: object = lambda name: name
    strict: bool = True
    change: object = lambda value: value
    swallows_errors: bool = False

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
                if not self.swallows_errors:
                    raise
                # A faulty fallback: it changes a part of the model and continues.
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
    "constant non-persistent buffer": Script(net=ConstantBuffer),
    "unneeded random state not saved": Script(keep_random=False),
    "learning rate far too high": Script(make_optimizer=lambda p: torch.optim.SGD(p, 1e30)),
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
        ["The loaded model differs from the saved model", "second.weight: at [0, 0] was", "strict"],
    ),
    "saved in half precision": (
        Script(change=lambda v: v.half() if v.is_floating_point() else v),
        ["The loaded model differs from the saved model", "first.weight: at [0, 0] was"],
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
        [
            "the predictions differ",
            "State that is not in state_dict() and differs: scale",
            "persistent=False",
        ],
    ),
    "random features drawn again": (
        Script(net=RandomProjection),
        [
            "the predictions differ",
            "State that is not in state_dict() and differs: projection: at [0, 0] was",
        ],
    ),
    "truncated file partially loaded": (
        Script(swallows_errors=True),
        ["truncated to half its size was partially loaded", "raise"],
    ),
}


TRAINING_STATE_DEFECTS = (
    *("optimizer not saved", "schedule not saved", "global random state not restored"),
    *("position in the data not restored", "own torch generator", "own numpy generator"),
    "generator without a seed",
)
"""Defects of a checkpoint that restores the model but not the training."""


@pytest.mark.parametrize("name", DEFECTS)
def test_lost_state_is_reported_with_cause_and_fix(check, name):
    script, expected_texts = DEFECTS[name]

    finding = check(script)

    fault = "resume state lost" if name in TRAINING_STATE_DEFECTS else "checkpoint mismatch"
    assert (finding.outcome, finding.fault) == ("fail", fault), finding
    text = " ".join((finding.summary, *finding.response))
    for expected in expected_texts:
        assert expected in text, text


def test_truncated_checkpoint_is_reported_as_a_mismatch(check):
    class SavesTruncatedFile(Script):
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

    finding = check(SavesTruncatedFile())

    assert "The checkpoint could not be loaded: " in finding.summary
    assert "test_resumption.py" in finding.summary
    assert "did not write the whole" in finding.response[0]


def replace_attributes(training, **changes):
    names = ("model", "step", "predict", "save", "load", "states")
    return StoppableTraining(**{name: getattr(training, name) for name in names} | changes)


def test_missing_checkpoint_file_is_reported(check):
    class SavesNoFile(Script):
        def start(self):
            return replace_attributes(super().start(), save=lambda _: None)

    assert "and did not" in check(SavesNoFile()).summary


def test_checkpoint_may_be_a_folder(check):
    class SavesFolder(Script):
        def start(self):
            training = super().start()

            def save(path):
                path.mkdir()
                training.save(path / "all.pt")

            return replace_attributes(
                training, save=save, load=lambda path: training.load(path / "all.pt")
            )

    assert check(SavesFolder()).outcome == "pass"


@pytest.mark.parametrize("error", [OSError(28, "No space left"), StorageError("full", fix="free")])
def test_unwritable_disk_is_not_a_checkpoint_mismatch(check, tmp_path, error):
    class FullDisk(Script):
        def start(self):
            def save(_):
                raise error

            return replace_attributes(super().start(), save=save)

    assert check(FullDisk()).fault == "storage not writable"
    with pytest.raises(StorageError):
        validate_checkpoint(FullDisk().start, num_steps=1, seed=0, folder=tmp_path)


def test_a_folder_that_does_not_exist_is_reported(tmp_path):
    finding = check_resumption(Script().start, num_steps=1, seed=0, folder=tmp_path / "none")

    assert finding.fault == "storage not writable"
    assert "none" in finding.summary


def test_validate_checkpoint_raises_only_for_a_faulty_checkpoint(tmp_path):
    validate_checkpoint(Script().start, num_steps=2, seed=0, folder=tmp_path)

    with pytest.raises(ContractError, match=r"optimizer was not restored.*optimizer's state_dict"):
        validate_checkpoint(
            Script(keep_optimizer=False).start, num_steps=2, seed=0, folder=tmp_path
        )


def test_errors_of_the_script_are_raised_unchanged(check):
    class RaisesInStep(Script):
        def start(self):
            def step():
                raise KeyError("no such batch")

            return replace_attributes(super().start(), step=step)

    with pytest.raises(KeyError, match="no such batch"):
        check(RaisesInStep())


def test_random_state_of_the_caller_is_unchanged(check):
    torch.manual_seed(5)
    random.seed(5)
    before = torch.get_rng_state(), random.getstate()

    check(Script(net=Dropout))

    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_layers_in_eval_mode_stay_in_eval_mode(tmp_path):
    models = []

    def start():
        model = Net()
        model.norm.eval()
        models.append(model)
        return replace_attributes(
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
def test_fix_mentions_a_wrapper_only_for_its_prefix(name, is_wrapper):
    finding = load_error_finding(RuntimeError("Missing key(s) in state_dict."), {name: 1}, {})

    assert ("DataParallel" in finding.response[0]) is is_wrapper
    assert "state_dict. Names" in finding.summary


def test_one_step_is_described_in_the_singular():
    text = _describe_first_change([1.0], [1.0], {"model": {"w": 1}}, {"model": {"w": 2}})

    assert text == "after 1 step with equal losses the model differs, w: was 1, is 2"
