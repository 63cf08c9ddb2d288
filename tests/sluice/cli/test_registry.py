"""``sluice registry``: output for people and as JSON."""

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import (
    ContractError,
    GateBlocked,
    IntegrityError,
    SettingsError,
    SluiceError,
    UnknownVersion,
    UntrustedCode,
)
from sluice.cli import registry
from sluice.registry.ledger import Ledger
from tests.sluice.registry.hostile_files import forge_version
from tests.sluice.registry.ledger_samples import (
    CODE,
    CONFIG,
    DATA,
    MODEL,
    Clock,
    artifact_path,
    promote_chain,
    register_sample,
)
from tests.sluice.registry.test_roles import make_personal_key, write_key_list


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry with versions 1 and 2 promoted in turn, and 3 approved against 2."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("SLUICE_REGISTRY_URL", raising=False)
    monkeypatch.delenv("SLUICE_ACTOR", raising=False)
    store = ArtifactStore(tmp_path / "artifacts")
    with Ledger.open(f"sqlite:///{tmp_path / 'registry.db'}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 2)
        register_sample(ledger, store, salt=3, reference=ledger.version(MODEL, 2).candidate)
    return tmp_path


def invoke(*arguments: str) -> str:
    """Run a command in this process; return its output, or raise its error."""
    app = typer.Typer()
    registry.register(app)
    app.callback()(lambda: None)
    result = CliRunner().invoke(app, ["registry", *arguments])
    if isinstance(result.exception, SluiceError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def invoke_json(*arguments: str) -> Any:
    return json.loads(invoke(*arguments, "--json"))


@pytest.mark.usefixtures("home")
def test_list_has_one_line_per_version() -> None:
    lines = [line.split() for line in invoke("list").splitlines()[2:]]

    assert [line[:3] for line in lines] == [
        [MODEL, "1", "archived"],
        [MODEL, "2", "production"],
        [MODEL, "3", "staging"],
    ]
    assert invoke("list") == invoke("list", MODEL)
    listed = invoke_json("list")
    assert [(v["number"], v["state"]) for v in listed] == [
        (1, "archived"),
        (2, "production"),
        (3, "staging"),
    ]


@pytest.mark.usefixtures("home")
def test_show_has_lineage_numbers_and_receipts() -> None:
    """Shows the version, its lineage and the numbers of the promotion gate."""
    page = invoke("show", MODEL, "2")

    assert page.startswith(f"{MODEL}  version 2  production\n")
    for digest in (DATA, CONFIG, CODE, "4f" * 20):
        assert digest in page
    for text in ("PROMOTE against version 1", "gain", "0.054", "0.0004", "effect size  ", "0.31"):
        assert text in page
    assert ["1", "0.047", "-", "0.1", "739"] in [line.split() for line in page.splitlines()]
    assert next(
        line.split()[1:] for line in page.splitlines() if line.strip().startswith("libraries")
    ) == ["torch", "2.13.0,", "numpy", "2.3.1"]
    assert "poc " in page
    assert max(len(line.rstrip()) for line in page.splitlines()) <= 100


@pytest.mark.usefixtures("home")
def test_show_defaults_to_the_version_in_production() -> None:
    assert invoke("show", MODEL) == invoke("show", MODEL, "2")


def test_show_defaults_to_the_newest_version_without_production(home: Path) -> None:
    store = ArtifactStore(home / "artifacts")
    with Ledger.open(f"sqlite:///{home / 'registry.db'}", clock=Clock()) as ledger:
        lineage = ledger.version(MODEL, 1).lineage.model_copy(update={"model": "other"})
        for _ in range(2):
            ledger.register("other", lineage, [])
            lineage = lineage.model_copy(update={"data": "b" * 64})
            lineage = lineage.model_copy(update={"candidate": lineage.compute_candidate()})

    page = invoke("show", "other")

    assert page.startswith("other  version 2  dev\n")
    assert "this version cannot be promoted" in page
    assert store.path(lineage.members[0].weights).exists()


@pytest.mark.usefixtures("home")
def test_show_as_json_is_strict_json() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    shown = json.loads(invoke("show", MODEL, "2", "--json"), parse_constant=refuse)

    assert shown["lineage"]["data"] == DATA
    assert [receipt["gate"] for receipt in shown["receipts"]] == ["poc", "promotion"]
    assert shown["receipts"][1]["evidence"]["folds"][1]["low"] is None
    assert len(shown["receipts"][1]["digest"]) == 64


@pytest.mark.usefixtures("home")
def test_promotion_and_rollback_move_production_and_are_in_the_history() -> None:
    """The history records actor and reason of each move (REG-2)."""
    printed = invoke("promote", MODEL, "3", "--reason", "agreed [in] review", "--actor", "ada")
    assert printed.strip() == f"{MODEL}: production is now version 3 (before: version 2)."
    assert "already" in invoke("promote", MODEL, "3", "--reason", "again")

    moved = invoke_json("rollback", MODEL, "--reason", "errors since noon")
    assert (moved["version"], moved["previous"], moved["moved"]) == (2, 3, True)

    last = invoke_json("history", MODEL)[-2:]
    assert [(e["action"], e["actor"], e["reason"]) for e in last] == [
        ("promote", "ada", "agreed [in] review"),
        ("rollback", registry.current_user(), "errors since noon"),
    ]
    table = invoke("history", MODEL)
    assert "agreed [in] review" in table
    assert "3 -> 2" in table
    assert "none -> 1" in table


@pytest.mark.usefixtures("home")
def test_actor_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_ACTOR", "night shift")
    invoke("rollback", MODEL, "--reason", "r")

    assert invoke_json("history", MODEL)[-1]["actor"] == "night shift"


@pytest.mark.usefixtures("home")
def test_promote_command_does_not_bypass_the_gate() -> None:
    with pytest.raises(GateBlocked, match="about another reference"):
        invoke("promote", MODEL, "1", "--reason", "I want it", "--reinstate")
    with pytest.raises(ContractError, match="The reason of a change"):
        invoke("promote", MODEL, "3", "--reason", "")


@pytest.mark.usefixtures("home")
def test_reason_is_required() -> None:
    app = typer.Typer()
    registry.register(app)
    app.callback()(lambda: None)
    for arguments in (["promote", MODEL, "3"], ["rollback", MODEL]):
        result = CliRunner().invoke(app, ["registry", *arguments])

        assert result.exit_code == 2
        assert "--reason" in result.output


def test_verify_reports_a_damaged_artifact(home: Path) -> None:
    assert invoke("verify").strip() == "No problem found in 3 versions."
    assert invoke_json("verify", MODEL) == {"findings": []}
    with Ledger.open(f"sqlite:///{home / 'registry.db'}", clock=Clock()) as ledger:
        weights = ledger.version(MODEL, 1).lineage.members[0].weights
    artifact_path(home / "artifacts", weights).write_bytes(b"x")

    app = typer.Typer()
    registry.register(app)
    app.callback()(lambda: None)
    result = CliRunner().invoke(app, ["registry", "verify"])

    assert isinstance(result.exception, IntegrityError)
    assert "1 finding." in str(result.exception)
    assert "weights of seed 0 fold 0" in " ".join(result.stdout.split())


def test_verify_in_a_home_without_the_artifacts_reports_the_missing_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_REGISTRY_URL", f"sqlite:///{home / 'registry.db'}")
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "second"))

    app = typer.Typer()
    registry.register(app)
    app.callback()(lambda: None)
    error = CliRunner().invoke(app, ["registry", "verify"]).exception
    result = CliRunner().invoke(app, ["registry", "verify", "--json"])

    assert isinstance(error, IntegrityError)
    assert "Registry and artifacts do not match: 1 finding." in str(error)
    (finding,) = json.loads(result.stdout)["findings"]
    assert "is shared, but the artifact folder of this home is not" in finding["what"]


@pytest.mark.usefixtures("home")
def test_at_returns_the_version_in_production_at_a_time() -> None:
    moves = [e for e in invoke_json("history", MODEL) if e["revision"] is not None]
    second = invoke_json("at", MODEL, moves[1]["at"])
    assert (second["to_version"], second["actor"]) == (2, "ada")

    page = invoke("at", MODEL, moves[0]["at"])
    assert page.startswith(f"{MODEL}: version 1 was in production since this change:")
    assert "none -> 1" in page
    assert "nothing was in production" in invoke("at", MODEL, "2020-01-01T00:00:00Z")
    assert invoke_json("at", MODEL, "2020-01-01T00:00:00+05:00") is None
    with pytest.raises(ContractError, match="must have a time zone"):
        invoke("at", MODEL, "2025-03-14T10:00:00")
    with pytest.raises(ContractError, match="ISO 8601 is required, got 'yesterday'"):
        invoke("at", MODEL, "yesterday")


def test_version_is_exported_and_imported_as_one_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "v2.sluice"
    exported = invoke_json("export", MODEL, "2", str(file))
    assert (exported["version"], len(exported["sha256"])) == (2, 64)
    assert "was written to" in invoke("export", MODEL, "2", str(file))

    monkeypatch.setenv("SLUICE_HOME", str(home / "elsewhere"))
    with pytest.raises(UntrustedCode, match=r"but names tests\.support\.synthetic:SineWorkload"):
        invoke("import", str(file))
    import_command = ("import", str(file), "--trust", "tests.support.synthetic:SineWorkload")
    assert (
        invoke(*import_command, "--actor", "eve").strip()
        == f"{MODEL} version 1, dev. The file is unsigned."
    )
    assert "already registered" in invoke(*import_command)
    assert not invoke_json(*import_command)["created"]

    shown = invoke_json("show", MODEL, "1")
    assert (shown["state"], shown["receipts"]) == ("dev", [])
    assert [r["gate"] for r in shown["imported_receipts"]] == ["poc", "promotion"]
    assert "Receipts from another registry" in invoke("show", MODEL, "1")
    audit = " ".join(invoke("history", MODEL).split())
    assert "imported from v2.sluice" in audit
    assert "trust 1 eve tests.support.synthetic:SineWorkload" in audit.replace("none -> ", "")
    assert "No problem found" in invoke("verify")
    with pytest.raises(UnknownVersion, match="has only imported versions: 1"):
        invoke("show", MODEL)


def test_signature_identifies_who_exported_a_version(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, private, trusted = tmp_path / "v2.sluice", tmp_path / "team_a.pem", tmp_path / "trusted"
    key_pair = invoke_json("new-key", str(private), "--name", "team_a")
    trusted.write_text(Path(f"{private}.pub").read_text())
    assert trusted.read_text() == f"team_a {key_pair['public_key']}\n"
    invoke("export", MODEL, "2", str(file), "--private-key", str(private))
    unsigned = tmp_path / "unsigned.sluice"
    invoke("export", MODEL, "2", str(unsigned))

    monkeypatch.setenv("SLUICE_HOME", str(home / "elsewhere"))
    code = ("--trust", "tests.support.synthetic:SineWorkload")
    with pytest.raises(IntegrityError, match=r"trusted key \(team_a\), but is unsigned"):
        invoke("import", str(unsigned), *code, "--trusted-keys", str(trusted))
    monkeypatch.setenv("SLUICE_TRUSTED_KEYS", str(trusted))
    with pytest.raises(IntegrityError, match="but is unsigned"):
        invoke("import", str(unsigned), *code)
    printed = invoke("import", str(file), *code)

    assert printed.strip() == f"{MODEL} version 1, dev. The file is signed by team_a."


def test_escape_codes_of_an_imported_version_do_not_reach_the_terminal(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, evil = tmp_path / "v3.sluice", "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31m\u202e\rpassed"
    invoke("export", MODEL, "3", str(file))

    def forge(version: dict[str, Any]) -> None:
        for receipt in version["receipts"]:
            receipt["reason"] = evil
        version["lineage"]["metrics"] = {evil: 1.0}
        version["lineage"]["git"]["commit"] = evil
        version["lineage"]["environment"]["libraries"] = {evil: evil}
        version["lineage"]["environment"]["device"] = evil

    forge_version(file, forge)
    monkeypatch.setenv("SLUICE_HOME", str(home / "elsewhere"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    invoke("import", str(file), "--trust", "tests.support.synthetic:SineWorkload")

    for command in (("list",), ("show", MODEL, "1"), ("history", MODEL)):
        for arguments in (command, (*command, "--json")):
            printed = re.sub(r"\x1b\[[0-9;]*m", "", invoke(*arguments))  # remove the colours
            assert not [c for c in printed if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"]
    assert r"\x1b[2J" in invoke("show", MODEL, "1")
    assert "\x1b" not in str(ContractError(evil, fix=evil))


def test_key_file_signs_and_verifies(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = home / "registry.key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    with pytest.raises(IntegrityError, match="1 finding"):
        invoke("verify", "--key", str(key))
    with pytest.raises(IntegrityError, match=r"line 1 of the log .* is not signed"):
        invoke("promote", MODEL, "3", "--reason", "r", "--key", str(key))
    with pytest.raises(AssertionError, match="Sign 28 lines without a signature"):
        invoke("sign", "--key", str(key))  # the confirmation is not answered
    with pytest.raises(AssertionError, match=rf"(?s)promote {MODEL} version 2.*Sign 28 lines"):
        invoke("sign", "--key", str(key), "--json")  # the lines precede the question
    shown = invoke("sign", "--key", str(key), "--yes", "--actor", "ada")
    assert f"promote {MODEL} version 2 from version 1" in " ".join(shown.split())
    assert "Signed 28 lines; the digest of the last line is" in shown
    assert "No problem found" in invoke("verify", "--key", str(key))

    monkeypatch.setenv("SLUICE_REGISTRY_KEY", str(key))
    invoke("promote", MODEL, "3", "--reason", "r")
    invoke("rollback", MODEL, "--reason", "r")
    assert "No problem found" in invoke("verify")
    monkeypatch.delenv("SLUICE_REGISTRY_KEY")
    invoke("promote", MODEL, "3", "--reason", "r", "--reinstate")
    monkeypatch.setenv("SLUICE_REGISTRY_KEY", str(key))
    shown = invoke("sign", "--yes")
    assert "Signed 1 line; the digest of the last line is" in shown
    assert "signed already" in invoke("sign")
    assert invoke_json("sign")["covered"] == []
    monkeypatch.delenv("SLUICE_REGISTRY_KEY")
    with pytest.raises(SettingsError, match="requires a key file"):
        invoke("sign")


def test_promotion_requires_the_approval_of_a_second_person(home: Path) -> None:
    keys = {name: make_personal_key(home / f"{name}.key") for name in ("ada", "bob")}
    invoke("sign", "--key", str(home / "ada.key"), "--yes", "--actor", "ada")
    actors = [f"  {name}: {half}" for name, (_, half) in keys.items()]
    write_key_list(home, ["actors:", *actors, "two_person_since: 2026-01-01T00:00:00Z"])
    ada = ("--key", str(home / "ada.key"), "--actor", "ada", "--reason", "r")
    bob = ("--key", str(home / "bob.key"), "--actor", "bob", "--reason", "read it")

    with pytest.raises(SettingsError, match="approval requires a key file"):
        invoke("approve", MODEL, "3", "--reason", "r")
    with pytest.raises(GateBlocked, match=f"sluice registry approve {MODEL} 3"):
        invoke("promote", MODEL, "3", *ada)
    assert invoke("approve", MODEL, "3", *bob).strip() == f"{MODEL} version 3 is approved by bob."
    assert "read it" in invoke("show", MODEL, "3")
    assert "production is now version 3" in invoke("promote", MODEL, "3", *ada)
    assert "No problem found" in invoke("verify", "--key", str(home / "bob.key"))
    invoke("rollback", MODEL, *ada)  # a rollback requires no approval


@pytest.mark.usefixtures("home")
def test_audit_is_json_lines_with_refused_attempts() -> None:
    with pytest.raises(GateBlocked):
        invoke("promote", MODEL, "1", "--reason", "\x1b[2Jback", "--actor", "eve")
    printed = invoke("audit")
    records = [json.loads(line) for line in printed.splitlines()]

    assert "\x1b" not in printed  # a terminal would execute it
    assert [(r["outcome"], r["action"], r["actor"], r["to_version"]) for r in records[-2:]] == [
        ("accepted", "stage", "pipeline", 3),
        ("refused", "promote", "eve", 1),
    ]
    assert {r["signature"] for r in records[:-1]} == {"unsigned"}
    newest = invoke("audit", "--since", records[-1]["at"])
    assert [json.loads(line)["reason"] for line in newest.splitlines()] == [r"\x1b[2Jback"]
    for wrong in ("yesterday", "2025-01-01T00:00:00", "2025-01-01"):
        with pytest.raises(ContractError, match=r"point in time|requires a time zone") as caught:
            invoke("audit", "--since", wrong)
    suggested = re.search(r"\S+Z", caught.value.fix)
    assert suggested is not None
    assert invoke("audit", "--since", suggested[0]) == printed


@pytest.mark.usefixtures("home")
def test_unknown_model_or_version_is_reported_with_known_ones() -> None:
    for arguments in (
        ("show", "sp500"),
        ("history", "sp500"),
        ("list", "sp500"),
        ("verify", "sp500"),
        ("promote", "sp500", "1", "--reason", "r"),
        ("rollback", "sp500", "--reason", "r"),
        ("at", "sp500", "2025-01-01T00:00:00Z"),
        ("export", "sp500", "1", "file"),
        ("erase", "sp500", "--user", "ada"),
    ):
        with pytest.raises(UnknownVersion, match=f"no model 'sp500'.*Known: {MODEL}"):
            invoke(*arguments)
    with pytest.raises(UnknownVersion, match="has no version 9"):
        invoke("show", MODEL, "9")


def test_reading_a_missing_registry_does_not_create_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("SLUICE_REGISTRY_URL", raising=False)

    with pytest.raises(UnknownVersion, match=r"no registry at .*sluice run"):
        invoke("list")

    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize(
    "command",
    [
        *("list", "show", "history", "promote", "approve", "rollback", "verify", "audit"),
        *("at", "export", "import", "new-key", "sign", "erase"),
    ],
)
def test_help_has_an_example(command: str) -> None:
    assert f"Example: sluice registry {command}" in invoke(command, "--help")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "command", [("show", MODEL), ("promote", MODEL, "--reason", "r"), ("export", MODEL)]
)
def test_version_number_too_large_for_the_database_is_unknown(command: tuple[str, ...]) -> None:
    name, model, *options = command
    target = ["x.sluice"] if name == "export" else []
    for number in ("2147483648", "99999999999999999999"):
        with pytest.raises(UnknownVersion, match=f"has no version {number}"):
            invoke(name, model, number, *target, *options)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("show", "\udcff"), "model"),
        (("list", "\udcff"), "model"),
        (("verify", "\udcff"), "model"),
        (("rollback", MODEL, "--reason", "a\udcff"), "reason"),
        (("rollback", MODEL, "--reason", "r", "--actor", "\udcff"), "actor"),
    ],
)
def test_arguments_that_are_not_utf8_are_a_user_error(
    arguments: tuple[str, ...], what: str
) -> None:
    """Python decodes byte FF of an argument as surrogate DCFF, which no database can store."""
    with pytest.raises(ContractError, match=rf"The {what} must be text in UTF-8, got '.*udcff"):
        invoke(*arguments)

    assert invoke_json("show", MODEL)["number"] == 2
