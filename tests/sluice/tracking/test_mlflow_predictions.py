"""Predictions of models on a real MLflow server become the baseline of a pipeline."""

import json
import warnings
from pathlib import Path

import pandas as pd
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, SettingsError, SourceError, UnknownVersion
from sluice.evaluation.imported_baseline import GATE, find_baseline
from sluice.evaluation.simple_rules import BaselineSettings
from sluice.registry.ledger import Ledger
from sluice.tracking.mlflow_predictions import MlflowModel
from tests.sluice.cli.test_registry import invoke
from tests.sluice.registry.ledger_samples import Clock
from tests.sluice.tracking.test_mlflow_mirror import free_port
from tests.sluice.tracking.test_mlflow_mirror import server as server
from tests.support.echo import Echo, EchoSettings

mlflow = pytest.importorskip("mlflow")

PIPELINE = str(Path(__file__).parents[2] / "support" / "echo.yaml")
WORKLOAD = Echo(EchoSettings())
FRAME = WORKLOAD.compute_features(WORKLOAD.load_rows())
FOLDS = WORKLOAD.plan_folds(FRAME)
TWICE = "mlflow:/twice/1"
CODE = """
from pathlib import Path

import mlflow

Path({loaded!r}).touch()


class Twice(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        print("a model may print")
        return {output}


mlflow.models.set_model(Twice())
"""


def register_models(server: str, folder: Path) -> Path:
    """Register two versions of the model 'twice'; return the file that loading one creates."""
    with warnings.catch_warnings():  # MLflow warns about its own type hints
        warnings.simplefilter("ignore")
        return _register_models(server, folder)


def _register_models(server: str, folder: Path) -> Path:
    import mlflow.pyfunc

    loaded = folder / "loaded"
    client = mlflow.MlflowClient(server, registry_uri=server)
    client.create_registered_model("twice")
    experiment = client.create_experiment("twice")
    predicted = pd.DataFrame({"row": FRAME.index, "prediction": 3 * FRAME["call"]})
    predicted.to_csv(folder / "predictions.csv", index=False)
    predicted[:-5].to_parquet(folder / "few.parquet")
    for number, output in enumerate(('2 * model_input["call"]', 'model_input["no_such"]')):
        run = client.create_run(experiment)
        for name in ("predictions.csv", "few.parquet"):
            client.log_artifact(run.info.run_id, str(folder / name))
        code = folder / f"twice_{number}.py"
        code.write_text(CODE.format(loaded=str(loaded), output=output))
        model = folder / f"model_{number}"
        mlflow.pyfunc.save_model(model, python_model=str(code), pip_requirements=[])
        client.log_artifacts(run.info.run_id, str(model), "model")
        source = f"{run.info.artifact_uri}/model"
        client.create_model_version("twice", source, run_id=run.info.run_id)
    loaded.unlink()  # saving a model runs its code too
    return loaded


def run_import(server: str, *options: str, source: str = TWICE) -> dict[str, object]:
    given = ("import", source, "--pipeline", PIPELINE, "--uri", server, "--actor", "ada")
    receipt: dict[str, object] = json.loads(invoke(*given, *options, "--json"))
    return receipt


@pytest.mark.slow
def test_predictions_and_a_trusted_model_are_imported_and_everything_else_is_refused(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    for name in ("SLUICE_REGISTRY_URL", "SLUICE_ACTOR", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    loaded = register_models(server, tmp_path)
    csv = ("--predictions", "predictions.csv")

    nowhere = f"http://127.0.0.1:{free_port()}"
    for options, source, error, what in (
        ((), TWICE, SettingsError, "neither.*can execute any code.*--trust mlflow:/twice/1"),
        ((*csv, "--trust", TWICE), TWICE, SettingsError, "got both"),
        (("--trust", "mlflow:/twice/2"), TWICE, SettingsError, "got neither"),
        (csv, "mlflow:/twice/9", UnknownVersion, "has no mlflow:/twice/9"),
        (("--predictions", "gone.csv"), TWICE, SourceError, "no file 'gone.csv'"),
        (("--predictions", "few.parquet"), TWICE, ContractError, "are missing; the first is row"),
        (
            ("--trust", "mlflow:/twice/2"),
            "mlflow:/twice/2",
            ContractError,
            "could not predict on the features of the pipeline: KeyError",
        ),
    ):
        loaded.unlink(missing_ok=True)
        with pytest.raises(error, match=what):
            run_import(server, *options, source=source)
        assert loaded.exists() == (error is ContractError and "2" in source)
    loaded.unlink()
    with pytest.raises(SourceError, match=rf"from the MLflow server {nowhere} failed"):
        run_import(nowhere, *csv)

    of_file = run_import(server, *csv)
    assert not loaded.exists()
    of_model = run_import(server, "--trust", TWICE)
    assert loaded.exists()

    baselines = []
    store = ArtifactStore(tmp_path / "home" / "artifacts")
    settings = BaselineSettings(predictions=TWICE)
    with Ledger.open(f"sqlite:///{tmp_path / 'home' / 'registry.db'}", clock=Clock()) as ledger:
        for receipt in (of_file, of_model):
            stored = ledger.find_receipt(GATE, dict(receipt["subject"]))  # type: ignore[call-overload]
            assert stored is not None
            assert stored.digest == receipt["digest"]
            assert (stored.evidence["actor"], stored.evidence["uri"]) == ("ada", server)
            baselines.append(stored.evidence["trusted"])
        found = find_baseline(ledger, "echo", settings, store, WORKLOAD, FRAME, FOLDS)
    assert baselines == [False, True]
    for fold in FOLDS:
        call = FRAME["call"].to_numpy()[WORKLOAD.examples(FRAME, fold.test).rows]
        assert found.outputs[fold.fold_id][:, 0].numpy() == pytest.approx(2 * call)


@pytest.mark.parametrize(
    "source",
    ["mlflow:/demand", "mlflow:/demand/champion", "mlflow:/demand@champion", "mlflow:/a/0"],
)
def test_a_model_is_named_by_the_number_of_its_version(source: str) -> None:
    with pytest.raises(SettingsError, match="mlflow:/NAME/VERSION"):
        MlflowModel.parse(source)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ((TWICE,), "--pipeline is missing"),
        ((TWICE, "--pipeline", PIPELINE, "--predictions", "p.csv"), "address of the MLflow server"),
        (("a.sluice", "--pipeline", PIPELINE), "belong to an import from MLflow"),
    ],
)
def test_missing_options_are_named(
    options: tuple[str, ...], what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    with pytest.raises(SettingsError, match=what):
        invoke("import", *options)
