"""POC-10: healthy workloads resume bit-identically; state that is not stored is named."""

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
def check(tmp_path, train_of):
    examples = {}

    def run(workload, *, model=None, seed=0, num_rows=10_000, **training):
        kind = type(workload)
        if kind not in examples:
            examples[kind] = train_of(workload)
        given = examples[kind]
        finding = check_checkpoint(
            workload,
            model or ModelSettings(hidden=8),
            TrainSettings(**{"learning_rate": 3e-3} | training),
            Examples(x=given.x[:num_rows], y=given.y[:num_rows], rows=given.rows[:num_rows]),
            PocSettings(),
            seed=seed,
            folder=tmp_path,
        )
        assert list(tmp_path.iterdir()) == []
        return finding

    return run


class Own(planted.OwnNet):
    """A network whose class is given by the test."""

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
    """An unstored buffer that every model makes alike."""

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
    """Whole numbers in, classes out."""

    scale_inputs = False
    scale_target = False

    def examples(self, frame, rows):
        given = super().examples(frame, rows)
        x = (given.x[..., 0] * 3).long().clamp(-5, 5) + 5
        return Examples(x=x, y=(given.y[:, 0] > 7).long(), rows=given.rows)

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
    """The other is in no group, so the optimizer has no moments of it."""

    def parameter_groups(self, network):
        return [{"params": network.second.parameters()}]


HEALTHY = {
    "linear": (planted.Signals(), ModelSettings(architecture="linear")),
    "gru": (planted.Signals(), ModelSettings(architecture="gru", hidden=8)),
    "gru with dropout": (planted.Signals(), ModelSettings(hidden=8, layers=2, dropout=0.3)),
    "lstm": (planted.Signals(), ModelSettings(architecture="lstm", hidden=8)),
    "slstm": (planted.Signals(), ModelSettings(architecture="slstm", hidden=8)),
    "own network": (Own(planted.Net), None),
    "frozen layer": (planted.FirstFrozen(), None),
    "global dropout": (Own(GlobalDropout), None),
    "NumPy dropout": (Own(NumpyDropout), None),
    "batch norm": (Own(BatchNorm), None),
    "tied weights": (Own(Tied), None),
    "unstored mask": (Own(Mask), None),
    "weight norm": (Own(WeightNorm), None),
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
    """Batch norm cannot take one; 256 examples in batches of 15, 51, 85, 255 leave one."""
    finding = check(Own(BatchNorm), batch_rows=batch_rows, num_rows=num_rows)

    assert finding.outcome == "pass", finding


def test_batches_of_one_example_pass(check):
    assert check(Own(planted.Net), batch_rows=1, num_rows=5).outcome == "pass"


def test_one_example_decides_nothing(check):
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
    """Fixed random features that every process draws again."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.projection = torch.randn(sizes[2], sizes[2])

    def between(self, hidden):
        return torch.relu(hidden @ self.projection)


class Counted(planted.Net):
    """Names a layer by a counter, as some libraries do."""

    counter = itertools.count()

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.add_module(f"extra_{next(self.counter)}", nn.Linear(sizes[2], sizes[2]))

    def between(self, hidden):
        (extra,) = (m for name, m in self.named_children() if name.startswith("extra"))
        return extra(hidden)


class Prefixed(planted.Net):
    """Saves under other names than it loads."""

    def state_dict(self, *args, prefix="", **kwargs):
        return super().state_dict(*args, prefix=f"{prefix}module.", **kwargs)


class ExtraState(planted.Net):
    def get_extra_state(self):
        return {"vocabulary": ["a", "b"]}

    def set_extra_state(self, state):
        pass


class ShuffledGroups(planted.OwnNet):
    """Gives the parameters in order of its parts differs each time, as a set of strings does."""

    order = itertools.count()

    def parameter_groups(self, network):
        parameters = list(network.parameters())
        return [{"params": parameters[:: -1 if next(self.order) % 2 else 1]}]


DEFECTS = {
    "own torch generator": (
        Own(OwnGenerator),
        [
            "the loss of step 1 after the checkpoint is",
            "network.draws (random generator)/state",
            "get_state()",
        ],
    ),
    "own numpy generator": (
        Own(OwnNumpyGenerator),
        [
            "the loss of step 1 after the checkpoint is",
            "network.draws (random generator)/state/state",
        ],
    ),
    "plain attribute": (
        Own(StepCount),
        [
            "the loss of step 1 after the checkpoint is",
            "Not stored, and different: network.num_calls: was 4, is 0",
        ],
    ),
    "unstored buffer": (
        Own(RunningScale),
        ["the predictions differ", "network.scale: at [0] was", "persistent=False"],
    ),
    "random projection": (
        Own(RandomProjection),
        ["the predictions differ", "network.projection: at [0, 0] was", "register_buffer"],
    ),
    "names by a counter": (
        Own(Counted),
        ["could not be loaded", "saved: network.extra_", "without counters"],
    ),
    "prefix of a wrapper": (
        Own(Prefixed),
        ["could not be loaded", "network.module.first.weight", "DataParallel"],
    ),
    "shuffled parameters": (
        ShuffledGroups(),
        [
            "The state of the optimizer was not restored",
            "first.weight/",
            "order of its parts differs",
        ],
    ),
}


NOT_RESUMED = (
    *("own torch generator", "own numpy generator", "plain attribute"),
    "shuffled parameters",
)
"""Defects of a checkpoint that restores the model but not the training."""


@pytest.mark.parametrize("name", DEFECTS)
def test_a_state_that_no_checkpoint_holds_is_named(check, name):
    workload, said = DEFECTS[name]

    finding = check(workload, batch_rows=64)

    fault = "resume state lost" if name in NOT_RESUMED else "checkpoint mismatch"
    assert (finding.outcome, finding.fault) == ("fail", fault), finding
    text = " ".join((finding.summary, *finding.response))
    for part in said:
        assert part in text, text


def lossy(monkeypatch, **lost):
    """Let the checkpoint of the real loop lose a part of the state."""
    real = checkpoint_round_trip.load_checkpoint

    def load(folder, *, subject):
        restored = real(folder, subject=subject)
        changed = {name: change(getattr(restored.state, name)) for name, change in lost.items()}
        return dataclasses.replace(restored, state=dataclasses.replace(restored.state, **changed))

    monkeypatch.setattr(checkpoint_round_trip, "load_checkpoint", load)


@pytest.mark.parametrize(
    ("part", "change", "seen"),
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
def test_a_part_that_the_file_loses_is_named(check, monkeypatch, part, change, seen):
    lossy(monkeypatch, **{part: change})

    finding = check(planted.OwnNet(), batch_rows=64)

    fault = "checkpoint mismatch" if part == "model" else "resume state lost"
    assert (finding.outcome, finding.fault) == ("fail", fault)
    assert seen in finding.summary


def test_truncated_file_loaded_as_complete_is_reported(check, monkeypatch):
    """The digest in the name is what notices it."""
    real = checkpoint_round_trip.save_checkpoint

    def save(folder, state, *, subject):
        path = real(folder, state, subject=subject)
        path.write_bytes(path.read_bytes()[:-8])

    monkeypatch.setattr(checkpoint_round_trip, "save_checkpoint", save)

    finding = check(planted.OwnNet())

    assert "There is no valid checkpoint" in finding.summary
    assert "not written completely" in finding.response[0]


def test_a_state_that_is_no_tensor_is_rejected_with_the_fix(check):
    with pytest.raises(ContractError, match=r"network\._extra_state.*type dict.*get_extra_state"):
        check(Own(ExtraState))


def test_a_training_that_diverges_decides_nothing(check):
    class Overflows(planted.Signals):
        def loss(self, output, y):
            return super().loss(output, y) * math.inf

    finding = check(Overflows())

    assert (finding.outcome, finding.fault) == ("insufficient", "learning rate too high")
    assert "step 1" in finding.summary


def test_a_folder_that_is_not_writable_is_reported(tmp_path, train_of):
    (tmp_path / "file").write_text("")

    finding = check_checkpoint(
        planted.Signals(),
        ModelSettings(hidden=8),
        TrainSettings(),
        train_of(planted.Signals()),
        PocSettings(),
        seed=0,
        folder=tmp_path / "file",
    )

    assert (finding.outcome, finding.fault) == ("fail", "storage not writable")
    assert str(tmp_path / "file") in finding.summary


@pytest.mark.parametrize("seed", range(5))
def test_no_seed_gives_a_false_alarm_and_the_same_seed_the_same_finding(check, seed):
    workload, model = HEALTHY["gru with dropout"]

    first = check(workload, model=model, seed=seed)

    assert first.outcome == "pass"
    assert first == check(workload, model=model, seed=seed)


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["gru", "lstm", "transformer"])
def test_on_a_gpu_both_trainings_predict_on_it(check, architecture):
    model = ModelSettings(architecture=architecture, hidden=8, layers=2, dropout=0.3)
    finding = check(SineWorkload(), model=model, batch_rows=32, device="cuda")

    assert finding.outcome == "pass", finding
