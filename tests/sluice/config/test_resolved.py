"""The user's class is instantiated once, and digests follow the current code of its files."""

import sys
from pathlib import Path

import pytest

from sluice.assets.receipt_subjects import candidate_subject, feature_producer, search_subject
from sluice.base.errors import SettingsError
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from tests.support.counted import BuildCounter

HELPED = """
from {name}_helper import FACTOR
from tests.support.echo import Echo


class Helped(Echo):
    factor = FACTOR
"""
OPTIMIZER = """
import torch


class Own(torch.optim.SGD):
    pass
"""


def parse_settings(workload: str, **more) -> PipelineSettings:
    return PipelineSettings.parse({"name": "own", "workload": workload} | more, where="defs.yaml")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> PipelineSettings:
    monkeypatch.setattr(BuildCounter, "builds_by_module", type(BuildCounter.builds_by_module)())
    seq_len = {"kind": "integers", "low": 2, "high": 4}
    return parse_settings(
        "tests.support.counted:BuildCounter",
        workload_settings={"num_rows": 500},
        space={"parameters": {"workload.seq_len": seq_len}},
    )


def test_values_derived_from_a_pipeline_do_not_build_the_class_again(
    counted: PipelineSettings,
) -> None:
    pipeline = resolve(counted)

    for _ in range(2):
        search_subject(pipeline.search, "data")
        candidate_subject(pipeline.training, "data")
        feature_producer(pipeline.workload, path=counted.workload)
        assert pipeline.search.base.with_settings(pipeline.search.trial_settings).config_digest
        assert pipeline.search.space.parameters.keys() == {"workload.seq_len"}

    assert BuildCounter.builds_by_module == {"resolved": 1}


def test_searched_workload_setting_builds_the_class_again(
    counted: PipelineSettings,
) -> None:
    inputs = resolve(counted).search
    found = inputs.trial_settings.with_params({"workload.seq_len": 4}, where="test")

    tuned = inputs.base.with_settings(found)

    assert BuildCounter.builds_by_module == {"resolved": 2}
    assert tuned.workload.settings.model_dump(exclude={"folds"}) == {"num_rows": 500, "seq_len": 4}
    assert inputs.base.workload.settings.seq_len == 2
    assert tuned.config_digest != inputs.base.config_digest


def test_reading_settings_imports_no_user_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "sluice_probe_broken"
    (tmp_path / f"{name}.py").write_text("x = 1\nraise RuntimeError('out of order')\n")
    monkeypatch.syspath_prepend(tmp_path)

    settings = parse_settings(f"{name}:Own", model={"architecture": f"{name}:Net"})

    assert name not in sys.modules
    with pytest.raises(SettingsError, match=rf"out of order.*{name}\.py.*line 2"):
        resolve(settings)


def test_file_that_changes_after_the_build_changes_the_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule runs in a process that started before the change."""
    name = "sluice_probe_resolved"
    (tmp_path / f"{name}.py").write_text(HELPED.format(name=name))
    helper, optimizer = tmp_path / f"{name}_helper.py", tmp_path / f"{name}_optimizer.py"
    helper.write_text("FACTOR = 1\n")
    optimizer.write_text(OPTIMIZER)
    monkeypatch.syspath_prepend(tmp_path)
    pipeline = resolve(
        parse_settings(f"{name}:Helped", training={"optimizer": f"{name}_optimizer:Own"})
    )

    def compute_digests() -> dict[str, str]:
        producer = feature_producer(pipeline.workload, path=pipeline.settings.workload)
        return candidate_subject(pipeline.training, "data") | {"features": producer}

    before = compute_digests()
    assert compute_digests() == before
    helper.write_text("FACTOR = 2\n")
    after_helper_change = compute_digests()
    assert {role for role in before if before[role] != after_helper_change[role]} == {
        "code",
        "features",
    }
    optimizer.write_text(f"{OPTIMIZER}    step_size = 2\n")
    assert {role for role in before if after_helper_change[role] != compute_digests()[role]} == {
        "config"
    }
