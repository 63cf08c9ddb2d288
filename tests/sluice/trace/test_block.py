"""``sluice.trace()``: a traced block, and its findings as objects."""

import pytest
import torch

import sluice
from sluice.base.errors import StorageError
from sluice.trace.attach import active_tracer, traced
from sluice.trace.settings import TraceSettings


def train(*, steps: int = 12, clears: bool = True, fails_at: int = -1) -> None:
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for step in range(steps):
        if step == fails_at:
            raise RuntimeError("of the program")
        x = torch.randn(8, 3)
        if clears:
            optimizer.zero_grad()
        (network(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


def test_a_block_provides_its_findings_as_objects(tmp_path):
    with sluice.trace(tmp_path / "<i>traces") as block:
        train(clears=False)
        assert block.findings == ()  # known after the block

    (finding,) = block.findings
    assert (finding.fault, finding.severity) == ("missing zero_grad", "confirm")
    assert "zero_grad" in finding.fix
    assert block.num_steps == 12
    assert active_tracer() is None
    html = block._repr_html_()
    assert "needs review" in html
    assert "missing zero_grad" in html
    assert "<i>" not in html
    assert "Replay of" in block.replay().html


def test_a_healthy_training_has_no_finding(tmp_path):
    with sluice.trace(tmp_path) as block:
        train()

    assert (block.findings, block.errors) == ((), ())
    assert "no problem found" in repr(block)


def test_a_block_ignores_earlier_traces_in_its_folder(tmp_path):
    block = sluice.trace(tmp_path)
    with block:
        train(clears=False)
    with block:
        train()

    assert (block.findings, block.num_steps) == ((), 12)


def test_an_exception_is_raised_and_the_steps_before_it_are_reported(tmp_path):
    with pytest.raises(RuntimeError, match="of the program"), sluice.trace(tmp_path) as block:
        train(fails_at=5)

    assert block.num_steps == 5
    assert block.reports[0].conclusion.ending == "failed"


def test_a_block_without_training_states_that_nothing_was_traced(tmp_path):
    with sluice.trace(tmp_path) as block:
        pass

    assert (block.findings, block.num_steps) == ((), 0)
    assert "no training was traced" in block._repr_html_()
    assert "stored in" not in block._repr_html_()  # the folder does not exist
    with pytest.raises(StorageError, match="No training was traced"):
        block.replay()


def test_a_block_inside_another_trace_records_nothing(tmp_path):
    with traced(tmp_path / "outer", TraceSettings()), sluice.trace(tmp_path / "inner") as block:
        train(clears=False)

    assert repr(block) == "<TracedBlock: recorded by the outer trace>"
    assert block.findings == ()
    with pytest.raises(StorageError, match="an outer trace recorded it"):
        block.replay()
    assert not list((tmp_path / "inner").rglob("*.*"))


def test_traces_are_stored_in_the_state_folder_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))

    with sluice.trace() as block:
        train()

    assert block.folder.is_relative_to(tmp_path / "home" / "traces")
    assert block.num_steps == 12
