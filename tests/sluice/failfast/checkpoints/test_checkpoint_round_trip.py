"""POC-10: healthy workloads resume with identical bits; state that is not stored is reported."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.config.poc_settings import PocSettings
from sluice.failfast.checkpoints import checkpoint_round_trip
from sluice.failfast.checkpoints.checkpoint_round_trip import check_checkpoint
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from tests.support import failfast_workloads as planted
from tests.support.digits_cnn import Digits
from tests.support.synthetic import SineWorkload


@pytest.fixture
def check(tmp_path, load_train_examples):
    examples_by_class = {}

    def run(workload, *, model=None, seed=0, num_rows=10_000, **training):
        workload_class = type(workload)
        if workload_class not in examples_by_class:
            examples_by_class[workload_class] = load_train_examples(workload)
        train = examples_by_class[workload_class]
        finding = check_checkpoint(
            workload,
            model or ModelSettings(hidden=8),
            TrainSettings(**{"learning_rate": 3e-3} | training),
            Examples(x=train.x[:num_rows], y=train.y[:num_rows], rows=train.rows[:num_rows]),
            PocSettings(),
            seed=seed,
            folder=tmp_path,
        )
        assert list(tmp_path.iterdir()) == []
        return finding

    return run


class WithNet(planted.OwnNet):
    """Workload whose network class is an argument."""

    def __init__(self, net):
        super().__init__()
        self.net = net


class GlobalDropout(planted.Net):
    def between(self, hidden):
        return nn.functional.dropout(hidden, 0.3, self.training)


class NumpyDropout(planted.Net):
    """Draws from NumPy's global generator, whose state the checkpoint holds."""

    def between(self, hidden):
        keep = torch.from_numpy(np.random.random(hidden.shape) < 0.7)  # noqa: NPY002
        return hidden * keep if self.training else hidden


class BatchNorm(planted.Net):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.norm = nn.BatchNorm1d(sizes[2])

    def between(self, hidden):
        return self.norm(hidden)


class Tied(planted.Net):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.third = nn.Linear(sizes[2], sizes[2])
        self.fourth = nn.Linear(sizes[2], sizes[2])
        self.fourth.weight = self.third.weight

    def between(self, hidden):
        return self.fourth(torch.relu(self.third(hidden)))


class Mask(planted.Net):
    """Network with a non-persistent buffer that is the same in every instance."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("mask", torch.arange(sizes[2]) % 3 > 0, persistent=False)

    def between(self, hidden):
        return hidden * self.mask


class WeightNorm(planted.Net):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.first = nn.utils.parametrizations.weight_norm(self.first)


class Tokens(planted.Signals):
    """Integer inputs and class targets."""

    scale_inputs = False
    scale_target = False

    def examples(self, frame, rows):
        signals = super().examples(frame, rows)
        x = (signals.x[..., 0] * 3).long().clamp(-5, 5) + 5
        return Examples(x=x, y=(signals.y[:, 0] > 7).long(), rows=signals.rows)

    def build_model(self, *_):
        return nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(16, 2))

    def output_shape(self, y):
        return (len(y), 2)

    def losses(self, output, y):
        return nn.functional.cross_entropy(output, y, reduction="none")


class TwoGroups(planted.OwnNet):
    def parameter_groups(self, network):
        return [
            {"params": network.second.parameters(), "rate_share": 0.1},
            {"params": network.first.parameters(), "weight_decay": 0.0},
        ]


class OneLayerTrained(planted.OwnNet):
    """The other layer is in no parameter group, so the optimizer has no moments for it."""

    def parameter_groups(self, network):
        return [{"params": network.second.parameters()}]


HEALTHY = {
    "linear": (planted.Signals(), ModelSettings(architecture="linear")),
    "gru": (planted.Signals(), ModelSettings(architecture="gru", hidden=8)),
    "gru with dropout": (planted.Signals(), ModelSettings(hidden=8, layers=2, dropout=0.3)),
    "lstm": (planted.Signals(), ModelSettings(architecture="lstm", hidden=8)),
    "slstm": (planted.Signals(), ModelSettings(architecture="slstm", hidden=8)),
    "custom network": (WithNet(planted.Net), None),
    "frozen layer": (planted.FirstFrozen(), None),
    "global dropout": (WithNet(GlobalDropout), None),
    "NumPy dropout": (WithNet(NumpyDropout), None),
    "batch norm": (WithNet(BatchNorm), None),
    "tied weights": (WithNet(Tied), None),
    "non-persistent mask": (WithNet(Mask), None),
    "weight norm": (WithNet(WeightNorm), None),
    "tokens": (Tokens(), None),
    "images": (Digits(), None),
    "parameter groups": (TwoGroups(), None),
    "one layer trained": (OneLayerTrained(), None),
    "last-epoch selector": (planted.SelectsLast(), None),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_workload_passes(check, name):
    workload, model = HEALTHY[name]

    finding = check(workload, model=model, seed=4)

    assert finding.outcome == "pass", finding
    assert finding.fault is None


@pytest.mark.parametrize("batch_rows", [15, 51, 85, 255, 256, 1000])
@pytest.mark.parametrize("num_rows", [2, 3, 31, 256])
def test_a_last_batch_of_one_example_is_avoided(check, batch_rows, num_rows):
    """Batch norm fails on one example. Batches of 15, 51, 85 or 255 would leave one of 256."""
    finding = check(WithNet(BatchNorm), batch_rows=batch_rows, num_rows=num_rows)

    assert finding.outcome == "pass", finding


def test_batches_of_one_example_pass(check):
    assert check(WithNet(planted.Net), batch_rows=1, num_rows=5).outcome == "pass"


def test_one_example_is_insufficient(check):
    finding = check(planted.Signals(), num_rows=1)

    assert (finding.outcome, finding.fault) == ("insufficient", "too few rows")


class OwnGenerator(planted.Net):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.draws = torch.Generator().manual_seed(0)

    def between(self, hidden):
        noise = torch.rand(hidden.shape, generator=self.draws)
        return hidden * (noise < 0.7) if self.training else hidden


class OwnNumpyGenerator(planted.Net):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.draws = np.random.default_rng(0)

    def between(self, hidden):
        keep = torch.from_numpy(self.draws.random(hidden.shape) < 0.7)
        return hidden * keep if self.training else hidden


class StepCount(planted.Net):
    """A plain attribute that training changes and the forward pass reads."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.num_calls = 0

    def between(self, hidden):
        self.num_calls += self.training
        return hidden * (1 - 0.5**self.num_calls) if self.training else hidden


class RunningScale(planted.Net):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("scale", torch.ones(sizes[2]), persistent=False)

    def between(self, hidden):
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * hidden.detach().std(dim=0)
        return hidden / self.scale


class RandomProjection(planted.Net):
    """Fixed random features that are drawn again in every process."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.projection = torch.randn(sizes[2], sizes[2])

    def between(self, hidden):
        return torch.relu(hidden @ self.projection)


class Counted(planted.Net):
    """Numbers a layer with a global counter, as some libraries do."""

    counter = itertools.count()

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.add_module(f"extra_{next(self.counter)}", nn.Linear(sizes[2], sizes[2]))

    def between(self, hidden):
        (extra,) = (m for name, m in self.named_children() if name.startswith("extra"))
        return extra(hidden)


class Prefixed(planted.Net):
    """Saves parameters under names that load_state_dict does not accept."""

    def state_dict(self, *args, prefix="", **kwargs):
        return super().state_dict(*args, prefix=f"{prefix}module.", **kwargs)


class ExtraState(planted.Net):
    def get_extra_state(self):
        return {"vocabulary": ["a", "b"]}

    def set_extra_state(self, state):
        pass


class ShuffledGroups(planted.OwnNet):
    """The order of the parameters differs between calls, as if they came from a set."""

    order = itertools.count()

    def parameter_groups(self, network):
        parameters = list(network.parameters())
        return [{"params": parameters[:: -1 if next(self.order) % 2 else 1]}]


DEFECTS = {
    "own torch generator": (
        WithNet(OwnGenerator),
        [
            "the loss of step 1 after the checkpoint is",
            "network.draws (random generator)/state",
            "get_state()",
        ],
    ),
    "own numpy generator": (
        WithNet(OwnNumpyGenerator),
        [
            "the loss of step 1 after the checkpoint is",
            "network.draws (random generator)/state/state",
        ],
    ),
    "plain attribute": (
        WithNet(StepCount),
        [
            "the loss of step 1 after the checkpoint is",
            "State that is not in state_dict() and differs: network.num_calls: was 4, is 0",
        ],
    ),
    "unstored buffer": (
        WithNet(RunningScale),
        ["the predictions differ", "network.scale: at [0] was", "persistent=False"],
    ),
    "random projection": (
        WithNet(RandomProjection),
        ["the predictions differ", "network.projection: at [0, 0] was", "register_buffer"],
    ),
    "names with a counter": (
        WithNet(Counted),
        ["could not be loaded", "only in the checkpoint: network.extra_", "without counters"],
    ),
    "prefix of a wrapper": (
        WithNet(Prefixed),
        ["could not be loaded", "network.module.first.weight", "DataParallel"],
    ),
    "shuffled parameters": (
        ShuffledGroups(),
        [
            "The state of the optimizer was not restored",
            "first.weight/",
            "has another order each time",
        ],
    ),
}


TRAINING_STATE_DEFECTS = (
    *("own torch generator", "own numpy generator", "plain attribute"),
    "shuffled parameters",
)
"""Defects of a checkpoint that restores the model but not the training."""


@pytest.mark.parametrize("name", DEFECTS)
def test_state_missing_in_the_checkpoint_is_reported(check, name):
    workload, expected_texts = DEFECTS[name]

    finding = check(workload, batch_rows=64)

    fault = "resume state lost" if name in TRAINING_STATE_DEFECTS else "checkpoint mismatch"
    assert (finding.outcome, finding.fault) == ("fail", fault), finding
    text = " ".join((finding.summary, *finding.response))
    for expected in expected_texts:
        assert expected in text, text


def change_loaded_state(monkeypatch, **changes):
    """Apply functions to parts of the state that the training loop loads."""
    original = checkpoint_round_trip.load_checkpoint

    def load(folder, *, subject):
        restored = original(folder, subject=subject)
        changed = {name: change(getattr(restored.state, name)) for name, change in changes.items()}
        return dataclasses.replace(restored, state=dataclasses.replace(restored.state, **changed))

    monkeypatch.setattr(checkpoint_round_trip, "load_checkpoint", load)


@pytest.mark.parametrize(
    ("part", "change", "expected_text"),
    [
        ("optimizer", lambda _: {}, "first.weight/step: was saved and is missing"),
        (
            "optimizer",
            lambda m: {k: v * (not k.endswith("exp_avg")) for k, v in m.items()},
            "first.weight/exp_avg: at [0, 0] was",
        ),
        ("rng", lambda r: r | {"numpy_position": r["numpy_position"] + 1}, "numpy_position: was"),
        ("steps", lambda n: n + 1, "progress was not restored: steps: was 4, is 5"),
        ("best_epoch", lambda n: n - 1, "best_epoch: was 1, is 0"),
        (
            "model",
            lambda m: {k: v.bfloat16().to(v.dtype) for k, v in m.items()},
            "The loaded model differs",
        ),
    ],
)
def test_state_lost_while_loading_is_reported(check, monkeypatch, part, change, expected_text):
    change_loaded_state(monkeypatch, **{part: change})

    finding = check(planted.OwnNet(), batch_rows=64)

    fault = "checkpoint mismatch" if part == "model" else "resume state lost"
    assert (finding.outcome, finding.fault) == ("fail", fault)
    assert expected_text in finding.summary


def test_truncated_file_loaded_as_complete_is_reported(check, monkeypatch):
    """The digest in the file name detects the truncation."""
    original = checkpoint_round_trip.save_checkpoint

    def save(folder, state, *, subject):
        path = original(folder, state, subject=subject)
        path.write_bytes(path.read_bytes()[:-8])

    monkeypatch.setattr(checkpoint_round_trip, "save_checkpoint", save)

    finding = check(planted.OwnNet())

    assert "There is no valid checkpoint" in finding.summary
    assert "did not write the whole" in finding.response[0]


def test_non_tensor_state_is_rejected_with_the_fix(check):
    with pytest.raises(ContractError, match=r"network\._extra_state.*type dict.*get_extra_state"):
        check(WithNet(ExtraState))


def test_diverging_training_is_insufficient(check):
    class Overflows(planted.Signals):
        def loss(self, output, y):
            return super().loss(output, y) * math.inf

    finding = check(Overflows())

    assert (finding.outcome, finding.fault) == ("insufficient", "learning rate too high")
    assert "step 1" in finding.summary


def test_a_folder_that_is_not_writable_is_reported(tmp_path, load_train_examples):
    (tmp_path / "file").write_text("")

    finding = check_checkpoint(
        planted.Signals(),
        ModelSettings(hidden=8),
        TrainSettings(),
        load_train_examples(planted.Signals()),
        PocSettings(),
        seed=0,
        folder=tmp_path / "file",
    )

    assert (finding.outcome, finding.fault) == ("fail", "storage not writable")
    assert str(tmp_path / "file") in finding.summary


@pytest.mark.parametrize("seed", range(5))
def test_every_seed_passes_with_a_reproducible_finding(check, seed):
    workload, model = HEALTHY["gru with dropout"]

    first = check(workload, model=model, seed=seed)

    assert first.outcome == "pass"
    assert first == check(workload, model=model, seed=seed)


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["gru", "lstm", "transformer"])
def test_round_trip_passes_on_a_gpu(check, architecture):
    model = ModelSettings(architecture=architecture, hidden=8, layers=2, dropout=0.3)
    finding = check(SineWorkload(), model=model, batch_rows=32, device="cuda")

    assert finding.outcome == "pass", finding
