"""Import of a model's predictions from a real MLflow server as the baseline of a pipeline."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, SettingsError, SourceError, UnknownVersion
from sluice.evaluation.imported_baseline import GATE, find_baseline
from sluice.evaluation.simple_rules import BaselineSettings
from sluice.registry.ledger import Ledger
from sluice.tracking.mlflow_predictions import MlflowModel, _fetch
from tests.sluice.cli.test_registry import invoke
from tests.sluice.registry.ledger_samples import Clock
from tests.sluice.tracking.test_mlflow_mirror import find_free_port
from tests.sluice.tracking.test_mlflow_mirror import server as server
from tests.support.echo import Echo, EchoSettings

mlflow = pytest.importorskip("mlflow")
MlflowException = mlflow.exceptions.MlflowException

PIPELINE = str(Path(__file__).parents[2] / "support" / "echo.yaml")
WORKLOAD = Echo(EchoSettings())
FRAME = WORKLOAD.compute_features(WORKLOAD.load_rows())
FOLDS = WORKLOAD.plan_folds(FRAME)
MODEL_URI = "mlflow:/twice/1"
MODEL_CODE = """
from pathlib import Path

import mlflow

Path({loaded_marker!r}).touch()


class Twice(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        print("a model may print")
        return {output}


mlflow.models.set_model(Twice())
"""


def register_models(server: str, folder: Path) -> Path:
    """Register two versions of the model 'twice'; return the marker file that loading creates."""
    with warnings.catch_warnings():  # MLflow warns about type hints
        warnings.simplefilter("ignore")
        return _register_models(server, folder)


def _register_models(server: str, folder: Path) -> Path:
    import mlflow.pyfunc

    loaded_marker = folder / "loaded"
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
        code.write_text(MODEL_CODE.format(loaded_marker=str(loaded_marker), output=output))
        model = folder / f"model_{number}"
        mlflow.pyfunc.save_model(model, python_model=str(code), pip_requirements=[])
        client.log_artifacts(run.info.run_id, str(model), "model")
        source = f"{run.info.artifact_uri}/model"
        client.create_model_version("twice", source, run_id=run.info.run_id)
    loaded_marker.unlink()  # saving a model also runs its code
    return loaded_marker


def run_import(server: str, *options: str, source: str = MODEL_URI) -> dict[str, object]:
    arguments = ("import", source, "--pipeline", PIPELINE, "--uri", server, "--actor", "ada")
    receipt: dict[str, object] = json.loads(invoke(*arguments, *options, "--json"))
    return receipt


@pytest.mark.slow
def test_predictions_and_trusted_models_are_imported_and_other_imports_are_rejected(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    for name in ("SLUICE_REGISTRY_URL", "SLUICE_ACTOR", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    loaded_marker = register_models(server, tmp_path)
    csv = ("--predictions", "predictions.csv")

    unreachable_url = f"http://127.0.0.1:{find_free_port()}"
    for options, source, error, message in (
        ((), MODEL_URI, SettingsError, "neither.*can execute any code.*--trust mlflow:/twice/1"),
        ((*csv, "--trust", MODEL_URI), MODEL_URI, SettingsError, "got both"),
        (("--trust", "mlflow:/twice/2"), MODEL_URI, SettingsError, "got neither"),
        (csv, "mlflow:/twice/9", UnknownVersion, "has no mlflow:/twice/9"),
        (("--predictions", "gone.csv"), MODEL_URI, SourceError, "no file 'gone.csv'"),
        (
            ("--predictions", "few.parquet"),
            MODEL_URI,
            ContractError,
            "are missing; the first is row",
        ),
        (
            ("--trust", "mlflow:/twice/2"),
            "mlflow:/twice/2",
            ContractError,
            "could not predict on the features of the pipeline: KeyError",
        ),
    ):
        loaded_marker.unlink(missing_ok=True)
        with pytest.raises(error, match=message):
            run_import(server, *options, source=source)
        assert loaded_marker.exists() == (error is ContractError and "2" in source)
    loaded_marker.unlink()
    with pytest.raises(SourceError, match=rf"from the MLflow server {unreachable_url} failed"):
        run_import(unreachable_url, *csv)

    from_file = run_import(server, *csv)
    assert not loaded_marker.exists()
    from_model = run_import(server, "--trust", MODEL_URI)
    assert loaded_marker.exists()

    trusted_flags = []
    store = ArtifactStore(tmp_path / "home" / "artifacts")
    settings = BaselineSettings(predictions=MODEL_URI)
    with Ledger.open(f"sqlite:///{tmp_path / 'home' / 'registry.db'}", clock=Clock()) as ledger:
        for receipt in (from_file, from_model):
            stored = ledger.find_receipt(GATE, dict(receipt["subject"]))  # type: ignore[call-overload]
            assert stored is not None
            assert stored.digest == receipt["digest"]
            assert (stored.evidence["actor"], stored.evidence["uri"]) == ("ada", server)
            trusted_flags.append(stored.evidence["trusted"])
        baseline = find_baseline(ledger, "echo", settings, store, WORKLOAD, FRAME, FOLDS)
    assert trusted_flags == [False, True]
    for fold in FOLDS:
        call = FRAME["call"].to_numpy()[WORKLOAD.examples(FRAME, fold.test).rows]
        assert baseline.outputs[fold.fold_id][:, 0].numpy() == pytest.approx(2 * call)


@pytest.mark.parametrize(
    "source",
    ["mlflow:/demand", "mlflow:/demand/champion", "mlflow:/demand@champion", "mlflow:/a/0"],
)
def test_model_uri_without_a_version_number_is_rejected(source: str) -> None:
    with pytest.raises(SettingsError, match="mlflow:/NAME/VERSION"):
        MlflowModel.parse(source)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((MODEL_URI,), "requires --pipeline, which is missing"),
        (
            (MODEL_URI, "--pipeline", PIPELINE, "--predictions", "p.csv"),
            "address of the MLflow server",
        ),
        (("a.sluice", "--pipeline", PIPELINE), "require an import from MLflow"),
    ],
)
def test_missing_or_conflicting_options_are_reported(
    options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    with pytest.raises(SettingsError, match=message):
        invoke("import", *options)


@pytest.mark.parametrize(
    ("artifacts", "problem"),
    [([], "artifact"), (["data/predictions.parquet"], "server")],
)
def test_failed_download_of_a_listed_artifact_is_a_server_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, artifacts: list[str], problem: str
) -> None:
    class Client:
        def __init__(self, *_: object, **__: object) -> None: ...

        def get_model_version(self, name: str, version: str) -> SimpleNamespace:
            return SimpleNamespace(run_id=f"run of {name} {version}")

        def download_artifacts(self, *_: object) -> str:
            raise MlflowException("503 Service Unavailable")

        def list_artifacts(self, run_id: str, folder: str) -> list[SimpleNamespace]:
            assert (run_id, folder) == ("run of twice 1", "data")
            return [SimpleNamespace(path=path) for path in artifacts]

    monkeypatch.setattr(mlflow, "MlflowClient", Client)
    payload = {"uri": "http://h", "name": "twice", "version": "1", "folder": str(tmp_path)}

    result = _fetch(payload | {"artifact": "data/predictions.parquet"})

    assert result == {"problem": problem, "message": "503 Service Unavailable"}
