"""Faults as other people write them, and what stands beside each and is none (TRACE-2, 4, 8, 16).

Each was missed, or called where nothing was wrong, in a program that was written by somebody who
did not know the rules.
"""

import copy
import dataclasses
import functools
import itertools
import multiprocessing

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sluice.trace import randomness
from sluice.trace.attach import traced
from sluice.trace.cadence import Cadence
from sluice.trace.diagnosis import diagnose
from sluice.trace.reading import find_traces, read_trace
from sluice.trace.replay.abnormal import first_abnormal
from sluice.trace.rules import library
from sluice.trace.rules.library import judge
from sluice.trace.settings import TraceSettings

DRAWS = torch.Generator().manual_seed(3)
"""Of this file, as scripts have one for their batches."""


def told(trace):
    return {(f.fault, f.severity) for f in judge(trace)}


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def numbers(rows, columns=6, seed=1):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


# ---- losses written out


def by_hand(compare, *, steps=4):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = numbers(16)
        for _ in range(steps):
            step(optimizer, compare(model(x), x.sum(1)))

    return program


@pytest.mark.parametrize(
    "compare",
    [
        lambda out, y: ((out - y) ** 2).mean(),
        lambda out, y: (y - out).abs().sum() / len(y),
        lambda out, y: torch.cosh(out - y).log().mean(),
        lambda out, y: ((out[:, 0] - y[:, None]) * (out[:, 0] - y[:, None])).mean(),
    ],
    ids=["square", "absolute", "cosh", "the target has the column"],
)
def test_a_difference_of_all_pairs_by_hand_is_found(trace_of, compare):
    found = [f for f in judge(trace_of(by_hand(compare))) if f.fault == "loss broadcasts"]

    assert [(f.severity, f.step) for f in found] == [("error", 1)]
    assert "256 pairs instead of 16" in found[0].what


@pytest.mark.parametrize(
    "compare",
    [
        lambda out, y: ((out[:, 0] - y) ** 2).mean(),
        lambda out, y: ((out - y[:, None]) ** 2).mean(),
        lambda out, y: F.softplus(-(out[:, 0][:, None] - out[:, 0][None]) * y.sign()).mean(),
        lambda out, y: ((out[:, 0][:, None] - y[None]) ** 2).mean(),
    ],
    ids=["rows", "columns", "pairs of outputs", "pairs on purpose"],
)
def test_differences_that_are_meant_are_silent(trace_of, compare):
    assert "loss broadcasts" not in {fault for fault, _ in told(trace_of(by_hand(compare)))}


# ---- numbers that are not finite


class Unit(nn.Module):
    """Divides a sum by its length, which has no slope at 0."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4, padding_idx=0)
        self.phi, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 2)

    def forward(self, ids):
        sums = self.phi(self.table(ids)).sum(1)
        return self.head(sums / (sums.square().sum(-1, keepdim=True).sqrt() + 1e-8))


def test_weights_that_one_step_spoiled_tell_whose_gradient_it_was(trace_of):
    """The small gradients that are looked at right after each backward pass were finite."""

    def program():
        model = Unit()
        optimizer = torch.optim.Adam(model.parameters())
        ids = torch.randint(1, 5, (6, 8, 3), generator=torch.Generator().manual_seed(1))
        ids[3, 2] = 0  # an empty row in the fourth batch
        for batch in ids:
            step(optimizer, F.cross_entropy(model(batch), batch[:, 0] % 2))

    trace = trace_of(program)
    (first, *_) = [f for f in judge(trace) if f.severity == "error"]

    assert (first.fault, first.step) == ("non-finite gradient", 4)
    assert (first_abnormal(trace).step, first_abnormal(trace).tensor) == (
        4,
        "gradient of Unit.phi.weight",
    )


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("written", [True, False])
def test_a_weight_that_was_written_between_steps_is_no_gradients_doing(
    trace_of, optimizer, written
):
    """The moments are finite where the weight is not; without moments, nobody can tell."""

    def program():
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        updates = optimizer(model.parameters(), lr=1e-3)
        for number in range(90):
            hidden = model[0](numbers(16, seed=number))
            if number == 80 and not written:
                hidden.register_hook(lambda g: g * torch.nan)
            step(updates, model[2](model[1](hidden)).square().mean())
            if number == 80 and written:
                with torch.no_grad():
                    model[0].weight[3, 2] = torch.nan

    trace = trace_of(program)
    first = diagnose(judge(trace))[0].finding

    is_known = written and optimizer is torch.optim.Adam
    assert [fact.step for fact in trace.spoiled] == [81] * is_known
    assert first.fault == ("loss not finite" if is_known else "non-finite gradient")
    assert first.step == 81
    if is_known:
        assert "Linear.weight of 4 parameters" in first.what
        assert first_abnormal(trace).tensor == "weights of Linear.weight"


@pytest.mark.parametrize(("fills", "severity"), [(False, "error"), (True, "warning")])
def test_an_infinite_input_whose_batch_is_left_out_is_an_error_where_it_comes_out(
    trace_of, fills, severity
):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(12):
            x = numbers(8, seed=number)
            if number == 5:
                x[3, 2] = -torch.inf
            given = x.nan_to_num(neginf=0.0) if fills else x
            # What a network is given is looked at, not what the program made of it before.
            out = Filling(model)(x) if fills else model(given)
            loss = out.square().mean()
            if loss.isfinite():
                step(optimizer, loss)

    assert ("non-finite input", severity) in told(trace_of(program))


class Filling(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.nan_to_num(neginf=0.0))


# ---- rows


@pytest.mark.parametrize("leaks", [True, False])
def test_copies_drawn_before_the_split_are_found_without_a_loader_for_validation(trace_of, leaks):
    def program():
        x = numbers(240)
        y = x[:, 0] + x[:, 1] ** 2
        rare = torch.randint(30, (60,), generator=torch.Generator().manual_seed(2))
        if leaks:
            x, y = torch.cat([x, x[rare]]), torch.cat([y, y[rare]])
        mix = torch.randperm(len(x), generator=torch.Generator().manual_seed(4))
        train, held_out = mix[:200], mix[200:]
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for a, b in DataLoader(TensorDataset(x[train], y[train]), batch_size=40, shuffle=True):
                step(optimizer, (model(a)[:, 0] - b).square().mean())
            with torch.no_grad():
                model(x[held_out])

    found = told(trace_of(program))

    assert found == ({("validation rows in training", "error")} if leaks else set())


@pytest.mark.parametrize("uses", [0.25, 1.0])
def test_a_part_of_what_was_learned_is_no_validation(trace_of, uses):
    """Judged on all that was learned, a network tells how well it knows that by heart."""

    def program():
        x = numbers(200)
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for (a,) in DataLoader(TensorDataset(x), batch_size=40, shuffle=True):
                step(optimizer, (model(a)[:, 0] - a.sum(1)).square().mean())
            with torch.no_grad():
                for (a,) in DataLoader(TensorDataset(x[: int(200 * uses)]), batch_size=50):
                    model(a)

    found = told(trace_of(program))

    assert found == ({("validation rows in training", "error")} if uses < 1 else set())


class Seeded(Dataset):
    """Draws from numpy's own random numbers."""

    def __len__(self):
        return 24

    def __getitem__(self, row):
        # As old code does: the generator of the process.
        return torch.tensor(np.random.normal(size=6), dtype=torch.float32)  # noqa: NPY002


@pytest.mark.slow
@pytest.mark.parametrize("is_alike", [True, False])
def test_workers_that_are_seeded_alike_draw_the_same(trace_of, is_alike):
    def seed(_):
        np.random.seed(7 if is_alike else torch.initial_seed() % 2**32)  # noqa: NPY002

    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(
            Seeded(),
            batch_size=4,
            num_workers=2,
            worker_init_fn=seed,
            multiprocessing_context="fork",
        )
        for _ in range(2):
            for x in loader:
                step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())

    found = told(trace_of(program))

    assert found == ({("worker streams copied", "error")} if is_alike else set())


def test_numbers_of_neighbouring_patches_are_no_neighbours(trace_of):
    def program():
        x = numbers(256, 64).reshape(256, 16, 4) * torch.linspace(1, 2, 64).reshape(16, 4) + 3
        x[:, 11, 1] = -0.8
        model = nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for rows in torch.arange(256).chunk(8):
            step(optimizer, model(x[rows]).square().mean())

    assert told(trace_of(program)) == set()


@pytest.mark.parametrize("divides", [True, False])
def test_pieces_of_a_batch_that_is_drawn_with_repeats_are_batches(trace_of, divides):
    def program():
        model, x = nn.Linear(6, 3), numbers(240)
        y = torch.arange(240) % 3
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        draws = torch.Generator().manual_seed(5)
        for _ in range(6):
            rows = torch.randint(240, (40,), generator=draws)
            optimizer.zero_grad()
            for some in rows.chunk(4):
                loss = F.cross_entropy(model(x[some]), y[some])
                (loss / 4 if divides else loss).backward()
            optimizer.step()

    found = told(trace_of(program))

    assert found == (set() if divides else {("accumulation not normalised", "error")})


def test_what_one_network_makes_for_another_may_move(trace_of):
    def program():
        torch.manual_seed(1)
        body, head = nn.Linear(6, 4), nn.Linear(4, 1)
        both = [*body.parameters(), *head.parameters()]
        optimizer = torch.optim.Adam(both, lr=0.3)
        x = numbers(400)
        for rows in torch.arange(320).reshape(10, 32).repeat(4, 1):
            step(optimizer, (head(body(x[rows]))[:, 0] - 40).square().mean())
        with torch.no_grad():
            head(body(x[320:]))

    assert "splits preprocessed differently" not in {fault for fault, _ in told(trace_of(program))}


# ---- texts


class Mixing(nn.Module):
    """Each position sees all, or those before it."""

    def __init__(self, *, looks_ahead):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.looks_ahead = looks_ahead

    def forward(self, ids):
        seen = self.table(ids)
        if self.looks_ahead:
            return self.head(seen + seen.mean(1, keepdim=True))
        return self.head(seen.cumsum(1))


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_a_generator_beside_the_network_hinders_no_probe(trace_of, looks_ahead):
    """The loss is written with log_softmax and gather; this file has a generator of its own."""

    def program():
        model = Mixing(looks_ahead=looks_ahead)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            ids = torch.randint(9, (8, 12), generator=DRAWS)
            logs = model(ids[:, :-1]).log_softmax(-1)
            step(optimizer, -logs.gather(2, ids[:, 1:, None]).mean())

    found = told(trace_of(program))

    assert found == ({("later tokens leak", "error")} if looks_ahead else set())


class Convolutions(nn.Module):
    """Returns (rows, tokens, positions), as cross entropy takes them."""

    def __init__(self, *, is_causal):
        super().__init__()
        self.table, self.conv, self.is_causal = nn.Embedding(9, 8), nn.Conv1d(8, 9, 3), is_causal

    def forward(self, ids):
        return self.conv(F.pad(self.table(ids).mT, (2, 0) if self.is_causal else (1, 1)))


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_convolution_that_looks_ahead_is_found_whatever_the_layout(trace_of, is_causal):
    def program():
        model = Convolutions(is_causal=is_causal)
        optimizer = torch.optim.Adam(model.parameters())
        draws = torch.Generator().manual_seed(7)
        for _ in range(5):
            ids = torch.randint(9, (8, 12), generator=draws)
            step(optimizer, F.cross_entropy(model(ids[:, :-1]), ids[:, 1:]))

    found = told(trace_of(program))

    assert found == (set() if is_causal else {("later tokens leak", "error")})


def test_a_generator_that_a_network_draws_from_is_its_own():
    def noise(x):
        return x + torch.randn(x.shape, generator=DRAWS)

    class Noisy(nn.Module):
        def forward(self, x):
            return self.change(x)

        def change(self, x):
            return noise(x)

    assert randomness.has_own_generator(nn.Sequential(Noisy()))
    assert not randomness.has_own_generator(Mixing(looks_ahead=True))


@pytest.mark.parametrize(
    ("texts", "is_wrong"),
    [("one stream", False), ("padded", False), ("the end is padding", True)],
)
def test_targets_that_a_network_shifts_itself_end_one_place_early(trace_of, texts, is_wrong):
    """As transformers' causal language models do: the last place of each row has no target."""
    end, pad = 1, 1 if texts == "the end is padding" else 0

    def rows(draws):
        ids = torch.randint(2, 9, (8, 12), generator=draws)
        if texts == "one stream":
            return ids, ids
        for row, length in enumerate(torch.randint(5, 12, (8,), generator=draws).tolist()):
            ids[row, (11 if row == 0 else length) :] = pad
            ids[row, 11 if row == 0 else length] = end
        return ids, ids.masked_fill(ids == pad, -100)

    def program():
        model = Mixing(looks_ahead=False)
        optimizer = torch.optim.Adam(model.parameters())
        draws = torch.Generator().manual_seed(6)
        for _ in range(8):
            ids, labels = rows(draws)
            targets = F.pad(labels, (0, 1), value=-100)[:, 1:]
            step(optimizer, F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()))

    found = told(trace_of(program))

    assert found == ({("end token never supervised", "error")} if is_wrong else set())


@pytest.mark.parametrize("every", [2, 12])
def test_batches_without_a_target_are_an_error_when_there_are_many(trace_of, every):
    def program():
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(24):
            y = torch.full((8,), -100) if number % every == 1 else torch.arange(8) % 3
            count = (y >= 0).sum().clamp(min=1)
            loss = F.cross_entropy(model(numbers(8, seed=number)), y, reduction="sum") / count
            step(optimizer, loss)

    severity = "error" if every == 2 else "warning"
    assert ("nothing supervised", severity) in told(trace_of(program))


# ---- states


@pytest.mark.parametrize("kind", ["lambda", "in turn"])
def test_schedules_that_load_in_their_own_way_are_seen(trace_of, tmp_path, kind):
    def parts():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        slow = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))
        if kind == "lambda":
            return model, optimizer, slow
        late = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        return model, optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [slow, late], [9])

    def program():
        x, held = numbers(16), parts()
        for part in range(2):
            if part:
                fresh = parts()
                for new, state in zip(fresh, torch.load(tmp_path / "a.pt"), strict=True):
                    new.load_state_dict(state)
                held = fresh
            model, optimizer, schedule = held
            for _ in range(8):
                step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())
                schedule.step()
            torch.save([part.state_dict() for part in held], tmp_path / "a.pt")

    trace = trace_of(program)

    assert {load.what for load in trace.loads} == {"network", "optimizer", "scheduler"}
    assert told(trace) == set()


@pytest.mark.parametrize("key", ["score", "skore"])
def test_the_first_state_that_comes_back_in_the_end_is_told_wherever_it_was(trace_of, key):
    def program():
        torch.manual_seed(2)
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, new = numbers(64), numbers(64, seed=2)
        best, kept = -1e9, None
        for _ in range(8):
            for rows in torch.arange(64).chunk(4):
                step(optimizer, F.mse_loss(model(x[rows])[:, 0], x[rows].sum(1)))
            with torch.no_grad():
                metrics = {"score": -F.mse_loss(model(new)[:, 0], new.sum(1)).item()}
            last = copy.deepcopy(model.state_dict())
            if metrics.get(key, 0.0) > best:
                best, kept = metrics.get(key, 0.0), last
        model.load_state_dict(kept)

    found = told(trace_of(program))

    assert found == (set() if key == "score" else {("selection never moves", "error")})


@pytest.mark.parametrize("is_astray", [True, False])
def test_weights_of_before_that_are_tested_in_the_end_were_never_replaced(trace_of, is_astray):
    def program():
        torch.manual_seed(2)
        model = nn.Linear(6, 1)
        first = copy.deepcopy(model.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, new = numbers(64), numbers(64, seed=2)

        def evaluate():
            with torch.no_grad():
                F.mse_loss(model(new)[:, 0], new.sum(1))

        for _ in range(8):
            for rows in torch.arange(64).chunk(4):
                step(optimizer, F.mse_loss(model(x[rows])[:, 0], x[rows].sum(1)))
            evaluate()
        model.load_state_dict(first)  # for another training, where nothing is tested
        if is_astray:
            evaluate()

    found = told(trace_of(program))

    assert found == ({("selection never moves", "error")} if is_astray else set())


@pytest.mark.parametrize("is_astray", [True, False])
def test_a_state_that_is_loaded_into_an_optimizer_of_before_is_lost(trace_of, tmp_path, is_astray):
    def program():
        torch.manual_seed(2)
        x, path = numbers(16), tmp_path / "state.pt"
        for part in range(4):
            model = nn.Linear(6, 1)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            if part:
                states = torch.load(path)
                optimizer.load_state_dict(states["optimizer"])
                model.load_state_dict(states["model"])
                if is_astray:
                    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(8):
                step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(states, path)

    found = told(trace_of(program))

    assert found == ({("resume lost state", "error")} if is_astray else set())


def _by_factor(losses, counts):
    return (losses * counts.float()).sum() / counts.sum()


def _by_fill(losses, counts):
    return losses.masked_fill(~counts, 0.0).sum() / counts.sum()


def _by_choice(losses, counts):
    return torch.where(counts, losses, torch.zeros(())).sum() / counts.sum()


def _by_gather(logits, targets):
    return -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def _by_torch(logits, targets):
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


@pytest.mark.parametrize("is_wrong", [True, False])
@pytest.mark.parametrize("mask", [_by_factor, _by_fill, _by_choice])
@pytest.mark.parametrize("losses", [_by_gather, _by_torch])
def test_an_end_that_a_mask_leaves_out_by_hand_is_told(trace_of, losses, mask, is_wrong):
    end, pad = 1, 1 if is_wrong else 0

    def program():
        model, draws = Mixing(looks_ahead=False), torch.Generator().manual_seed(6)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(8):
            lengths = torch.randint(4, 11, (8,), generator=draws)
            width = int(lengths.max())
            ids = torch.randint(2, 9, (8, width + 1), generator=draws)
            for row, length in enumerate(lengths.tolist()):
                ids[row, length], ids[row, length + 1 :] = end, pad
            given, targets = ids[:, :-1], ids[:, 1:]
            step(optimizer, mask(losses(model(given), targets), targets != pad))

    found = told(trace_of(program))
    assert (("end token never supervised", "error") in found) is is_wrong


# ---- processes


def _train(rank):
    torch.manual_seed(rank)
    model, x = nn.Linear(6, 1), numbers(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())
    if rank:
        raise ValueError("of the program itself")


def test_a_look_at_something_else_puts_no_statistics_off():
    cadence = Cadence(cost_share=1e-3, most_between=100)
    due, is_due = [], True
    for number in range(600):
        if is_due:
            due.append(number)
        cost_ns = 100 if is_due or number % 30 == 0 else 0
        is_due = cadence.add(step_ns=1000, cost_ns=cost_ns)

    assert due[:9] == [0, 1, 2, 3, 6, 11, 22, 43, 86]
    assert max(b - a for a, b in itertools.pairwise(due)) <= 100


def test_norms_are_taken_however_dear_and_all_the_rest_as_its_share_allows():
    cadence = Cadence(cost_share=1e-3, most_between=100)
    whole, norms, is_due = [], [], True
    for number in range(2000):
        if is_due:
            (whole if cadence.is_whole else norms).append(number)
        # A whole look takes a quarter of a step: one in 250 steps holds the share.
        cost_ns = (250 if cadence.is_whole else 20) if is_due else 0
        is_due = cadence.add(step_ns=1000 + cost_ns, cost_ns=cost_ns)

    late = [number for number in whole if number > 400]
    assert {b - a for a, b in itertools.pairwise(late)} == {297}
    assert max(b - a for a, b in itertools.pairwise(sorted(whole + norms))) <= 100


@pytest.mark.parametrize(("waits", "severity"), [(12, "confirm"), (30, "error")])
def test_a_rate_of_0_that_lasts_is_an_error_also_where_it_ends(trace_of, waits, severity):
    def program():
        model, x = nn.Linear(6, 1), numbers(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(i / 10, 1.0))
        for number in range(60):
            step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())
            if number >= waits:
                schedule.step()

    assert ("rate stays zero", severity) in told(trace_of(program))


def test_a_forked_process_keeps_its_trace_to_the_end(tmp_path, capfd):
    """It ends without the functions that are registered for the end of Python."""
    context = multiprocessing.get_context("fork")
    with traced(tmp_path / "traces", TraceSettings()):
        for rank in range(2):
            process = context.Process(target=functools.partial(_train, rank))
            process.start()
            process.join()

    ends = [read_trace(folder).end for folder in find_traces(tmp_path / "traces")]

    assert [end.steps for end in ends] == [20, 20]
    assert sorted(end.raised for end in ends) == ["", "ValueError: of the program itself"]
    assert "of the program itself" in capfd.readouterr().err


# ---- what the graph behind a loss tells


@pytest.mark.parametrize("form", ["mask of torch", "scores by hand"])
@pytest.mark.parametrize("is_inverted", [True, False])
def test_attention_by_hand_that_sees_padding_alone_is_found(trace_of, form, is_inverted):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(12, 8), nn.Linear(8, 3)

        def forward(self, ids):
            x, pad = self.table(ids), ids == 0
            seen = pad if is_inverted else ~pad
            if form == "mask of torch":
                mixed = F.scaled_dot_product_attention(x, x, x, attn_mask=seen[:, None, :])
            else:
                scores = (x @ x.transpose(1, 2)).masked_fill(~seen[:, None, :], -1e9)
                mixed = scores.softmax(-1) @ x
            return self.out((x + mixed).mean(1))

    def program():
        model = Network()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        ids = torch.randint(1, 12, (24, 10), generator=DRAWS)
        for row, length in enumerate(torch.randint(3, 9, (24,), generator=DRAWS).tolist()):
            ids[row, length:] = 0
        for _ in range(6):
            step(optimizer, F.cross_entropy(model(ids), ids[:, 0] % 3))

    found = {f for f in told(trace_of(program)) if f[0] == "padding mask inverted"}
    assert found == ({("padding mask inverted", "error")} if is_inverted else set())


@pytest.mark.parametrize(("ids", "is_wrong"), [((-1, 3), True), ((-1, 2), False), ((0, 3), False)])
def test_an_id_below_0_that_shares_the_row_of_another_one_is_found(trace_of, ids, is_wrong):
    def program():
        table, out = nn.Parameter(torch.randn(4, 5)), nn.Linear(5, 1)
        optimizer = torch.optim.SGD([table, *out.parameters()], lr=0.01)
        codes = torch.tensor(ids).repeat(8)
        for _ in range(6):
            step(optimizer, F.mse_loss(out(table[codes])[:, 0], codes.float()))

    assert (("id out of range", "error") in told(trace_of(program))) is is_wrong


SQUASHED = {
    "classes": (3, lambda z: z.softmax(-1), lambda z, y: (z.logsumexp(-1) - z[:, y]).mean()),
    "label smoothing": (3, lambda z: z.softmax(-1), lambda z, _: -z.log_softmax(-1).mean()),
    "one score": (1, torch.sigmoid, lambda z, y: (F.softplus(z) - y * z).mean()),
    "stable": (1, torch.sigmoid, lambda z, y: (z.relu() - y * z + (-z.abs()).exp().log1p()).mean()),
}


@pytest.mark.parametrize("is_squashed", [True, False])
@pytest.mark.parametrize("form", SQUASHED)
def test_a_loss_by_hand_of_what_is_squashed_already_is_found(trace_of, form, is_squashed):
    outputs, squash, loss = SQUASHED[form]

    def program():
        model = nn.Linear(6, outputs)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            made = model(numbers(16))
            step(optimizer, loss(squash(made) if is_squashed else made, 1))

    assert (("loss on wrong domain", "error") in told(trace_of(program))) is is_squashed


def test_the_halves_of_a_split_are_outputs_of_their_own_shape(trace_of):
    def program():
        model, x = nn.Linear(6, 2), numbers(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            mean, spread = model(x).chunk(2, -1)
            error = (x.sum(1) - mean) ** 2 * (-spread).exp() + spread
            step(optimizer, error.mean())

    assert ("loss broadcasts", "error") in told(trace_of(program))


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_a_forecast_that_sees_the_number_it_tells_is_found(trace_of, looks_ahead):
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.out = nn.Parameter(torch.randn(15, 15) / 4), nn.Linear(1, 1)
            self.register_buffer("seen", torch.ones(15, 15).tril(1 if looks_ahead else 0))

        def forward(self, x):
            return self.out((x @ (self.mix * self.seen).T)[..., None])[..., 0]

    def program():
        model, x = Mixer(), numbers(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            step(optimizer, F.mse_loss(model(x[:, :-1]), x[:, 1:]))

    assert (("later tokens leak", "error") in told(trace_of(program))) is looks_ahead


# ---- what is kept, rebuilt, cleared and edited


@pytest.mark.parametrize("is_copied", [True, False])
def test_best_weights_that_were_kept_without_a_copy_are_found(trace_of, is_copied):
    def program():
        model, x = nn.Linear(6, 1), numbers(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(6):
            step(optimizer, F.mse_loss(model(x)[:, 0], x.sum(1)))
            if number == 2:
                kept = model.state_dict()
                kept = copy.deepcopy(kept) if is_copied else kept
        model.load_state_dict(kept)

    assert (("selection never moves", "error") in told(trace_of(program))) is not is_copied


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_tie_that_a_rebuilt_network_lacks_is_found(trace_of, is_tied):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)

        def tie(self):
            self.out.weight = self.table.weight

        def forward(self, ids):
            return self.out(self.table(ids))

    def program():
        ids = torch.arange(8)
        model = Tied()
        model.tie()
        for phase in range(2):
            if phase:
                state, model = model.state_dict(), Tied()
                model.load_state_dict({k: v.clone() for k, v in state.items()}, assign=True)
                if is_tied:
                    model.tie()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(5):
                step(optimizer, F.cross_entropy(model(ids), ids + 1))

    assert (("tie lost", "error") in told(trace_of(program))) is not is_tied


@pytest.mark.parametrize("clears", ["before", "before, by hand", "not at all", "after"])
def test_a_hook_that_clears_before_the_update_is_found(trace_of, clears):
    def change(optimizer, factor):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(factor)

    def program():
        model, x = nn.Linear(6, 1), numbers(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if clears == "before":
            optimizer.register_step_pre_hook(lambda o, *_: o.zero_grad(set_to_none=False))
        elif clears == "before, by hand":
            optimizer.register_step_pre_hook(lambda o, *_: change(o, 0.0))
        elif clears == "not at all":
            optimizer.register_step_pre_hook(lambda o, *_: change(o, 0.5))
        else:
            optimizer.register_step_pre_hook(lambda *_: None)
            optimizer.register_step_post_hook(lambda o, *_: o.zero_grad())
        for _ in range(6):
            F.mse_loss(model(x)[:, 0], x.sum(1)).backward()
            optimizer.step()

    found = ("gradients cleared before the step", "error") in told(trace_of(program))
    assert found is clears.startswith("before")


@pytest.mark.parametrize("parts", [1, 4])
def test_a_division_of_added_gradients_by_1_is_no_division(trace_of, parts):
    def program():
        model, x = nn.Linear(6, 1), numbers(64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            for part in x.split(16):
                F.mse_loss(model(part)[:, 0], part.sum(1)).backward()
            torch._foreach_div_([p.grad for p in model.parameters()], parts)
            optimizer.step()
            optimizer.zero_grad()

    found = {fault for fault, _ in told(trace_of(program))}
    assert ("accumulation not normalised" in found) is (parts == 1)


def test_optimizers_that_rest_are_not_looked_at(trace_of):
    resting = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    resting.param_groups[0]["params"][0].grad = torch.full((2,), torch.nan)

    assert not told(trace_of(by_hand(lambda out, y: F.mse_loss(out[:, 0], y))))


# ---- schedules


def rates(change, *, epochs=6, batches=30):
    def program():
        model, x = nn.Linear(6, 1), numbers(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with_batch, with_epoch = change(optimizer, epochs * batches)
        for _ in range(epochs):
            for _ in range(batches):
                step(optimizer, F.mse_loss(model(x)[:, 0], x.sum(1)))
                with_batch()
            with_epoch()

    return program


def halving(optimizer, every):
    calls = itertools.count(1)

    def halve():
        if next(calls) % every == 0:
            optimizer.param_groups[0]["lr"] /= 2

    return halve


def nothing():
    """Stand where a program does nothing."""


@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_rate_that_is_halved_by_hand_with_every_batch_is_found(trace_of, is_wrong):
    def change(optimizer, _):
        halve = halving(optimizer, 3)
        return (halve, nothing) if is_wrong else (nothing, halve)

    found = told(trace_of(rates(change)))
    assert (("schedule ends early", "error") in found) is is_wrong


@pytest.mark.parametrize("is_wrong", [True, False])
@pytest.mark.parametrize("kind", ["cosine", "warmup"])
def test_a_schedule_of_batches_that_is_told_of_epochs_is_found(trace_of, kind, is_wrong):
    def change(optimizer, total):
        if kind == "cosine":
            made = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
        else:
            made = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda i: min((i + 1) / 40, 1 - i / (2 * total))
            )
        return (nothing, made.step) if is_wrong else (made.step, nothing)

    found = told(trace_of(rates(change)))
    assert (("schedule hardly moves", "error") in found) is is_wrong


# ---- columns and labels


def table(spoil):
    def program():
        x, later = numbers(1200, 9), numbers(200, 9, seed=2)
        x[:, 6:], later[:, 6:] = (x[:, 6:] > 0).float(), (later[:, 6:] > 0).float()
        model = nn.Linear(9, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, later = spoil(x, later)
        for part in x.split(100):
            step(optimizer, F.mse_loss(model(part)[:, 0], part[:, 0]))
        with torch.no_grad():
            model.eval()(later)

    return program


def filled(columns, value):
    def spoil(x, later):
        x[:, columns] = later[:, columns] = value
        return x, later

    return spoil


def moved(by):
    def spoil(x, later):
        later[:, 2] = later[:, 2] / 2 + by
        return x, later

    return spoil


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (filled([3], 0.0), "constant column"),
        (filled([0, 1, 2], torch.tensor([0.0, 1.0, 0.0])), "constant column"),
        (filled([7], 0.0), None),
        (filled([0], 1.0), None),
        (moved(9.0), "splits preprocessed differently"),
        (moved(3.0), None),
    ],
    ids=["between", "three", "a flag that no row has", "ones", "far away", "a trend"],
)
def test_parts_of_a_table_that_are_lost_or_far_away_are_found(trace_of, spoil, fault):
    found = {fault for fault, severity in told(trace_of(table(spoil))) if severity == "error"}

    assert found == ({fault} if fault else set())


@pytest.mark.parametrize("empty", [True, False])
def test_labels_that_are_ignored_throughout_are_found_where_the_network_has_its_loss(
    trace_of, empty
):
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, ids, labels):
            told = self.out(self.table(ids)).log_softmax(-1)
            counts = labels >= 0
            picked = told.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
            return -(picked * counts).sum() / counts.sum().clamp(min=1)

    def program():
        model = WithLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ids = torch.randint(9, (16, 6), generator=DRAWS)
        for number in range(8):
            labels = ids.clone()
            labels[:, : 6 if empty and number == 5 else 3] = -100
            step(optimizer, model(ids, labels))

    assert (("nothing supervised", "error") in told(trace_of(program))) is empty


@pytest.mark.parametrize("times", [1, 2])
def test_a_begin_token_that_a_decoder_is_given_twice_is_found(trace_of, times):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, source, begun):
            return self.out(self.table(begun) + self.table(source).mean(1, keepdim=True))

    def program():
        model = Pair()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        source = torch.randint(2, 9, (16, 6), generator=DRAWS)
        begun = torch.cat([torch.ones(16, times, dtype=torch.int64), source[:, :-times]], 1)
        for _ in range(6):
            step(optimizer, F.cross_entropy(model(source, begun).flatten(0, 1), source.flatten()))

    assert (("begin token doubled", "error") in told(trace_of(program))) is (times == 2)


def test_a_body_that_rests_between_two_ends_that_learn_is_asked_about(trace_of):
    def program():
        sizes = [6, 6, 60, 60, 60, 6, 6]
        body = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))
        for part in body[1:-1]:
            part.requires_grad_(requires_grad=False)
        optimizer = torch.optim.SGD([p for p in body.parameters() if p.requires_grad], lr=0.01)
        for _ in range(6):
            step(optimizer, body(numbers(16)).square().mean())

    assert ("frozen by mistake", "confirm") in told(trace_of(program))


@pytest.mark.parametrize(
    ("thaw", "expected"),
    [
        ("typo", ("frozen by mistake", "error")),
        ("module", ("frozen by mistake", "confirm")),
        ("nothing", ("frozen by mistake", "confirm")),
        ("right", None),
        ("loaded", None),
        ("outside", None),
    ],
)
def test_a_body_that_was_never_loaded_and_never_thawed_is_asked_about(trace_of, thaw, expected):
    def program():
        body = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        model = nn.Sequential(body, nn.Linear(64, 1))
        if thaw == "loaded":
            with torch.no_grad():
                for parameter in body.parameters():
                    parameter.mul_(2)
        body.requires_grad_(requires_grad=False)
        held = model[1] if thaw == "outside" else model
        optimizer = torch.optim.SGD(held.parameters(), lr=0.01)
        for number in range(40):
            step(optimizer, (model(numbers(16))[:, 0] - numbers(16).sum(1)).square().mean())
            if number == 9 and thaw == "right":
                body.requires_grad_(requires_grad=True)
            if number == 9 and thaw == "typo":
                for parameter in body.parameters():
                    parameter.require_grad = True
            if number == 9 and thaw == "module":
                body.requires_grad = True

    found = {(fault, severity) for fault, severity in told(trace_of(program)) if "fr" in fault}
    assert found == ({expected} if expected else set())


@pytest.mark.parametrize("is_module", [True, False])
def test_a_freeze_that_torch_never_reads_is_asked_about(trace_of, is_module):
    def program():
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))
        if is_module:
            model[0].requires_grad = False
        else:
            model[0].weight.requires_gradient = False
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            step(optimizer, model(numbers(16)).square().mean())

    assert ("freeze without effect", "confirm") in told(trace_of(program))


@pytest.mark.parametrize(
    ("dropped", "judged", "mixes", "severity"),
    [
        (1, True, False, "error"),
        (1, True, True, "error"),
        (1, False, False, "confirm"),
        (0, True, False, None),
        (0, True, True, None),
    ],
)
def test_one_hot_targets_without_a_column_for_a_class_are_told(
    trace_of, dropped, judged, mixes, severity
):
    def program():
        model, x = nn.Linear(6, 4 - dropped), numbers(64)
        y = F.one_hot(x[:, :4].argmax(1), 4).float()[:, dropped:]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            step(optimizer, F.cross_entropy(model(x), 0.7 * y + 0.3 * y.roll(1, 0) if mixes else y))
            if judged:
                with torch.no_grad():
                    F.cross_entropy(model(x), y)

    found = [s for fault, s in told(trace_of(program)) if fault == "id out of range"]
    assert found == ([severity] if severity else [])


def test_a_copy_that_a_second_phase_begins_with_is_no_best_checkpoint(trace_of):
    def program():
        x = numbers(64)
        y = x.sum(1, keepdim=True)
        first, second = nn.Linear(6, 1), nn.Linear(6, 1)
        for model in (first, second):
            if model is second:
                model.load_state_dict(copy.deepcopy(first.state_dict()))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for number in range(60):
                if number % 10 == 0:
                    with torch.no_grad():
                        F.mse_loss(model(x), y)
                step(optimizer, F.mse_loss(model(x), y))

    assert "selection never moves" not in {fault for fault, _ in told(trace_of(program))}


@pytest.mark.parametrize("is_leak", [True, False])
def test_rows_that_a_network_labelled_before_it_learned_them_did_not_leak(trace_of, is_leak):
    def program():
        model, first, rest = nn.Linear(6, 1), numbers(32, seed=1), numbers(128, seed=2)
        known = torch.cat([first, rest[:8]]) if is_leak else first
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            for _ in range(5):
                step(optimizer, model(known).square().mean())
            with torch.no_grad():
                is_sure = model(rest)[:, 0] > 0
            if not is_leak:
                known = torch.cat([first, rest[is_sure]])

    found = "validation rows in training" in {fault for fault, _ in told(trace_of(program))}
    assert found is is_leak


def test_a_guard_that_leaves_out_every_step_hides_no_gradient(trace_of):
    def program():
        model, x = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1)), numbers(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            out = model(x)[:, 0]
            torch.where(out > 0, out, (out - out.detach()).sqrt()).mean().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if torch.isfinite(norm):
                optimizer.step()

    trace = trace_of(program)
    (first, *_) = judge(trace)

    assert trace.num_steps == 0
    assert (first.fault, first.severity) == ("non-finite gradient", "error")
    assert "Sequential.1.bias" in first.what


def test_a_rule_that_fails_takes_no_other_with_it(trace_of, monkeypatch):
    def program():
        model, x = nn.Linear(6, 1), numbers(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            model(x).square().mean().backward()
            optimizer.step()

    def fail(*_):
        raise KeyError(8)

    broken = dataclasses.replace(library.RULES[0], judge=fail)
    monkeypatch.setattr(library, "RULES", (broken, *library.RULES[1:]))
    found, failed = library.judge_all(trace_of(program))

    assert "gradients carried over" in {f.fault for f in found}
    assert failed == (f"Not judged: whether {broken.name} (KeyError: 8).",)


class Sites(nn.Module):
    def __init__(self):
        super().__init__()
        self.site, self.body = nn.Embedding(5, 3), nn.Linear(9, 2)

    def forward(self, x, site):
        return self.body(torch.cat([x, self.site(site)], 1))


@pytest.mark.parametrize("told_by", ["nothing", "numbers", "sites"])
def test_labels_are_laid_beside_all_that_a_network_is_given(trace_of, told_by):
    def program():
        draws = torch.Generator().manual_seed(4)
        x, site = numbers(1024), torch.randint(5, (1024,), generator=draws)
        y = {
            "nothing": torch.randint(2, (1024,), generator=draws),
            "numbers": (x[:, 0] > 0).long(),
            "sites": (site > 2).long(),
        }[told_by]
        model = Sites()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for rows in torch.arange(1024).chunk(16) * 3:
            batch = x[rows], site[rows]
            step(optimizer, F.cross_entropy(model(*batch), y[rows]))
        with torch.no_grad():
            F.cross_entropy(model(x, site), y)

    found = ("labels independent of inputs", "error") in told(trace_of(program))
    assert found is (told_by == "nothing")


@pytest.mark.parametrize("order", ["right", "shuffled"])
def test_of_several_targets_the_one_that_varies_most_is_laid_beside_the_inputs(trace_of, order):
    def program():
        x, noise = numbers(1024), numbers(1024, columns=1, seed=5)
        # The first one is next to nothing, and no input tells it.
        y = torch.cat([0.01 * noise, x[:, :1].square(), x[:, 1:2].tanh()], 1)
        if order == "shuffled":
            y = y[torch.randperm(1024, generator=torch.Generator().manual_seed(4))]
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for rows in torch.arange(1024).chunk(16) * 3:
            step(optimizer, F.mse_loss(model(x[rows]), y[rows]))
        with torch.no_grad():
            F.mse_loss(model(x), y)

    found = ("labels independent of inputs", "error") in told(trace_of(program))
    assert found is (order == "shuffled")


def test_what_is_made_again_from_itself_has_no_labels(trace_of):
    def program():
        x = torch.cat([0.02 * numbers(1024, columns=1, seed=5).abs(), numbers(1024).sigmoid()], 1)
        model = nn.Linear(7, 7)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for rows in torch.arange(1024).chunk(16) * 3:
            batch = x[rows]
            step(optimizer, F.binary_cross_entropy_with_logits(model(batch), batch))
        with torch.no_grad():
            F.binary_cross_entropy_with_logits(model(x), x)

    trace = trace_of(program)

    assert trace.pairs == ()
    assert "labels independent of inputs" not in {fault for fault, _ in told(trace)}


def test_targets_of_a_first_call_are_not_laid_beside_the_inputs_of_a_second(trace_of):
    def program():
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        x = numbers(1024)
        for part in x.repeat(6, 1).split(64):
            told, noise = model(part), model(torch.randn(64, 6, generator=DRAWS))
            loss = F.cross_entropy(told, (part[:, 0] > 0).long())
            step(optimizer, loss + 0.1 * F.softplus(noise.logsumexp(-1)).mean())

    trace = trace_of(program)
    assert not told(trace)
    assert not trace.pairs


def test_a_step_that_a_gradient_itself_makes_is_not_before_backward(trace_of):
    def program():
        model, x = nn.Linear(6, 1), numbers(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def update(_):
            optimizer.step()
            optimizer.zero_grad()

        model.weight.register_post_accumulate_grad_hook(update)
        for _ in range(8):
            F.mse_loss(model(x)[:, 0], x.sum(1)).backward()

    assert ("step before backward", "error") not in told(trace_of(program))


class OfBatches(nn.Module):
    """A network that is given a whole batch, labels and all."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))

    def forward(self, batch):
        return self.body(batch["words"])


@pytest.mark.parametrize("has_end", [True, False])
def test_tokens_are_seen_in_a_batch_that_is_given_as_one(trace_of, has_end):
    pad, end = 0, 1 if has_end else 0

    def program():
        model = OfBatches()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draws = torch.Generator().manual_seed(4)
        for _ in range(4):
            words = torch.full((32, 9), pad)
            for row, length in zip(words, torch.randint(3, 9, (32,), generator=draws), strict=True):
                row[:length] = torch.randint(2, 12, (int(length),), generator=draws)
                row[length] = end
            targets = torch.where(words == pad, -100, words)[:, 1:]
            batch = {"sources": words.flip(0)[:, 1:], "words": words[:, :-1]}
            step(optimizer, F.cross_entropy(model(batch).flatten(0, 1), targets.flatten()))

    found = "end token never supervised" in {fault for fault, _ in told(trace_of(program))}
    assert found is not has_end


@pytest.mark.parametrize(
    ("offset", "num", "is_told"), [(-1, 64, True), (0, 64, False), (-1, 8, False)]
)
def test_classes_from_minus_one_that_a_loss_by_hand_takes_are_told(trace_of, offset, num, is_told):
    def program():
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, rows = numbers(num), torch.arange(num)
        for _ in range(4):
            log_p = model(x).log_softmax(1)
            step(optimizer, -log_p[rows, rows % 4 + offset].mean())

    assert told(trace_of(program)) == ({("id out of range", "error")} if is_told else set())


def test_a_class_of_minus_one_that_a_mask_leaves_out_is_none(trace_of):
    def program():
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, rows = numbers(64), torch.arange(64)
        y = rows % 5 - 1
        for _ in range(4):
            log_p = model(x).log_softmax(1)
            step(optimizer, -(log_p[rows, y] * (y >= 0)).sum() / (y >= 0).sum())

    assert told(trace_of(program)) == set()


@pytest.mark.parametrize("beside", ["numbers", "flags"])
def test_a_column_of_zeros_in_a_raw_table_is_told_but_not_a_category(trace_of, beside):
    def program():
        x = numbers(1280).exp()
        x[:, 2] = 0
        if beside == "flags":
            x[:, 3] = (x[:, 3] > 1).float()
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for batch, y in DataLoader(TensorDataset(x, x.sum(1)), 32):
            step(optimizer, F.mse_loss(model(batch)[:, 0], y))

    found = ("constant column", "error") in told(trace_of(program))
    assert found is (beside == "numbers")


@pytest.mark.parametrize("is_evaluation", [True, False])
def test_states_that_make_targets_at_every_step_judge_nothing(trace_of, is_evaluation):
    def program():
        draws = torch.Generator().manual_seed(6)
        states = numbers(200)
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for number in range(40):
            rows = torch.randint(199, (32,), generator=draws)
            if not is_evaluation:
                with torch.no_grad():
                    target = 0.5 * model(states[rows + 1])
            elif number % 10 == 9:
                with torch.no_grad():
                    model(torch.cat([states[:20], numbers(60, seed=9)]))
            target = target.detach() if not is_evaluation else states[rows].sum(1, keepdim=True)
            step(optimizer, F.mse_loss(model(states[rows]), target))

    found = "validation rows in training" in {fault for fault, _ in told(trace_of(program))}
    assert found is is_evaluation


@pytest.mark.parametrize("channels", [1, 3])
def test_the_direction_of_a_single_number_has_no_gradient_to_vanish(trace_of, channels):
    def program():
        torch.manual_seed(5)
        norm = nn.utils.parametrizations.weight_norm
        model = nn.Sequential(
            norm(nn.Conv1d(channels, 8, 1)), nn.Tanh(), nn.Conv1d(8, 8, 3), nn.Tanh(),
            nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 1),
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = numbers(64, columns=8 * channels).reshape(64, channels, 8)
        for _ in range(20):
            step(optimizer, F.mse_loss(model(x)[:, 0], x.sum((1, 2))))

    assert told(trace_of(program)) == set()
