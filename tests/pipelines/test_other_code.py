"""A pipeline whose own modules changed while an earlier version is in production."""

from pathlib import Path

import pytest

from sluice.assets.evaluation_record import Evaluation
from sluice.base.errors import ContractError
from sluice.config.pipeline import PipelineSettings
from sluice.models.settings import ModelSettings
from sluice.registry.stored_code import CODE_ROLE
from sluice.training.members import TrainedModels
from tests.pipelines.conftest import Runner, home_at, ledger_of
from tests.sluice.registry.code_samples import UserCode


@pytest.mark.exhaustive
@pytest.mark.slow
def test_production_with_other_code_is_refused_or_scored_with_its_stored_code(
    short_echo: PipelineSettings, run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = UserCode(tmp_path / "user", monkeypatch)
    user.change("def activation(x):\n    return x\n")
    home = home_at(tmp_path / "home")
    pipeline = short_echo.model_copy(update={"model": ModelSettings(architecture="probe_net:Net")})
    assert run(pipeline, home).promoted
    with ledger_of(home) as ledger:
        lineage = ledger.production("echo").lineage
    assert lineage.code_identity.digest == lineage.code
    assert CODE_ROLE in lineage.artifacts
    user.change("def activation(x):\n    return 2 * x + 1\n")

    with pytest.raises(ContractError, match="module probe_layers changed"):
        run(pipeline, home)

    records = home.records / "echo"
    trained = TrainedModels.model_validate_json((records / "trained_models.json").read_bytes())
    assert trained.code == lineage.code

    report = run(pipeline.model_copy(update={"production_code": "stored"}), home)

    assert (report.version, report.created) == (2, True)
    evaluation = Evaluation.model_validate_json((records / "evaluation.json").read_bytes())
    assert evaluation.reference.losses.subject == lineage.candidate
    assert "scored with its stored code" in evaluation.reference_code
