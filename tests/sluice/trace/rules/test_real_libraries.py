"""What programs written with well-known libraries do, and rules once took for a fault (TRACE-16).

Each mechanism is that of a library: Lightning and TabNet evaluate in their own ways, replay
memories are those of reinforcement learning, accelerate divides by the number of batches.
"""

import tempfile

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sluice.trace.rules.library import judge


def told(trace):
    return [(f.fault, f.severity) for f in judge(trace)]


def rows(num, columns=8, seed=0):
    x = torch.randn(num, columns, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(1)


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_a_network_that_is_filled_from_a_file_has_no_numbers_before(trace_of):
    def program():
        x, y = rows(64)
        state = nn.Linear(8, 3).state_dict()
        with torch.device("meta"):
            model = nn.Linear(8, 3)
        model.load_state_dict({name: t.to("meta") for name, t in state.items()}, assign=True)
        model.load_state_dict(state, assign=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            step(optimizer, F.cross_entropy(model(x), y))

    trace = trace_of(program)

    assert (trace.notes, trace.num_steps) == ((), 5)


class Named(Tensor):
    """Numbers with a name of each row, which nobody may bring into another form."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (Tensor.__getitem__, Tensor.reshape):
            raise ValueError("rows in another form have no names")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_batches_of_a_class_of_their_own_are_seen_as_numbers(trace_of):
    def program():
        x, y = rows(96)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def named(items):
            data, labels = zip(*items, strict=True)
            return torch.stack(data).as_subclass(Named), torch.stack(labels)

        for batch, labels in DataLoader(TensorDataset(x, y), 32, collate_fn=named):
            step(optimizer, F.cross_entropy(model(batch.as_subclass(Tensor)), labels))

    trace = trace_of(program)

    assert trace.notes == ()
    assert [[f.shape for f in batch.fields] for batch in trace.batches] == 3 * [[(32, 8), (32,)]]
    assert [len({*batch.rows}) for batch in trace.batches] == [32, 32, 32]


@pytest.mark.parametrize("stays", [False, True])
def test_an_evaluation_with_gradients_is_not_what_is_learned_from(trace_of, stays):
    def program():
        x, y = rows(160)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(4):
            if not stays:
                model.train()
            for some in torch.arange(128).split(32):
                step(optimizer, F.cross_entropy(model(x[some]), y[some]))
            model.eval()
            model(x[128:]).argmax(1)

    assert (("training in evaluation mode", "error") in told(trace_of(program))) is stays


@pytest.mark.parametrize("is_memory", [True, False])
def test_rows_of_a_memory_that_make_targets_in_turns_judge_nothing(trace_of, is_memory):
    def program():
        memory, later = rows(256)[0], rows(256, seed=2)[0]
        critic, actor = nn.Linear(8, 1), nn.Linear(8, 1)
        steps = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (critic, actor)]
        draws = torch.Generator().manual_seed(1)
        for turn in range(60):
            some = torch.randint(128, (16,), generator=draws)
            if is_memory:
                with torch.no_grad():  # the states that follow are in the memory, too
                    target = critic(memory[some + torch.randint(2, (16,), generator=draws)])
            else:
                target = memory[some, :1]
            step(steps[0], F.mse_loss(critic(memory[some]), target))
            step(steps[1], actor(memory[some]).square().mean())
            if not is_memory and turn % 20 == 19:
                with torch.no_grad():
                    F.mse_loss(critic(torch.cat([memory[:40], later[:60]])), later[:100, :1])

    found = ("validation rows in training", "error") in told(trace_of(program))
    assert found is not is_memory


@pytest.mark.parametrize(("still", "severity"), [((5, 20, 33), "confirm"), ((20,), "error")])
def test_columns_that_a_scaler_leaves_at_zero_are_a_question(trace_of, still, severity):
    def program():
        x, y = rows(320, columns=48)
        x[:, list(still)] = 0
        model = nn.Linear(48, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch, labels in DataLoader(TensorDataset(x, y), 32):
            step(optimizer, F.cross_entropy(model(batch), labels))

    assert [f for f in told(trace_of(program)) if f[0] == "constant column"] == [
        ("constant column", severity)
    ]


@pytest.mark.parametrize("stays", [False, True])
def test_a_checkpoint_that_is_written_under_a_drawn_name_moves(trace_of, tmp_path, stays):
    def program():
        x, y = rows(256)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        best = 1e9
        for epoch in range(8):
            for some in torch.arange(192).split(16):
                step(optimizer, F.cross_entropy(model(x[some]), y[some]))
            with torch.no_grad():
                loss = float(F.cross_entropy(model(x[192:]), y[192:]))
            if loss < best and not (stays and epoch):
                best = loss
                with tempfile.NamedTemporaryFile(dir=tmp_path, delete=False) as file:
                    torch.save(model.state_dict(), file.name)

    assert ("selection never moves" in {fault for fault, _ in told(trace_of(program))}) is stays


@pytest.mark.parametrize("by", [1, 1.0, 4])
def test_a_mean_that_is_divided_by_one_is_whole(trace_of, by):
    def program():
        x, y = rows(512)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        for number, some in enumerate(torch.arange(512).split(16)):
            (F.cross_entropy(model(x[some]), y[some]) / by).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    found = ("accumulation not normalised", "error") in told(trace_of(program))
    assert found is (by == 1)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_loss_by_hand_of_a_second_phase_is_looked_at_soon(trace_of, is_late):
    """Where steps repeat one order, one of eight is looked at closely."""

    def pinball(out, target):
        error = target - out
        return torch.maximum(0.8 * error, -0.2 * error).mean()

    def program():
        x, _ = rows(640)
        y = x[:, 0] + x[:, 1]
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for number in range(320):
            some = torch.arange(32) + 32 * (number % 20)
            out = model(x[some])
            if number < 281:
                step(optimizer, (out[:, 0] - y[some]).square().mean())
            else:
                step(optimizer, pinball(out if is_late else out[:, 0], y[some]))

    found = [f for f in judge(trace_of(program)) if f.fault == "loss broadcasts"]

    assert len(found) == is_late
    assert all(282 <= f.step < 290 for f in found)


@pytest.mark.parametrize("is_late", [False, True])
def test_answers_that_are_cut_late_are_told_where_their_loss_is_a_sum_over_nothing(
    trace_of, is_late
):
    def program():
        x, y = rows(640)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(560):
            some = torch.arange(32) + 32 * (number % 20)
            target = torch.full_like(y[some], -100) if is_late and number >= 400 else y[some]
            total = F.cross_entropy(model(x[some]), target, reduction="sum")
            step(optimizer, total / (target >= 0).sum().clamp(min=1))

    found = [f for f in judge(trace_of(program)) if f.fault == "nothing supervised"]

    assert [f.severity for f in found] == ["error"] * is_late
    assert all(400 < f.step < 530 for f in found)


class Reader(nn.Module):
    """Predicts the next token; its mask is made for some lengths."""

    def __init__(self, lengths):
        super().__init__()
        self.masks = {n: torch.full((n, n), -torch.inf).triu(1) for n in lengths}
        self.tokens, self.places = nn.Embedding(12, 16), nn.Embedding(24, 16)
        self.keys, self.values, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 12)

    def forward(self, ids):
        h = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        scores = h @ self.keys(h).transpose(1, 2) / 4
        mask = self.masks.get(ids.shape[1])
        scores = scores if mask is None else scores + mask
        return self.out(h + scores.softmax(-1) @ self.values(h))


@pytest.mark.parametrize("lengths", [(8, 20), (8,)])
def test_a_causal_mask_that_ends_where_texts_become_longer_is_told(trace_of, lengths):
    def program():
        draws = torch.Generator().manual_seed(0)
        model = Reader(lengths)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for number in range(120):
            length = 8 if number < 70 else 20
            ids = torch.randint(12, (16, 1), generator=draws) + torch.arange(length + 1)
            ids = ids % 12
            out = model(ids[:, :-1]).flatten(0, 1)
            step(optimizer, F.cross_entropy(out, ids[:, 1:].flatten()))

    found = [f for f in judge(trace_of(program)) if f.severity == "error"]

    assert [(f.fault, f.step) for f in found] == [("later tokens leak", 71)] * (len(lengths) == 1)


@pytest.mark.parametrize("place", [0, 3, 7])
def test_an_intercept_is_no_column_that_lost_its_numbers(trace_of, place):
    def program():
        x, y = rows(320)
        x[:, place] = 1  # as statistics packages add it, before or behind all others
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch, labels in DataLoader(TensorDataset(x, y), 32):
            step(optimizer, F.cross_entropy(model(batch), labels))

    assert (("constant column", "error") in told(trace_of(program))) is (place == 3)


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_rows_of_several_lengths_or_mostly_zero_go_through(trace_of, kind):
    def program():
        model = nn.Linear(8, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        batch = (
            torch.nested.nested_tensor([rows(3 + i % 4)[0] for i in range(8)], layout=torch.jagged)
            if kind == "ragged"
            else (rows(16)[0] * (rows(16, seed=1)[0] > 0.5)).to_sparse()
        )
        for _ in range(6):
            out = model(batch)
            step(optimizer, (out.values() if kind == "ragged" else out).square().mean())

    trace = trace_of(program)

    assert (trace.notes, trace.num_steps) == ((), 6)


class Upright(nn.Module):
    """The same with texts in columns, as torch's own transformer takes them."""

    def __init__(self, lengths):
        super().__init__()
        self.reader = Reader(lengths)

    def forward(self, ids):
        return self.reader(ids.T).transpose(0, 1)


@pytest.mark.parametrize("lengths", [(8,), ()])
def test_a_causal_mask_is_missed_where_texts_stand_in_columns(trace_of, lengths):
    def program():
        draws = torch.Generator().manual_seed(0)
        model = Upright(lengths)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(40):
            ids = torch.randint(12, (1, 16), generator=draws) + torch.arange(9)[:, None]
            ids = ids % 12
            out = model(ids[:-1]).flatten(0, 1)
            step(optimizer, F.cross_entropy(out, ids[1:].flatten()))

    found = [f.fault for f in judge(trace_of(program)) if f.severity == "error"]

    assert found == ["later tokens leak"] * (not lengths)


@pytest.mark.parametrize("acts", [True, False])
def test_states_that_were_learned_first_and_acted_on_later_judge_nothing(trace_of, acts):
    def program():
        states = rows(200)[0]
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for now in range(20, 140):
            step(optimizer, F.mse_loss(model(states[now - 16 : now + 1]), states[:17, :1]))
            if acts and now % 3 == 0:
                with torch.no_grad():
                    model(states[now][None])
            if not acts and now % 40 == 0:
                with torch.no_grad():
                    for row in (*states[now - 10 : now], *states[180:190]):
                        model(row[None])

    found = ("validation rows in training", "error") in told(trace_of(program))
    assert found is not acts


@pytest.mark.parametrize("cuts", [True, False])
def test_a_generator_whose_loss_is_of_a_cut_output_is_told(trace_of, cuts):
    """Its gradients are absent, not carried over; both networks have their turn of the looks."""

    def program():
        real = rows(512)[0] + 2
        maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        judge_of = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        of_judge, of_maker = (torch.optim.Adam(m.parameters(), lr=2e-3) for m in (judge_of, maker))
        for number in range(100):
            some = real[torch.arange(32) + 4 * number]
            ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
            judge_of.zero_grad()
            F.binary_cross_entropy_with_logits(judge_of(some), ones).backward()
            fake = maker(torch.randn(32, 4))
            F.binary_cross_entropy_with_logits(judge_of(fake.detach()), zeros).backward()
            of_judge.step()
            maker.zero_grad()
            seen = judge_of(fake.detach() if cuts else fake)
            F.binary_cross_entropy_with_logits(seen, ones).backward()
            of_maker.step()

    trace = trace_of(program)
    looks = {o.optimizer: 0 for m in trace.measures for o in m.optimizers}
    for measures in trace.measures:
        for own in measures.optimizers:
            looks[own.optimizer] += 1

    assert min(looks.values()) > 0.25 * max(looks.values())
    assert [f for f in told(trace) if f[1] != "warning"][:1] == [("gradient cut", "error")] * cuts
    assert "gradients carried over" not in {fault for fault, _ in told(trace)}


def test_an_optimizer_that_never_steps_hides_no_head_outside_of_another(trace_of):
    def program():
        x, y = rows(256)
        idle = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        resting = torch.optim.SGD(idle.parameters(), lr=0.1)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        for some in torch.arange(256).split(16):
            step(optimizer, F.cross_entropy(model(x[some]), y[some]))
        assert len(resting.param_groups) == 1

    assert ("parameters outside the optimizer", "confirm") in told(trace_of(program))
