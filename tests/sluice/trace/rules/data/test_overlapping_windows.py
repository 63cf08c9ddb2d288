"""Windows of one series in training and evaluation, and similar but correct splits (TRACE-2)."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from sluice.trace.rules.data.overlapping_windows import OVERLAPPING_WINDOWS
from sluice.trace.rules.library import judge
from sluice.trace.settings import TraceSettings

PAST, AHEAD, HOURS = 24, 6, 900
SPAN = PAST + AHEAD
LEAK = {("train-validation leakage", "error")}


def draws(seed):
    return torch.Generator().manual_seed(seed)


def series(*, seed=1, hours=HOURS):
    """Return a series like an electric load: a daily wave plus noise."""
    wave = torch.sin(2 * math.pi * torch.arange(hours) / 24)
    return wave + 0.3 * torch.randn(hours, generator=draws(seed))


class Windows(Dataset):
    """Windows of a series (hours,) or (hours, channels), and the values after them."""

    def __init__(self, values, starts, *, ahead=AHEAD, target=None):
        self.values, self.starts, self.ahead = values, starts.tolist(), ahead
        self.target = values if target is None else target

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, row):
        cut = self.starts[row] + PAST
        future = self.target[cut : cut + self.ahead]
        return self.values[cut - PAST : cut], future if self.ahead > 1 else future[0]


class Noisy(Windows):
    def __getitem__(self, row):
        past, future = super().__getitem__(row)
        return past + 0.01 * torch.randn(past.shape, generator=draws(row)), future


def fit(train, *judged, epochs=3, before=False, shuffle=True):
    """Return a program that trains a forecaster and evaluates it after every epoch."""
    past, future = train[0]
    model = nn.Sequential(nn.Flatten(), nn.Linear(past.numel(), max(future.numel(), 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loaders = [DataLoader(some, 64) for some in judged]
    learning = DataLoader(train, 32, shuffle=shuffle, generator=draws(5))

    def look():
        model.eval()
        with torch.no_grad():
            for loader in loaders:
                for x, _ in loader:
                    model(x)
        model.train()

    if before:
        look()
    for _ in range(epochs):
        for x, y in learning:
            optimizer.zero_grad()
            (model(x).reshape(-1) - y.reshape(-1).float()).square().mean().backward()
            optimizer.step()
        look()


def shared(trace):
    return {(f.fault, f.severity) for f in OVERLAPPING_WINDOWS(trace)}


def at_random(*, hours=HOURS, stride=1, span=SPAN, seed=7):
    starts = torch.arange(0, hours - span + 1, stride)
    mixed = starts[torch.randperm(len(starts), generator=draws(seed))]
    cut = int(0.8 * len(mixed))
    return mixed[:cut], mixed[cut:]


def by_time():
    return torch.arange(700 - SPAN + 1), torch.arange(700, HOURS - SPAN + 1)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("ahead", [AHEAD, 1])
def test_randomly_split_windows_are_reported(trace_of, ahead, before):
    def program():
        train, valid = at_random(stride=2)
        fit(*(Windows(series(), s, ahead=ahead) for s in (train, valid)), before=before)

    found = judge(trace_of(program))

    assert [(f.fault, f.severity) for f in found] == [*LEAK]
    assert found[0].evidence["num_shared"] >= 0.95 * found[0].evidence["num_evaluated"]


def test_time_encodings_do_not_hide_the_overlap(trace_of):
    def program():
        hours = torch.arange(HOURS)
        flags = [(hours % 24) / 24, (hours // 24 % 7 >= 5).float()]
        past, values = torch.stack([series(), *flags], 1), series()
        fit(*(Windows(past, s, target=values) for s in at_random()))

    assert shared(trace_of(program)) == LEAK


def test_inspecting_the_first_batch_does_not_hide_the_overlap(trace_of):
    def program():
        train, valid = (Windows(series(), s) for s in at_random())
        next(iter(DataLoader(train, 32, shuffle=True, generator=draws(5))))
        fit(train, valid)

    assert shared(trace_of(program)) == LEAK


def test_one_dataset_with_two_samplers_is_reported(trace_of):
    def program():
        everything = Windows(series(), torch.arange(HOURS - SPAN + 1))
        train, valid = at_random()
        fit(Subset(everything, train.tolist()), Subset(everything, valid.tolist()))

    assert shared(trace_of(program)) == LEAK


@pytest.mark.parametrize(
    ("gap", "last"), [(SPAN - 1, HOURS - SPAN), (0, 730)], ids=["apart", "few at the boundary"]
)
def test_windows_split_by_time_are_not_reported(trace_of, gap, last):
    def program():
        train = torch.arange(700 - gap)
        fit(Windows(series(), train), Windows(series(), torch.arange(700, last + 1)))

    assert judge(trace_of(program)) == ()


@pytest.mark.parametrize("ahead", [AHEAD, 1])
def test_values_after_the_training_history_are_new(trace_of, ahead):
    """The last window of each of many series, whose past is in the training windows."""

    def program():
        many = [series(seed=seed, hours=60) for seed in range(60)]
        cut = 60 - ahead
        train = [Windows(s, torch.arange(cut - PAST - ahead + 1), ahead=ahead) for s in many]
        last = [Windows(s, torch.tensor([cut - PAST]), ahead=ahead) for s in many]
        fit(ConcatDataset(train), ConcatDataset(last))

    assert shared(trace_of(program)) == set()


@pytest.mark.parametrize("levels", [5, 60, 150])
def test_quantized_targets_may_be_equal(trace_of, levels):
    """Counts: all values of new days also occur in training."""

    def program():
        counts = torch.randint(levels, (HOURS,), generator=draws(2)) / levels
        train, valid = by_time()
        fit(Windows(counts, train), Windows(counts, valid))

    assert shared(trace_of(program)) == set()


@pytest.mark.parametrize("kind", ["class", "one-hot", "flag"])
def test_classes_are_not_continuous_targets(trace_of, kind):
    def program():
        classes = torch.arange(HOURS) % 3
        one_hot = nn.functional.one_hot(classes, 3).float()
        target = {"class": classes, "one-hot": one_hot, "flag": (classes == 0).float()}[kind]
        train, valid = at_random()
        fit(*(Windows(series(), s, target=target) for s in (train, valid)))

    assert shared(trace_of(program)) == set()


@pytest.mark.parametrize("part", [1.0, 0.3])
def test_the_training_set_next_to_a_validation_set_is_not_reported(trace_of, part):
    def program():
        train, valid = by_time()
        again = train[torch.randperm(len(train), generator=draws(3))][: int(part * len(train))]
        fit(*(Windows(series(), s) for s in (train, again, valid)))

    assert judge(trace_of(program)) == ()


def test_a_few_rows_of_a_partly_recorded_training_set_are_not_reported(trace_of):
    """The rows may belong to the part that was not recorded."""

    def program():
        starts = torch.arange(512)
        train = Windows(series(), torch.cat([starts[::2], starts[1::2]]))
        fit(train, Subset(train, range(300, 512, 50)), shuffle=False)

    assert shared(trace_of(program, TraceSettings(fingerprinted_batches=8))) == set()


def test_the_training_set_without_augmentation_is_not_reported(trace_of):
    def program():
        train, valid = by_time()
        fit(Noisy(series(), train), Windows(series(), train[::3]), Windows(series(), valid))

    assert judge(trace_of(program)) == ()


def test_the_training_set_in_other_windows_is_not_reported(trace_of):
    def program():
        train, valid = by_time()
        even, odd = (Windows(series(), train[first::2]) for first in (0, 1))
        fit(Subset(even, range(330)), Subset(odd, range(330)), Windows(series(), valid))

    assert judge(trace_of(program)) == ()


def test_targets_equal_to_the_inputs_are_not_reported(trace_of):
    def program():
        train, valid = at_random()
        x = series().unfold(0, PAST, 1)
        fit(*(TensorDataset(x[s], x[s].clone()) for s in (train, valid)))

    assert judge(trace_of(program)) == ()


@pytest.mark.parametrize("kind", ["values", "ranks"])
def test_panel_rows_are_not_windows(trace_of, kind):
    """The ranks of one day are those of every other day, in another order."""

    def program():
        x = torch.randn(80, 20, 8, generator=draws(4))  # days, assets, features
        y = x.sum(2) + torch.randn(80, 20, generator=draws(6))
        if kind == "ranks":
            x, y = x.argsort(1) / 20 - 0.5, y.argsort(1) / 20 - 0.5
        rows = TensorDataset(x.flatten(0, 1), y.flatten())
        fit(Subset(rows, range(1200)), Subset(rows, range(1200, 1600)))

    assert judge(trace_of(program)) == ()


@pytest.mark.parametrize("num_flags", [0, 4])
def test_simulation_transitions_are_not_windows(trace_of, num_flags):
    """The next state of one row is the state of another: no value occurs in two inputs."""

    def program():
        states = torch.randn(901, 4, generator=draws(4)).cumsum(0) / 10
        flags = torch.randint(2, (900, num_flags), generator=draws(8)).float()
        rows = TensorDataset(torch.cat([states[:-1], flags], 1), states[1:])
        fit(*(Subset(rows, s.tolist()) for s in at_random(span=1)))

    assert shared(trace_of(program)) == set()


def test_pairs_of_looked_up_values_are_new(trace_of):
    """Users and items occur in training, in other pairs."""

    def program():
        users, items = (torch.randn(60, 16, generator=draws(seed)) for seed in (1, 2))
        pairs = torch.randperm(3600, generator=draws(3))[:1200]
        u, i = pairs // 60, pairs % 60
        rows = TensorDataset(torch.cat([users[u], items[i]], 1), (users[u] * items[i]).sum(1))
        fit(Subset(rows, range(900)), Subset(rows, range(900, 1200)))

    assert shared(trace_of(program)) == set()


@pytest.mark.parametrize("keeps_network", [False, True])
def test_validation_days_trained_on_later_are_not_reported(trace_of, keeps_network):
    """Walk-forward folds: training windows start at even hours, the others at odd ones."""

    def program():
        model = None
        for cut in (401, 503, 605, 707):
            train = torch.arange(0, cut - SPAN + 1, 2)
            valid = torch.arange(cut, cut + 102 - SPAN + 1, 2)
            if model is None or not keeps_network:
                model = nn.Linear(PAST, AHEAD)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            learning = DataLoader(Windows(series(), train), 32, shuffle=True, generator=draws(5))
            for _ in range(2):
                for x, y in learning:
                    optimizer.zero_grad()
                    (model(x) - y).square().mean().backward()
                    optimizer.step()
                with torch.no_grad():
                    for x, _ in DataLoader(Windows(series(), valid), 64):
                        model(x)

    assert shared(trace_of(program)) == set()


def test_folds_whose_loaders_change_roles_are_not_reported(trace_of):
    def program():
        parts = torch.arange(HOURS).chunk(4)
        for fold, part in enumerate(parts):
            others = [p for number, p in enumerate(parts) if number != fold]
            train = [Windows(series(), p[: -SPAN + 1 : 2]) for p in others]
            fit(ConcatDataset(train), Windows(series(), part[1 : -SPAN + 1 : 2]), epochs=2)

    assert shared(trace_of(program)) == set()
