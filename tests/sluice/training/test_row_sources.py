"""Training on row sources: batches, dict inputs, augmentation, predictions and errors."""

import copy
import dataclasses
import itertools

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, SourceError
from sluice.base.seeding import derive_seed, deterministic
from sluice.data.rows.protocol import DictRows
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training import prediction
from sluice.training.batch_size_search import find_largest_batch
from sluice.training.batches import Batches
from sluice.training.dead_units import count_dead_units
from sluice.training.descent import RangeTestSettings
from sluice.training.device import place_rows
from sluice.training.loop import mean_loss, predict, train
from sluice.training.prediction import rows_per_chunk
from sluice.training.randomness_report import examine_randomness
from sluice.training.range_test import range_test
from sluice.training.ranks import RankShard
from sluice.training.row_order import epoch_order, example_seeds
from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainSettings
from sluice.training.step_probe import StepProbe
from sluice.workloads.augmentation import draw_uniform
from sluice.workloads.examples import Examples
from sluice.workloads.prepare_model import prepare_model
from tests.sluice.training.test_loop import drop_seconds, losses_of, vector
from tests.support.trained_sources import ImageSource, ImageWorkload, TokenSource, TokenWorkload

CPU = torch.device("cpu")
OPENED: list[Batches] = []
SETTINGS = TrainSettings(max_epochs=2, batch_rows=8, learning_rate=0.02)
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"  # more processes than this machine has cores
)


def make_examples(source, num_rows=100) -> Examples:
    y = torch.linspace(-1, 1, num_rows)[:, None]
    return Examples(x=source, y=y, rows=np.arange(num_rows))


def make_token_examples(num_rows=100) -> Examples:
    return make_examples(TokenSource(0, num_rows), num_rows)


def make_image_examples(num_rows=100) -> Examples:
    return make_examples(ImageSource(0, num_rows), num_rows)


def make_batches(rows, **options):
    arguments = {"batch_rows": 8, "seed": 3, "device": CPU, "workers": 0, **options}
    OPENED.append(Batches(rows, **arguments))
    return OPENED[-1]


@pytest.fixture(autouse=True)
def _closed():
    yield
    while OPENED:
        OPENED.pop().close()


def loss_of(output, y):
    return losses_of(output, y).mean()


def make_model(workload, rows) -> Scaled:
    return prepare_model(workload, ModelSettings(), rows, seed=1)


def is_same(found, expected) -> bool:
    if isinstance(found, dict):
        return found.keys() == expected.keys() and all(
            torch.equal(part, expected[name]) for name, part in found.items()
        )
    return found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_token_examples, make_image_examples])
@pytest.mark.parametrize("first", [0, 5])
def test_batches_equal_the_source_with_and_without_workers(make, first):
    rows = make()
    for workers in (0, 4):
        loader_batches = make_batches(rows, workers=workers)
        for epoch in (1, 3):
            order = epoch_order(100, seed=3, epoch=epoch).part(8 * first, 100).split(8)
            pairs = list(
                zip(loader_batches.iter_epoch(epoch, first_batch=first), order, strict=True)
            )
            assert all(is_same(x, rows.x[r]) and is_same(y, rows.y[r]) for (x, y), r in pairs)


def test_targets_can_be_a_row_source():
    rows = dataclasses.replace(make_image_examples(), y=_TargetSource(100))
    found = [y for _, y in make_batches(rows).iter_epoch(1)]

    assert torch.equal(torch.cat(found)[:, 0], 2.0 * epoch_order(100, seed=3, epoch=1).part(0, 100))


class _TargetSource:
    def __init__(self, num_rows):
        self.num_rows = num_rows

    def __len__(self):
        return self.num_rows

    def __getitem__(self, rows):
        return 2.0 * rows[:, None]


def test_training_on_a_dict_source_equals_a_plain_torch_loop():
    """Oracle: AdamW of torch in a plain loop over the source."""
    rows, val = make_token_examples(), make_token_examples(30)
    model = make_model(TokenWorkload(), rows).requires_grad_(True)
    model.network.drop.p = 0.0
    oracle = copy.deepcopy(model)
    history = list(train(model, loss_of, losses_of, rows, val, SETTINGS, seed=3))

    optimizer = torch.optim.AdamW(oracle.parameters(), weight_decay=SETTINGS.weight_decay)
    val_losses, best, step = [], None, 0
    for epoch in (1, 2):
        oracle.train()
        order = torch.Generator().manual_seed(derive_seed(3, f"order_{epoch}"))
        for part in torch.randperm(100, generator=order).split(8):
            optimizer.zero_grad()
            loss = loss_of(oracle(rows.x[part]), rows.y[part])
            loss.backward()
            nn.utils.clip_grad_norm_(oracle.parameters(), SETTINGS.clip_norm)
            optimizer.param_groups[0]["lr"] = learning_rate_at(step, 26, SETTINGS)
            optimizer.step()
            step += 1
        oracle.eval()
        with torch.no_grad():
            val_losses.append(float(loss_of(oracle(val.x[torch.arange(30)]), val.y)))
        if val_losses[-1] == min(val_losses):
            best = vector(oracle)

    assert [r.val_loss for r in history] == pytest.approx(val_losses, rel=1e-5)
    torch.testing.assert_close(vector(model), best, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [make_token_examples, make_image_examples])
def test_training_on_a_source_is_the_same_with_micro_batches(make):
    rows = make()
    workload = TokenWorkload() if make is make_token_examples else ImageWorkload()

    def fit(**settings):
        model = make_model(workload, rows)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        settings_used = SETTINGS.model_copy(update=settings)
        list(train(model, loss_of, losses_of, rows, rows, settings_used, seed=3))
        return vector(model)

    torch.testing.assert_close(fit(micro_batch_rows=3), fit(), rtol=1e-4, atol=1e-5)


def augment_tokens(x, y, seeds):
    return {**x, "ids": x["ids"] + (draw_uniform(seeds, 1) < 0.5).long()}, y + seeds[:, None] % 7


def test_augmentation_receives_the_seed_of_every_example():
    rows = make_token_examples()
    for workers in (0, 2):
        found = list(
            make_batches(rows, augment=augment_tokens, workers=workers).iter_epoch(2, first_batch=3)
        )
        order = epoch_order(100, seed=3, epoch=2).part(24, 100).split(8)
        for (x, y), part in zip(found, order, strict=True):
            seeds = example_seeds(part, seed=3, epoch=2)
            expected = augment_tokens(rows.x[part], rows.y[part], seeds)
            assert is_same(x, expected[0])
            assert is_same(y, expected[1])


def test_augmentation_does_not_depend_on_the_batch():
    """An example is augmented in the same way with every batch size."""

    def read_epoch(batch_rows):
        loader_batches = make_batches(
            make_image_examples(), batch_rows=batch_rows, augment=ImageWorkload().augment
        )
        order = epoch_order(100, seed=3, epoch=1).part(0, 100)
        x = torch.cat([x for x, _ in loader_batches.iter_epoch(1)])
        return x[order.argsort()]

    assert torch.equal(read_epoch(8), read_epoch(33))
    assert not torch.equal(read_epoch(8), make_image_examples().x[torch.arange(100)])


@pytest.mark.parametrize("augment", [None, ImageWorkload().augment])
def test_batches_of_the_ranks_together_are_those_of_one_process(augment):
    one = list(make_batches(make_image_examples(), augment=augment).iter_epoch(1))
    ranks = [
        list(
            make_batches(
                make_image_examples(), augment=augment, shard=RankShard(rank=r, world_size=3)
            ).iter_epoch(1)
        )
        for r in range(3)
    ]
    for (x, y), *parts in zip(one, *ranks, strict=True):
        assert torch.equal(torch.cat([own for own, _ in parts]), x)
        assert all(torch.equal(whole, y) for _, whole in parts)


def test_row_source_is_not_moved_to_the_device():
    rows = make_token_examples()

    assert place_rows(rows, torch.device("cuda")) is rows
    target_source = dataclasses.replace(rows, x=rows.y, y=_TargetSource(100))
    assert place_rows(target_source, torch.device("cuda")) is target_source


# Errors, which name epoch, batch and rows.


ORDER = epoch_order(100, seed=3, epoch=1).part(0, 100).tolist()
NUMBER = 3
"""Number of the batch that is wrong, counted from 0."""
ROW = ORDER[8 * NUMBER + 2]


class _Wrong(ImageSource):
    """Returns something else for the batches that contain one row."""

    def __init__(self, change) -> None:
        super().__init__(0, 100)
        self._change = change

    def __getitem__(self, rows):
        found = super().__getitem__(rows)
        return self._change(self, found) if ROW in rows.tolist() else found


def raise_source_error(_source, _found):
    raise SourceError("42.png does not exist.", fix="Restore it.")


def grow_source(source, found):
    source.num_rows += 1
    return found


def raise_attribute_error(source, found):
    return found / source.missing


REFUSED = {
    "dtype": (
        lambda _, x: x.float(),
        ContractError,
        r"first batch \(uint8 \(8, 1, 8, 8\) .*float32",
    ),
    "dimensions": (lambda _, x: x[:, 0], ContractError, r"got uint8 \(8, 8, 8\) and targets"),
    "names": (lambda _, x: {"x": x}, ContractError, r"got \{'x': uint8 \(8, 1, 8, 8\)\}"),
    "too few": (lambda _, x: x[1:], ContractError, "must return a tensor with 8 entries"),
    "no tensor": (lambda _, x: x.numpy(), ContractError, "got ndarray"),
    "missing file": (raise_source_error, SourceError, "42.png does not exist"),
    "a bug": (
        raise_attribute_error,
        ContractError,
        r"Reading the examples raised AttributeError.*in raise_attribute_error",
    ),
}
PLACE = f"Epoch 1, batch {NUMBER + 1} of 13 "


IN_WORKERS = ("dtype", "missing file", "a bug")
"""One error of the comparison of batches, one of the source, and one of user code."""


@pytest.mark.parametrize(
    ("case", "workers"),
    [(case, 0) for case in REFUSED]
    + [
        pytest.param(case, 2, marks=[] if case in IN_WORKERS else pytest.mark.exhaustive)
        for case in REFUSED
    ],
)
def test_invalid_batch_is_reported_with_epoch_batch_and_rows(case, workers):
    change, error, what = REFUSED[case]
    with pytest.raises(error, match=what) as raised:
        list(make_batches(make_examples(_Wrong(change)), workers=workers).iter_epoch(1))

    first = ", ".join(map(str, ORDER[8 * NUMBER : 8 * NUMBER + 8]))
    assert raised.value.what.startswith(f"{PLACE}(rows {first}): ")


def test_loader_processes_end_if_training_fails():
    """The processes end even while the traceback keeps the frames of the training alive."""
    rows = make_examples(_Wrong(raise_source_error))
    settings = SETTINGS.model_copy(update={"loader_workers": 2})
    model = make_model(ImageWorkload(), rows)
    others = set(psutil.Process().children())
    seen = set()

    def loss(output, y):
        seen.update(psutil.Process().children())
        return loss_of(output, y)

    with pytest.raises(SourceError, match=r"42\.png does not exist") as raised:
        list(train(model, loss, losses_of, rows, rows, settings, seed=3))

    assert raised.tb is not None
    assert len(seen - others) == 2
    assert not [process for process in seen - others if process.is_running()]


def test_closed_batches_end_their_workers_and_read_in_this_process():
    others = set(psutil.Process().children())
    loader_batches = make_batches(make_image_examples(), workers=2)
    expected = [y for _, y in loader_batches.iter_epoch(1)]
    assert len(set(psutil.Process().children()) - others) == 2
    loader_batches.close()
    loader_batches.close()

    assert not set(psutil.Process().children()) - others
    for y, (_, found) in zip(expected, loader_batches.iter_epoch(1), strict=True):
        assert torch.equal(y, found)


def test_source_that_changes_its_length_is_rejected():
    source = _Wrong(grow_source)
    with pytest.raises(
        ContractError,
        match=rf"Epoch 1, batch {NUMBER + 2} of 13 .*had 100 examples .* and now has 101",
    ):
        list(make_batches(make_examples(source)).iter_epoch(1))


def test_batch_layout_is_compared_across_epochs():
    """Batches are compared with the first one of the training, not of the epoch."""
    source = ImageSource(0, 100)
    loader_batches = make_batches(make_examples(source))
    list(loader_batches.iter_epoch(1))
    source.__class__ = type("_Float", (ImageSource,), {"__getitem__": lambda s, r: s.pixels(r)})
    source.__class__.pixels = lambda s, r: ImageSource.__getitem__(s, r).float()

    with pytest.raises(ContractError, match=r"Epoch 2, batch 1 of 13 .*first batch \(uint8"):
        next(loader_batches.iter_epoch(2))


@pytest.mark.parametrize(
    ("augment", "what"),
    [
        (lambda x, y, _: (x[1:], y), r"augment\(\) must return .* 8 entries, got uint8 \(7,"),
        (lambda x, _y, _s: (x, None), "got uint8 .* and NoneType"),
        (lambda _x, y, _s: ({}, y), "8 entries, got {}"),
    ],
)
def test_augmentation_with_invalid_output_is_rejected(augment, what):
    with pytest.raises(ContractError, match=f"Epoch 1, batch 1 of 13 .*{what}"):
        next(make_batches(make_image_examples(), augment=augment).iter_epoch(1))


def test_inputs_and_targets_of_different_lengths_are_rejected():
    rows = dataclasses.replace(make_image_examples(), y=torch.zeros(99, 1))
    with pytest.raises(ContractError, match="got 100 inputs, 99 targets and 100 rows"):
        make_batches(rows)


def test_bucketing_a_source_without_lengths_is_rejected():
    settings = SETTINGS.model_copy(update={"bucket_by_length": True})
    rows = make_image_examples()
    with pytest.raises(
        ContractError, match=r"bucket_by_length requires .* ImageSource has neither"
    ):
        list(
            train(
                make_model(ImageWorkload(), rows), loss_of, losses_of, rows, rows, settings, seed=3
            )
        )


def test_bucketing_reduces_padding_in_training():
    def count_padded_tokens(**settings):
        rows = make_token_examples(400)
        model = make_model(TokenWorkload(), rows)
        rows.x.requested_rows.clear()
        settings_used = SETTINGS.model_copy(update={"max_epochs": 1, **settings})
        list(train(model, loss_of, losses_of, rows, make_token_examples(30), settings_used, seed=3))
        lengths = torch.from_numpy(rows.x.lengths)
        return sum(len(part) * int(lengths[part].max()) for part in rows.x.requested_rows)

    assert count_padded_tokens(bucket_by_length=True) < 0.75 * count_padded_tokens()


# Predictions.


def test_prediction_chunks_have_at_most_4096_rows_and_about_4_mib():
    assert rows_per_chunk(torch.ones(10, 10**6)) == 4096
    assert rows_per_chunk(ImageSource(0, 100)) == 4096  # 64 bytes
    assert rows_per_chunk(DictRows({"a": torch.zeros(20, 1024), "b": torch.zeros(20, 1024)})) == 512
    assert rows_per_chunk(DictRows({"a": torch.zeros(2, 2**20), "b": torch.zeros(2, 2**20)})) == 1


@pytest.mark.parametrize("make", [make_token_examples, make_image_examples])
def test_predictions_of_a_source_are_in_row_order_and_read_in_chunks(make, monkeypatch):
    monkeypatch.setattr(prediction, "_CHUNK_BYTES", 2000)
    rows = make(300)
    model = make_model(TokenWorkload() if make is make_token_examples else ImageWorkload(), rows)
    if make is make_token_examples:
        rows.x.requested_rows.clear()
    found = predict(model.train(), rows.x)
    if make is make_token_examples:
        sized, *chunks = rows.x.requested_rows
        assert (len(sized), list(itertools.chain(*chunks))) == (16, list(range(300)))
        assert max(map(len, chunks)) < 30

    assert model.training
    expected = model.eval()(rows.x[torch.arange(300)])
    torch.testing.assert_close(found, expected.detach())


def test_dict_of_tensors_and_dict_source_give_the_same_predictions():
    rows = make_token_examples()
    model = make_model(TokenWorkload(), rows)
    x = rows.x[torch.arange(100)]

    assert torch.equal(predict(model, x), predict(model, DictRows(x)))
    assert torch.equal(predict(model, x), model.eval()(x).detach())


LOSSES = {
    "squared": losses_of,
    "huber": lambda o, y: nn.functional.huber_loss(o[:, :1], y, reduction="none").mean(dim=1),
    "classes": lambda o, y: nn.functional.cross_entropy(o, (y[:, 0] > 0).long(), reduction="none"),
    "gaussian": lambda o, y: (o[:, 0] - y[:, 0]).square() * (-o[:, 1]).exp() + o[:, 1],
    "five outputs": lambda o, y: (o - y).abs().log1p().mean(dim=1),
}


@pytest.mark.parametrize("losses", LOSSES)
@pytest.mark.parametrize("num_rows", [4096, 4097, 9001])
def test_mean_loss_in_chunks_has_the_bits_of_one_pass(losses, num_rows):
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, 4, generator=generator)
    y = torch.randn(num_rows, 1, generator=generator)
    rows, model = Examples(x=x, y=y, rows=np.arange(num_rows)), nn.Linear(4, 5)
    with deterministic():
        expected = float(LOSSES[losses](predict(model, x), y).double().mean())
        assert mean_loss(model, LOSSES[losses], rows) == expected


def test_mean_loss_is_computed_chunk_by_chunk():
    sizes = []

    def losses(output, y):
        sizes.append((len(output), len(y)))
        return losses_of(output, y)

    rows = make_examples(torch.randn(9001, 4), 9001)
    mean_loss(nn.Linear(4, 1), losses, rows)

    assert sizes == [(4096, 4096), (4096, 4096), (809, 809)]


def test_scalar_loss_over_several_chunks_is_rejected():
    rows = make_examples(torch.randn(5000, 4), 5000)

    with pytest.raises(ContractError, match="one loss per example, got a scalar for 904 examples"):
        mean_loss(nn.Linear(4, 1), lambda o, y: losses_of(o, y).mean(), rows)


# Searches and reports.


def test_range_test_of_a_source_equals_that_of_its_tensor():
    rows, settings = make_image_examples(), RangeTestSettings(num_steps=50)
    whole = dataclasses.replace(rows, x=rows.x[torch.arange(100)])

    def compute_curve(examples):
        model = make_model(ImageWorkload(), examples)
        return range_test(model, loss_of, examples, settings, training=SETTINGS, seed=1).curve

    assert compute_curve(rows) == compute_curve(whole)
    short = make_examples(TokenSource(0, 5), 5)  # fewer rows than a batch
    found = range_test(
        make_model(TokenWorkload(), short), loss_of, short, settings, training=SETTINGS, seed=1
    )
    assert len(found.curve) > 20


def test_step_probe_uses_the_longest_rows():
    rows = make_token_examples()
    probe = StepProbe(
        TokenWorkload(),
        ModelSettings(),
        rows,
        SETTINGS,
        memory_bytes=2**30,
        device=CPU,
        seed=0,
    )
    rows.x.requested_rows.clear()
    assert probe(12).fits

    assert {int(rows.x.lengths[row]) for row in rows.x.requested_rows[-1]} == {14, 15}
    assert len(rows.x.requested_rows[-1]) == 12


@pytest.mark.parametrize("workload", [TokenWorkload(), ImageWorkload()])
def test_batch_size_search_supports_row_sources(workload):
    rows = make_token_examples() if isinstance(workload, TokenWorkload) else make_image_examples()
    found = find_largest_batch(
        workload,
        ModelSettings(),
        rows,
        SETTINGS,
        limit_rows=64,
        memory_bytes=2**28,
        gap_share=0.1,
        device=CPU,
        seed=0,
    )

    assert found.rows == 64


class _DrawingWorkload(ImageWorkload):
    def augment(self, x, y, seeds):  # noqa: ARG002
        return (x + torch.randint(2, x.shape)).to(torch.uint8), y


@pytest.mark.parametrize("workload", [TokenWorkload(), ImageWorkload(), _DrawingWorkload()])
def test_augmentation_that_draws_from_global_generators_is_reported(workload):
    report = examine_randomness(workload, ModelSettings(), SETTINGS, seed=1)

    moved = {draw.operation: draw.moved for draw in report.draws}
    drawing = isinstance(workload, _DrawingWorkload)
    assert (
        moved.get("augment")
        == {
            TokenWorkload: None,  # it has no augmentation
            ImageWorkload: (),
            _DrawingWorkload: ("torch CPU",),
        }[type(workload)]
    )
    assert any("augment uses torch CPU" in found for found in report.findings) is drawing


def test_dead_units_are_counted_on_a_row_source():
    rows = make_image_examples()

    assert count_dead_units(make_model(ImageWorkload(), rows), rows.x)[1] == 3


@pytest.mark.slow
@pytest.mark.parametrize("workload", [TokenWorkload(), ImageWorkload()])
def test_loader_workers_do_not_change_weights_trained_on_a_source(workload):
    rows = make_token_examples() if isinstance(workload, TokenWorkload) else make_image_examples()

    def fit(workers):
        model = make_model(workload, rows)
        settings = SETTINGS.model_copy(update={"loader_workers": workers})
        with deterministic():
            history = list(
                train(
                    model,
                    loss_of,
                    losses_of,
                    rows,
                    rows,
                    settings,
                    seed=3,
                    augment=workload.augmentation,
                )
            )
        return vector(model), drop_seconds(history)

    (alone, expected), (several, history) = fit(0), fit(4)
    assert torch.equal(alone, several)
    assert history == expected
