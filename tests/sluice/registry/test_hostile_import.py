"""Import of untrusted version files: no code of their choice runs, and all values are bounded."""

import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import (
    ContractError,
    IntegrityError,
    SettingsError,
    SluiceError,
    StorageError,
    UntrustedCode,
)
from sluice.models.import_limits import LIMITS
from sluice.models.settings import ModelSettings
from sluice.models.weights_format import require_intact
from sluice.registry.code_paths import CodeAcceptance, require_accepted_code
from sluice.registry.ledger import Ledger
from sluice.registry.loading import code_findings, load_members, load_networks, removed_settings
from sluice.registry.records import Version
from sluice.registry.transfer import export_version, import_version
from sluice.training.weights import load_member
from tests.sluice.registry.code_samples import UserCode
from tests.sluice.registry.hostile_files import (
    forge_model,
    forge_version,
    forge_weights,
    with_facts,
    with_header,
    with_text,
)
from tests.sluice.registry.ledger_samples import (
    MODEL,
    SETTINGS,
    Clock,
    as_version,
    register_sample,
    sample_lineage,
)
from tests.sluice.registry.test_loading import with_settings
from tests.support.synthetic import SineWorkload

WORKLOAD = str(SETTINGS["workload"])
NO_CODE = CodeAcceptance(accepted_paths=(), trusted_paths=())


class Home:
    """The registry and artifact store into which files are imported."""

    def __init__(self, ledger: Ledger, store: ArtifactStore) -> None:
        self.ledger = ledger
        self.store = store

    def import_file(
        self, file: Path, *, trust: Collection[str] = (), own: Collection[str] = (WORKLOAD,)
    ) -> Version:
        imported = import_version(
            self.ledger,
            file,
            store=self.store,
            actor="eve",
            key=None,
            trusted_keys=None,
            local_paths_of=lambda _: own,
            trusted_paths=trust,
        )
        return imported.version


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Ledger.open(f"sqlite:///{tmp_path / 'home.db'}", clock=Clock()) as opened:
        yield Home(opened, ArtifactStore(tmp_path / "home"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    store = ArtifactStore(tmp_path / "away")
    with Ledger.open(f"sqlite:///{tmp_path / 'away.db'}", clock=Clock()) as ledger:
        register_sample(ledger, store, salt=1)
        export_version(
            ledger, MODEL, 1, store=store, target=tmp_path / "v.sluice", key=None, private_key=None
        )
    return tmp_path / "v.sluice"


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, UserCode]:
    """A version with a user's network and its modules stored in the file."""
    code, store = UserCode(tmp_path / "user", monkeypatch), ArtifactStore(tmp_path / "away")
    with Ledger.open(f"sqlite:///{tmp_path / 'away.db'}", clock=Clock()) as ledger:
        ledger.register(MODEL, code.lineage(store), [])
        export_version(
            ledger, MODEL, 1, store=store, target=tmp_path / "v.sluice", key=None, private_key=None
        )
    code.forget()
    return tmp_path / "v.sluice", code


@pytest.mark.parametrize("path", ["cProfile:run", "os:system", "builtins:eval", "code:interact"])
def test_import_of_a_file_naming_a_function_executes_nothing(
    home: Home, file: Path, tmp_path: Path, path: str
) -> None:
    marker = tmp_path / "executed"
    expression = f"__import__('os').system('touch {marker}')"
    forge_model(file, architecture=path)
    forge_weights(file, with_facts(num_features=expression))

    with pytest.raises(SluiceError):
        home.import_file(file)
    with pytest.raises(SluiceError):
        home.import_file(file, own=(WORKLOAD, path))

    assert home.ledger.models() == []
    assert not marker.exists()


def test_trusted_callable_that_is_not_a_network_is_not_called(home: Home, file: Path) -> None:
    forge_model(file, architecture=f"{__name__}:must_not_run")

    version = home.import_file(file, trust=[f"{__name__}:must_not_run"])

    with pytest.raises(IntegrityError, match=r"must be a subclass of torch\.nn\.Module"):
        load_networks(version, home.store)


def must_not_run(*_: object) -> None:
    raise AssertionError("called although it is not a network class")


def test_module_named_only_by_a_file_is_not_imported(
    home: Home, user_file: tuple[Path, UserCode]
) -> None:
    file, _ = user_file

    with pytest.raises(UntrustedCode, match="but names probe_net:Net") as refused:
        home.import_file(file)

    assert "--trust probe_net:Net" in refused.value.fix
    assert home.ledger.models() == []
    assert "probe_net" not in sys.modules


def test_trusted_code_is_recorded_and_runs(home: Home, user_file: tuple[Path, UserCode]) -> None:
    file, _ = user_file

    version = home.import_file(file, trust=["probe_net:Net"])

    lines = [(line.action, line.reason) for line in home.ledger.history(MODEL)[1:]]
    assert lines == [("accept", WORKLOAD), ("trust", "probe_net:Net")]
    assert {line.actor for line in home.ledger.history(MODEL)} == {"eve"}
    assert home.ledger.verify(None, store=home.store) == []
    (network,) = load_networks(version, home.store)
    assert type(network.network).__name__ == "Net"


def test_trust_must_name_code_of_the_version(home: Home, file: Path) -> None:
    with pytest.raises(SettingsError, match=r"does not name 'other:Net'\. It names tests"):
        home.import_file(file, trust=["other:Net"])


def test_repeated_import_adds_trust_to_a_version(
    home: Home, user_file: tuple[Path, UserCode]
) -> None:
    file, _ = user_file
    own = (WORKLOAD, "probe_net:Net")
    assert home.import_file(file, own=own).trusted_code == ()

    assert home.import_file(file, own=own, trust=["probe_net:Net"]).trusted_code == (
        "probe_net:Net",
    )
    home.import_file(file, own=own, trust=["probe_net:Net"])

    actions = [line.action for line in home.ledger.history(MODEL)]
    assert actions == ["import", "accept", "accept", "trust"]


def test_stored_code_of_an_imported_version_runs_only_if_trusted(
    home: Home, user_file: tuple[Path, UserCode]
) -> None:
    """The pipeline accepts the import path; the module in the file only has the same name."""
    file, _ = user_file
    own = (WORKLOAD, "probe_net:Net")
    version = home.import_file(file, own=own)

    with pytest.raises(UntrustedCode, match="The code stored with"):
        load_members(version, version.lineage.members, home.store, code="stored")
    assert load_members(version, version.lineage.members, home.store)

    trusted = home.import_file(file, own=own, trust=[*own])
    assert load_members(trusted, trusted.lineage.members, home.store, code="stored")


@pytest.mark.usefixtures("user_file")
def test_unaccepted_code_is_rejected_by_every_function_that_builds_a_version(
    home: Home, tmp_path: Path
) -> None:
    """Such versions come from an older Sluice, or from rows that Sluice did not write."""
    store = ArtifactStore(tmp_path / "away")
    with Ledger.open(f"sqlite:///{tmp_path / 'away.db'}", clock=Clock()) as away:
        lineage = away.version(MODEL, 1).lineage
    imported = home.ledger.import_version(lineage, [], actor="eve", reason="a file", code=NO_CODE)
    version = imported.version

    for build in (
        lambda: load_networks(version, store),
        lambda: load_members(version, lineage.members, store),
        lambda: load_members(version, lineage.members, store, code="stored"),
        lambda: removed_settings(version),
        lambda: require_accepted_code(version),
    ):
        with pytest.raises(UntrustedCode):
            build()
    assert [f.problem for f in code_findings(version)] == ["code"]
    assert "probe_net" not in sys.modules


def test_locally_trained_version_needs_no_trust(home: Home, file: Path) -> None:
    home.ledger.register(MODEL, sample_lineage(home.store, salt=7), [])

    assert home.import_file(file, own=()).accepted_code == (WORKLOAD,)
    assert not home.ledger.version(MODEL, 1).is_imported
    assert home.ledger.version(MODEL, 2).is_imported
    assert load_networks(home.ledger.version(MODEL, 2), home.store)

    home.ledger.register(MODEL, sample_lineage(home.store, salt=1), [])
    assert not home.ledger.version(MODEL, 2).is_imported


@pytest.mark.parametrize(
    "path",
    ["os:system", "a/b:C", "..evil:C", "a:b:c", "a:", ":b", "a:b\x1b[2J", "x" * 300 + ":y", 7],
)
def test_malformed_import_path_is_rejected_for_any_version(tmp_path: Path, path: object) -> None:
    lineage = sample_lineage(ArtifactStore(tmp_path))
    lineage = with_settings(lineage, SETTINGS | {"workload": path})

    with pytest.raises(ContractError, match="The version of"):
        require_accepted_code(as_version(lineage))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"num_features": "2"}, "num_features"),
        ({"num_features": 2.0}, "num_features"),
        ({"num_features": True}, "num_features"),
        ({"num_features": -2}, "num_features"),
        ({"num_features": 10**12}, "at most|max"),
        ({"num_features": 3}, "x_mean must have the shape"),
        ({"num_outputs": 0}, "num_outputs"),
        ({"num_outputs": None}, "num_outputs"),
        ({"scale_inputs": "yes"}, "scale_inputs"),
        ({"scale_target": 1}, "scale_target"),
        ({"loader": "os:system"}, "loader"),
    ],
)
def test_invalid_metadata_in_the_header_of_weights_is_rejected(
    home: Home, file: Path, facts: dict[str, object], message: str
) -> None:
    forge_weights(file, with_facts(**facts))

    with pytest.raises(IntegrityError, match=message):
        home.import_file(file)

    assert home.ledger.models() == []


def test_invalid_metadata_of_stored_weights_is_rejected(
    home: Home,
) -> None:
    member = sample_lineage(home.store).members[0]
    digest = home.store.put(with_facts(num_features="2")(home.store.get(member.weights)))

    with pytest.raises(IntegrityError, match="its metadata field 'num_features' is invalid"):
        require_intact(home.store, digest, what="weights", is_weights=True)
    with pytest.raises(ContractError, match="its metadata field 'num_features' is invalid"):
        load_member(
            member.model_copy(update={"weights": digest}),
            SineWorkload(),
            ModelSettings(architecture="linear"),
            home.store,
        )


def add_too_many_receipts(version: dict) -> None:
    version["receipts"] = [version["receipts"][0]] * (LIMITS.max_receipts + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v["lineage"].update(model="../../evil"), "lower-case letters"),
        (lambda v: v["lineage"].update(model="evil\x1b[2J"), "lower-case letters"),
        (lambda v: v["lineage"].update(model="m" * 201), "lower-case letters"),
        (lambda v: v["lineage"]["artifacts"].update({"../x": "a" * 64}), "has the invalid role"),
        (lambda v: v["lineage"]["members"][0].update(event_log="../../etc/passwd"), "is malformed"),
        (lambda v: v["lineage"]["members"][0].update(seed=2**70), "more than 64 bits"),
        (lambda v: v["receipts"][0].update(reason="x" * 30_000), "30,000 characters"),
        (lambda v: v["receipts"][0].update(reason="a\0b"), "NUL"),
        (lambda v: v["receipts"][0].update(reason="\ud800"), "not valid Unicode"),
        (lambda v: v["receipts"][0].update(gate="g" * 41), "has the invalid gate"),
        (lambda v: v["lineage"].update(training_seconds=float("nan")), "lacks training_seconds"),
        (lambda v: v["lineage"]["resolved_config"].pop("workload"), "'module:Class', got 'None'"),
        (lambda v: v["lineage"]["resolved_config"].update(workload_settings=[]), "workload_sett"),
        (lambda v: v["lineage"]["resolved_config"]["model"].update(hidden=10**9), "hidden"),
        (lambda v: v["lineage"]["resolved_config"]["model"].update(loader="os:system"), "loader"),
        (add_too_many_receipts, "1,001 receipts"),
    ],
)
def test_out_of_range_value_in_a_file_is_rejected(
    home: Home, file: Path, change: Callable[[dict], object], message: str
) -> None:
    forge_version(file, change)

    with pytest.raises(SluiceError, match=message):
        home.import_file(file)

    assert home.ledger.models() == []
    assert not home.store.root.exists()


def test_file_above_a_size_limit_is_rejected(home: Home, file: Path) -> None:
    size = file.stat().st_size
    for limits, error in (
        ({"max_file_bytes": size - 1}, StorageError),
        ({"max_parts": 3}, IntegrityError),
        ({"max_description_bytes": 1_000}, IntegrityError),
        ({"max_members": 1}, IntegrityError),
    ):
        with pytest.raises(error):
            import_version(
                home.ledger,
                file,
                store=home.store,
                actor="a",
                key=None,
                trusted_keys=None,
                local_paths_of=lambda _: [WORKLOAD],
                trusted_paths=(),
                limits=LIMITS.model_copy(update=limits),
            )
    assert home.ledger.models() == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_special_files_are_rejected_without_blocking(
    home: Home, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A pipe without a writer would block forever; /dev/zero would exhaust the memory."""
    file = tmp_path / "special"
    make(file)
    digest = "ab" * 32
    artifact = home.store.path(digest)
    artifact.parent.mkdir(parents=True)
    make(artifact)
    signal.setitimer(signal.ITIMER_REAL, 20)  # ends the test process rather than hanging it
    try:
        with pytest.raises(StorageError, match="cannot be read"):
            home.import_file(file)
        with pytest.raises(StorageError, match="cannot be read"):
            home.store.get(digest)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_ambiguous_safetensors_files_are_rejected(home: Home, file: Path) -> None:
    """A duplicate key: some parsers use the first value, others the last."""

    def duplicate_key(header: dict) -> bytes:
        text = json.dumps(header)
        return (
            '{"x_mean": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}, ' + text[1:]
        ).encode()

    forge_weights(file, with_header(duplicate_key))
    with pytest.raises(IntegrityError, match="'x_mean' is duplicated"):
        home.import_file(file)
    forge_weights(file, with_text(b"{}"))
    with pytest.raises(IntegrityError, match="0 tensors"):
        home.import_file(file)
