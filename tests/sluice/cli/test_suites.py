"""``sluice suites`` on a registered version of a small pipeline (DATA-5)."""

import json
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json
from sluice.base.errors import ContractError, SettingsError, UnknownVersion, UntrustedCode
from sluice.cli import suites
from sluice.config.pipeline_file import COMPONENT
from sluice.models.settings import ModelSettings
from sluice.registry.code_paths import CodeAcceptance
from sluice.registry.ledger import Ledger
from sluice.training.code import code_digest
from sluice.training.weights import pack_model
from sluice.workloads.prepare_model import prepare_model
from tests.sluice.evaluation.scored_workload import make_member
from tests.sluice.registry.ledger_samples import Clock, sample_lineage
from tests.support.echo import Echo

MODEL = ModelSettings(architecture="linear")


def register_echo(home: Path) -> None:
    """Register a version of untrained networks, with two seeds per fold."""
    store, workload = ArtifactStore(home / "artifacts"), Echo()
    frame = workload.compute_features(workload.load_rows())
    members = tuple(
        make_member(seed, fold.fold_id, through=str(frame.index[fold.val.stop - 1])).model_copy(
            update={
                "weights": store.put(
                    pack_model(
                        prepare_model(
                            workload, MODEL, workload.examples(frame, fold.train), seed=seed
                        )
                    )
                )
            }
        )
        for seed in (0, 1)
        for fold in workload.plan_folds(frame)
    )
    settings = {
        "workload": "tests.support.echo:Echo",
        "workload_settings": workload.settings.model_dump(mode="json"),
        "model": MODEL.model_dump(mode="json"),
    }
    lineage = sample_lineage(store, model="echo").model_copy(
        update={
            "members": members,
            "code": code_digest(workload, MODEL),
            "config": digest_json(settings),
            "resolved_config": settings,
        }
    )
    lineage = lineage.model_copy(update={"candidate": lineage.compute_candidate()})
    with Ledger.open(f"sqlite:///{home / 'registry.db'}", clock=Clock()) as ledger:
        ledger.register("echo", lineage, [])


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    register_echo(folder)
    return folder


@pytest.fixture
def sluice(home, tmp_path, monkeypatch):
    """Return a function that runs a ``suites`` command with the suites of this test only."""
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.delenv("SLUICE_REGISTRY_URL", raising=False)
    attributes = {"name": "echo", "workload": "tests.support.echo:Echo"}
    for folder in (home / "suites", home / "reports"):
        if folder.exists():
            folder.rename(tmp_path / folder.name)

    def run(command: str, *arguments: object, guards: list | None = None):
        path = tmp_path / "defs.yaml"
        pipeline_attributes = attributes | ({"suites": {"guards": guards}} if guards else {})
        path.write_text(yaml.safe_dump({"type": COMPONENT, "attributes": pipeline_attributes}))
        app = typer.Typer()
        suites.register(app)
        app.callback()(lambda: None)
        return CliRunner().invoke(
            app, ["suites", command, str(path), *map(str, arguments)], catch_exceptions=True
        )

    return run


def test_suites_are_added_listed_shown_and_run(sluice, home, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("row,reason\n700,[odd] noise\n3,early\n")
    assert "No suite exists yet" in sluice("list").stdout

    assert "Suite loud version 1" in sluice("add", "loud", "--query", "call > 2").stdout
    assert sluice("add", "mine", "--file", rows).exit_code == 0
    hard = sluice("add", "hard", "--hard", "--json")
    assert json.loads(hard.stdout)["num_rows"] == 27  # 5 % of 540 test rows

    listed = json.loads(sluice("list", "--json").stdout)
    assert [(entry["name"], entry["kind"]) for entry in listed] == [
        ("hard", "highest_loss"),
        ("loud", "query"),
        ("mine", "file"),
    ]
    shown = sluice("show", "mine").stdout
    assert "[odd] noise" in shown
    assert json.loads(sluice("show", "mine", "--json").stdout)["version"] == 1

    report = json.loads(sluice("run", "--json").stdout)
    by_name = {result["name"]: result for result in report["results"]}
    assert by_name["mine"]["seen"] == ["3"]
    assert [row["label"] for row in by_name["mine"]["rows"]] == ["700"]
    assert by_name["hard"]["num_rows"] == len(by_name["hard"]["rows"]) == 27
    assert report["outcome"] == "pass"
    assert Path(report["page"]).is_relative_to(home / "reports")
    assert "mine v1" in sluice("run").stdout


def test_failed_guard_exits_with_1(sluice):
    sluice("add", "loud", "--query", "call > 2")

    result = sluice("run", guards=[{"suite": "loud", "min_fixed": 10_000}])

    assert result.exit_code == 1
    assert "required 10000" in result.stdout
    assert sluice("run", guards=[{"suite": "loud", "max_broken_share": 1.0}]).exit_code == 0


def test_suite_is_replaced_only_with_revise(sluice):
    sluice("add", "loud", "--query", "call > 2")

    assert isinstance(sluice("add", "loud", "--query", "call > 1").exception, ContractError)
    assert "version 2" in sluice("add", "loud", "--query", "call > 1", "--revise").stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("add", "x"), SettingsError),
        (("add", "x", "--hard", "--query", "call > 1"), SettingsError),
        (("add", "x", "--query", "cal > 1"), ContractError),
        (("add", "x", "--query", "call.where.__func__.__globals__['os'] > 1"), ContractError),
        (("show", "x"), ContractError),
        (("run",), SettingsError),
    ],
)
def test_invalid_arguments_are_user_errors(sluice, arguments, error):
    found = sluice(*arguments).exception

    assert isinstance(found, error)
    assert found.exit_code == 2


def test_unknown_version_is_reported(sluice):
    sluice("add", "loud", "--query", "call > 2")

    assert isinstance(sluice("run", "--version", 9).exception, UnknownVersion)


@pytest.mark.slow
def test_imported_version_is_never_the_default(sluice, home, tmp_path, monkeypatch):
    """The newest version is imported: it is used only by its number, and its code is refused."""
    marker = tmp_path / "executed"
    (tmp_path / "evil_net.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sluice("add", "loud", "--query", "call > 2")
    with Ledger.open(f"sqlite:///{home / 'registry.db'}", clock=Clock()) as ledger:
        lineage = ledger.version("echo", 1).lineage
        settings = lineage.resolved_config | {"model": {"architecture": "evil_net:Net"}}
        changes = {"resolved_config": settings, "config": digest_json(settings)}
        lineage = lineage.model_copy(update=changes)
        lineage = lineage.model_copy(update={"candidate": lineage.compute_candidate()})
        no_code = CodeAcceptance(accepted_paths=(), trusted_paths=())
        ledger.import_version(lineage, [], actor="eve", reason="a file", code=no_code)
        assert [version.is_imported for version in ledger.versions("echo")] == [False, True]

    assert "version-1" in json.loads(sluice("run", "--json").stdout)["page"]
    assert sluice("add", "hard", "--hard").exit_code == 0
    refused = sluice("run", "--version", 2).exception

    assert isinstance(refused, UntrustedCode)
    assert "evil_net:Net" in str(refused)
    assert not marker.exists()
