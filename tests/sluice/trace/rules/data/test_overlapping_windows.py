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


def make_generator(seed):
    return torch.Generator().manual_seed(seed)


def series(*, seed=1, hours=HOURS):
    """Return a series like an electric load: a daily wave plus noise."""
    wave = torch.sin(2 * math.pi * torch.arange(hours) / 24)
    return wave + 0.3 * torch.randn(hours, generator=make_generator(seed))


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


class NoisyWindows(Windows):
    def __getitem__(self, row):
        past, future = super().__getitem__(row)
        return past + 0.01 * torch.randn(past.shape, generator=make_generator(row)), future


def train_and_evaluate(train, *eval_sets, epochs=3, evaluates_first=False, shuffle=True):
    """Train a forecaster and evaluate it after every epoch."""
    past, future = train[0]
    model = nn.Sequential(nn.Flatten(), nn.Linear(past.numel(), max(future.numel(), 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loaders = [DataLoader(eval_set, 64) for eval_set in eval_sets]
    train_loader = DataLoader(train, 32, shuffle=shuffle, generator=make_generator(5))

    def evaluate():
        model.eval()
        with torch.no_grad():
            for loader in loaders:
                for x, _ in loader:
                    model(x)
        model.train()

    if evaluates_first:
        evaluate()
    for _ in range(epochs):
        for x, y in train_loader:
            optimizer.zero_grad()
            (model(x).reshape(-1) - y.reshape(-1).float()).square().mean().backward()
            optimizer.step()
        evaluate()


def overlap_findings(trace):
    return {(f.fault, f.severity) for f in OVERLAPPING_WINDOWS(trace)}


def split_at_random(*, hours=HOURS, stride=1, span=SPAN, seed=7):
    starts = torch.arange(0, hours - span + 1, stride)
    shuffled_starts = starts[torch.randperm(len(starts), generator=make_generator(seed))]
    cut = int(0.8 * len(shuffled_starts))
    return shuffled_starts[:cut], shuffled_starts[cut:]


def split_by_time():
    return torch.arange(700 - SPAN + 1), torch.arange(700, HOURS - SPAN + 1)


@pytest.mark.parametrize("evaluates_first", [False, True])
@pytest.mark.parametrize("ahead", [AHEAD, 1])
def test_randomly_split_windows_are_reported(trace_of, ahead, evaluates_first):
    def program():
        train, valid = split_at_random(stride=2)
        train_and_evaluate(
            *(Windows(series(), s, ahead=ahead) for s in (train, valid)),
            evaluates_first=evaluates_first,
        )

    found = judge(trace_of(program))

    assert [(f.fault, f.severity) for f in found] == [*LEAK]
    assert found[0].evidence["num_shared"] >= 0.95 * found[0].evidence["num_evaluated"]


def test_time_encodings_do_not_hide_the_overlap(trace_of):
    def program():
        hours = torch.arange(HOURS)
        flags = [(hours % 24) / 24, (hours // 24 % 7 >= 5).float()]
        past, values = torch.stack([series(), *flags], 1), series()
        train_and_evaluate(*(Windows(past, s, target=values) for s in split_at_random()))

    assert overlap_findings(trace_of(program)) == LEAK


def test_inspecting_the_first_batch_does_not_hide_the_overlap(trace_of):
    def program():
        train, valid = (Windows(series(), s) for s in split_at_random())
        next(iter(DataLoader(train, 32, shuffle=True, generator=make_generator(5))))
        train_and_evaluate(train, valid)

    assert overlap_findings(trace_of(program)) == LEAK


def test_random_subsets_of_one_dataset_are_reported(trace_of):
    def program():
        everything = Windows(series(), torch.arange(HOURS - SPAN + 1))
        train, valid = split_at_random()
        train_and_evaluate(Subset(everything, train.tolist()), Subset(everything, valid.tolist()))

    assert overlap_findings(trace_of(program)) == LEAK


@pytest.mark.parametrize(
    ("gap", "last_start"),
    [(SPAN - 1, HOURS - SPAN), (0, 730)],
    ids=["apart", "few at the boundary"],
)
def test_windows_split_by_time_are_not_reported(trace_of, gap, last_start):
    def program():
        train = torch.arange(700 - gap)
        train_and_evaluate(
            Windows(series(), train), Windows(series(), torch.arange(700, last_start + 1))
        )

    assert judge(trace_of(program)) == ()


@pytest.mark.parametrize("ahead", [AHEAD, 1])
def test_windows_after_the_training_history_are_not_reported(trace_of, ahead):
    """The last window of each of many series, whose past is in the training windows."""

    def program():
        all_series = [series(seed=seed, hours=60) for seed in range(60)]
        cut = 60 - ahead
        train = [Windows(s, torch.arange(cut - PAST - ahead + 1), ahead=ahead) for s in all_series]
        last_windows = [Windows(s, torch.tensor([cut - PAST]), ahead=ahead) for s in all_series]
        train_and_evaluate(ConcatDataset(train), ConcatDataset(last_windows))

    assert overlap_findings(trace_of(program)) == set()


@pytest.mark.parametrize("levels", [5, 60, 150])
def test_equal_quantized_targets_are_not_reported(trace_of, levels):
    """Counts: all values of new days also occur in training."""

    def program():
        counts = torch.randint(levels, (HOURS,), generator=make_generator(2)) / levels
        train, valid = split_by_time()
        train_and_evaluate(Windows(counts, train), Windows(counts, valid))

    assert overlap_findings(trace_of(program)) == set()


@pytest.mark.parametrize("kind", ["class", "one-hot", "flag"])
def test_equal_class_targets_are_not_reported(trace_of, kind):
    def program():
        classes = torch.arange(HOURS) % 3
        one_hot = nn.functional.one_hot(classes, 3).float()
        target = {"class": classes, "one-hot": one_hot, "flag": (classes == 0).float()}[kind]
        train, valid = split_at_random()
        train_and_evaluate(*(Windows(series(), s, target=target) for s in (train, valid)))

    assert overlap_findings(trace_of(program)) == set()


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_evaluating_the_training_set_and_a_validation_set_is_not_reported(trace_of, share):
    def program():
        train, valid = split_by_time()
        again = train[torch.randperm(len(train), generator=make_generator(3))][
            : int(share * len(train))
        ]
        train_and_evaluate(*(Windows(series(), s) for s in (train, again, valid)))

    assert judge(trace_of(program)) == ()


def test_a_few_evaluated_rows_are_not_reported_if_training_rows_are_partly_recorded(trace_of):
    """The rows may belong to the part that was not recorded."""

    def program():
        starts = torch.arange(512)
        train = Windows(series(), torch.cat([starts[::2], starts[1::2]]))
        train_and_evaluate(train, Subset(train, range(300, 512, 50)), shuffle=False)

    assert overlap_findings(trace_of(program, TraceSettings(fingerprinted_batches=8))) == set()


def test_evaluating_the_training_set_without_augmentation_is_not_reported(trace_of):
    def program():
        train, valid = split_by_time()
        train_and_evaluate(
            NoisyWindows(series(), train), Windows(series(), train[::3]), Windows(series(), valid)
        )

    assert judge(trace_of(program)) == ()


def test_evaluating_other_windows_of_the_training_set_is_not_reported(trace_of):
    def program():
        train, valid = split_by_time()
        even, odd = (Windows(series(), train[first::2]) for first in (0, 1))
        train_and_evaluate(
            Subset(even, range(330)), Subset(odd, range(330)), Windows(series(), valid)
        )

    assert judge(trace_of(program)) == ()


def test_targets_equal_to_the_inputs_are_not_reported(trace_of):
    def program():
        train, valid = split_at_random()
        x = series().unfold(0, PAST, 1)
        train_and_evaluate(*(TensorDataset(x[s], x[s].clone()) for s in (train, valid)))

    assert judge(trace_of(program)) == ()


@pytest.mark.parametrize("kind", ["values", "ranks"])
def test_panel_rows_are_not_reported(trace_of, kind):
    """The ranks of one day are those of every other day, in another order."""

    def program():
        x = torch.randn(80, 20, 8, generator=make_generator(4))  # days, assets, features
        y = x.sum(2) + torch.randn(80, 20, generator=make_generator(6))
        if kind == "ranks":
            x, y = x.argsort(1) / 20 - 0.5, y.argsort(1) / 20 - 0.5
        rows = TensorDataset(x.flatten(0, 1), y.flatten())
        train_and_evaluate(Subset(rows, range(1200)), Subset(rows, range(1200, 1600)))

    assert judge(trace_of(program)) == ()


@pytest.mark.parametrize("num_flags", [0, 4])
def test_simulation_transitions_are_not_reported(trace_of, num_flags):
    """The next state of one row is the state of another, and no value occurs in two inputs."""

    def program():
        states = torch.randn(901, 4, generator=make_generator(4)).cumsum(0) / 10
        flags = torch.randint(2, (900, num_flags), generator=make_generator(8)).float()
        rows = TensorDataset(torch.cat([states[:-1], flags], 1), states[1:])
        train_and_evaluate(*(Subset(rows, s.tolist()) for s in split_at_random(span=1)))

    assert overlap_findings(trace_of(program)) == set()


def test_new_pairs_of_known_embeddings_are_not_reported(trace_of):
    """Users and items occur in training, in other pairs."""

    def program():
        users, items = (torch.randn(60, 16, generator=make_generator(seed)) for seed in (1, 2))
        pairs = torch.randperm(3600, generator=make_generator(3))[:1200]
        u, i = pairs // 60, pairs % 60
        rows = TensorDataset(torch.cat([users[u], items[i]], 1), (users[u] * items[i]).sum(1))
        train_and_evaluate(Subset(rows, range(900)), Subset(rows, range(900, 1200)))

    assert overlap_findings(trace_of(program)) == set()


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
            train_loader = DataLoader(
                Windows(series(), train), 32, shuffle=True, generator=make_generator(5)
            )
            for _ in range(2):
                for x, y in train_loader:
                    optimizer.zero_grad()
                    (model(x) - y).square().mean().backward()
                    optimizer.step()
                with torch.no_grad():
                    for x, _ in DataLoader(Windows(series(), valid), 64):
                        model(x)

    assert overlap_findings(trace_of(program)) == set()


def test_folds_whose_loaders_change_roles_are_not_reported(trace_of):
    def program():
        folds = torch.arange(HOURS).chunk(4)
        for fold, starts in enumerate(folds):
            others = [other for number, other in enumerate(folds) if number != fold]
            train = [Windows(series(), other[: -SPAN + 1 : 2]) for other in others]
            train_and_evaluate(
                ConcatDataset(train), Windows(series(), starts[1 : -SPAN + 1 : 2]), epochs=2
            )

    assert overlap_findings(trace_of(program)) == set()
