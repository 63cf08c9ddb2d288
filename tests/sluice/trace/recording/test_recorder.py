"""Content, size limits and damage of trace files (TRACE-1)."""

import json

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from sluice.base.errors import ContractError, StorageError
from sluice.trace.attach import traced
from sluice.trace.recording import event_interner
from sluice.trace.recording.event_interner import EventInterner
from sluice.trace.recording.log_spaced_sampler import LogSpacedSampler
from sluice.trace.recording.storage import HISTORY_FILE, RECENT_FILES
from sluice.trace.rules.library import judge
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import find_traces, read_trace
from tests.support.traced import healthy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    with traced(tmp_path_factory.mktemp("traces"), TraceSettings(flush_s=0)) as trace_folder:
        healthy.with_validation()
    return trace_folder


def copy_trace(folder, target):
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_the_counts_of_sequences_add_up_to_the_steps(folder):
    trace = read_trace(folder)
    kinds = [tuple(event.kind for event in sequence.events) for sequence in trace.sequences]
    step = ("batch", "zero", "forward", "backward", "clip", "step")

    assert trace.num_steps == trace.end.steps == 6
    assert kinds[0] == ("mode", "epoch", *step)
    assert kinds[1] == step
    assert kinds[2] == ("mode", "epoch", "batch", "forward", "schedule", "mode", "epoch", *step)
    assert trace.sequences[2].events[3].repeat_length == 2  # two held-out batches, stored once
    assert trace.sequences[3].is_open
    assert [sequence.count for sequence in trace.sequences] == [1, 4, 1, 1]


def test_epochs_of_one_loader_have_the_same_rows_in_another_order(folder):
    held_out = [e for e in read_trace(folder).epochs if e.num_indices == 32]
    train = [e for e in read_trace(folder).epochs if e.num_indices == 96]

    assert len({(e.order, e.rows) for e in held_out}) == 1
    assert len({e.order for e in train}) == 2
    assert len({e.rows for e in train}) == 1
    assert all(e.is_finished for e in [*held_out, *train])


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_are_patched_only_in_epochs_whose_order_is_recorded(tmp_path, workers):
    original = _BaseDataLoaderIter._next_index
    rows = TensorDataset(torch.arange(12.0)[:, None])
    loader = DataLoader(rows, batch_size=4, shuffle=True, num_workers=workers)
    is_original_by_epoch = []
    with traced(tmp_path, TraceSettings()) as folder:
        for _ in range(17):
            for batch, _ in enumerate(loader):
                if batch == 1:
                    is_original_by_epoch.append(_BaseDataLoaderIter._next_index is original)
    num_rows_by_epoch = {e.epoch: e.num_indices for e in read_trace(folder).epochs}

    assert num_rows_by_epoch == dict.fromkeys((1, 2, 3, 4, 8, 16), 12)
    patched = [n for n, is_original in enumerate(is_original_by_epoch, 1) if not is_original]
    assert patched == sorted(num_rows_by_epoch)
    assert _BaseDataLoaderIter._next_index is original


def test_steps_beyond_the_maximum_number_of_sequences_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(event_interner, "_MAX_SEQUENCES", 4)
    with traced(tmp_path, TraceSettings()) as folder:
        model = torch.nn.Linear(2, 1)
        meta = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(meta, total_iters=60)
        for _ in range(60):
            for optimizer in (torch.optim.SGD(model.parameters(), lr=0.1), meta):
                optimizer.zero_grad()
                model(torch.ones(3, 2)).square().mean().backward()
                optimizer.step()
            schedule.step()
    trace = read_trace(folder)

    assert len(trace.sequences) == 4
    assert trace.num_steps == trace.end.steps == 120
    assert trace.num_steps_without_sequence == 120 - sum(
        sequence.count for sequence in trace.sequences if not sequence.is_open
    )
    assert "scheduler stepped per epoch" not in {found.fault for found in judge(trace)}


def test_only_equal_rows_have_equal_fingerprints(folder):
    trace = read_trace(folder)
    held_out = {row for b in trace.batches if b.loader == 1 for row in b.rows}
    first, second = (
        {row for b in trace.batches if (b.loader, b.epoch) == (0, epoch) for row in b.rows}
        for epoch in (1, 2)
    )

    assert len(first) == 96
    assert len(held_out) == 32
    assert first == second
    assert not held_out & first
    assert all(field.num_non_finite == 0 for b in trace.batches for field in b.fields)


def test_norms_losses_and_rates_of_a_step_are_recorded(tmp_path):
    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with traced(tmp_path, TraceSettings()) as folder:
        before = model.weight.detach().clone()
        loss = model(torch.tensor([[3.0, 0.0, 4.0]])).sum()
        loss.backward()
        optimizer.step()
    (statistics,) = read_trace(folder).statistics
    (optimizer_statistics,) = statistics.optimizers

    assert optimizer_statistics.grad_norms == (5.0,)
    assert optimizer_statistics.update_norms == pytest.approx((2.5,))
    assert optimizer_statistics.weight_norms == pytest.approx((float(before.norm()),))
    assert optimizer_statistics.rates == (0.5,)
    assert read_trace(folder).scalars[0].losses == (float(loss.detach()),)


@pytest.mark.parametrize("num_inputs", [8, 9, 15, 16, 17])
def test_update_norms_of_a_sample_are_scaled_to_the_whole_parameter(tmp_path, num_inputs):
    model = torch.nn.Linear(num_inputs, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with traced(tmp_path, TraceSettings(sampled_weights=8)) as folder:
        model(torch.ones(1, num_inputs)).sum().backward()
        optimizer.step()
    ((optimizer_statistics,),) = (step.optimizers for step in read_trace(folder).statistics)

    assert optimizer_statistics.update_norms == pytest.approx((num_inputs**0.5,))


@pytest.mark.parametrize("name", [HISTORY_FILE, RECENT_FILES[0]])
def test_an_incomplete_last_line_is_skipped_and_counted(folder, tmp_path, name):
    truncated = copy_trace(folder, tmp_path / "torn")
    content = (truncated / name).read_bytes()
    (truncated / name).write_bytes(content[:-5])

    assert read_trace(truncated).num_truncated_files == 1
    assert read_trace(truncated).num_steps == 6
    assert (read_trace(truncated).end is None) == (name == HISTORY_FILE)


def test_every_prefix_of_whole_lines_is_a_readable_trace(folder, tmp_path):
    lines = (folder / HISTORY_FILE).read_bytes().splitlines(keepends=True)
    steps = []
    for number in range(1, len(lines) + 1):
        prefix = copy_trace(folder, tmp_path / str(number))
        (prefix / HISTORY_FILE).write_bytes(b"".join(lines[:number]))
        steps.append(read_trace(prefix).num_steps)

    assert steps == sorted(steps)
    assert steps[-1] == 6


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda lines: [lines[0], b"{]\n", *lines[1:]], "line 2"),
        (lambda lines: [lines[0], b"[1]\n", *lines[1:]], "line 2"),
        (lambda lines: [lines[0], b'{"step":1}\n', *lines[1:]], "line 2"),
        (lambda lines: lines[1:], "must begin with a start"),
        (lambda lines: [lines[0].replace(b'"version":1', b'"version":9'), *lines[1:]], "got 9"),
        (lambda lines: [*lines, b'{"record":"note","step":1}\n'], "damaged record"),
    ],
    ids=["broken line", "a list", "no record", "no start", "newer version", "not a note"],
)
def test_a_damaged_trace_is_refused(folder, tmp_path, change, match):
    damaged = copy_trace(folder, tmp_path / "damaged")
    lines = (damaged / HISTORY_FILE).read_bytes().splitlines(keepends=True)
    (damaged / HISTORY_FILE).write_bytes(b"".join(change(lines)))

    with pytest.raises(ContractError, match=match):
        read_trace(damaged)


def test_a_folder_without_a_trace_is_refused(tmp_path):
    with pytest.raises(StorageError, match="contains no trace"):
        find_traces(tmp_path)


def test_trace_files_are_bounded_and_all_steps_are_counted(tmp_path):
    bounds = TraceSettings(
        flush_s=0, recent_bytes=2**16, history_bytes=2**16, max_steps_between_samples=1
    )
    with traced(tmp_path, bounds) as folder:
        for _ in range(20):
            healthy.accumulation()
            healthy.with_validation()
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    trace = read_trace(folder)

    assert sum(sizes[name] for name in RECENT_FILES) <= 2**16 + 2**14
    assert [note.kind for note in trace.notes] == ["full"]
    assert trace.num_steps == trace.end.steps == 20 * (3 + 6)


def test_the_number_of_samples_grows_logarithmically():
    sampler = LogSpacedSampler(16)
    sampled_steps = [step for step in range(10_000) if sampler.advance()]

    assert sampled_steps[:16] == list(range(16))
    assert len(sampled_steps) < 16 + 8 * 12
    assert sampled_steps[-1] > 8_000


@pytest.mark.parametrize("times", [3, 300])
def test_repeats_are_folded_and_each_sequence_is_stored_once(times):
    interner = EventInterner()
    a, b, c = (interner.intern(("batch", i, -1, (), 0)) for i in range(3))
    sequence, shown = interner.intern_step([*[a, b] * times, c], 0)

    # The last event of a block has the position of its last repeat.
    assert shown == (0, 2 * times - 1, 2 * times)
    assert interner.intern_step([a, b, a, b, c], 0)[0] == sequence
    assert interner.intern_step([a, b, c], 0)[0] != sequence
    assert interner.intern_step([a, b, a, b, c], 1)[0] != sequence
    events = {index: events for index, _, events in interner.unwritten_sequences}[sequence]
    assert json.loads(json.dumps(events)) == [
        ["batch", 0, -1, [], 0],
        ["batch", 1, -1, [], 2],
        ["batch", 2, -1, [], 0],
    ]


def test_norms_are_sampled_at_doubling_steps_and_then_every_100_at_any_cost(trace_of):
    def program():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(330):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    steps = [m.step for m in trace_of(program, TraceSettings(cost_share=1e-9)).statistics]

    assert steps == [1, 2, 3, 4, 7, 12, 23, 44, 87, 172, 271]


def test_traces_with_the_same_process_id_get_different_folders(tmp_path):
    with traced(tmp_path, TraceSettings()) as first:
        pass
    with traced(tmp_path, TraceSettings()) as second:
        healthy.with_validation()

    assert first != second
    assert find_traces(tmp_path) == (second,)
