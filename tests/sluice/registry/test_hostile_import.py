"""Untrusted version files: they cannot choose code, and all their values are limited."""

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
from sluice.models.settings import ModelSettings
from sluice.models.weights_format import require_intact
from sluice.models.weights_limits import LIMITS
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
NOTHING = CodeAcceptance(accepted_paths=(), trusted_paths=())


class Home:
    """The importing registry and its store."""

    def __init__(self, ledger: Ledger, store: ArtifactStore) -> None:
        self.ledger = ledger
        self.store = store

    def bring(
        self, file: Path, *, trust: Collection[str] = (), own: Collection[str] = (WORKLOAD,)
    ) -> Version:
        done = import_version(
            self.ledger,
            file,
            store=self.store,
            actor="eve",
            key=None,
            trusted_keys=None,
            local_paths_of=lambda _: own,
            trusted_paths=trust,
        )
        return done.version


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
    mark = tmp_path / "executed"
    expression = f"__import__('os').system('touch {mark}')"
    forge_model(file, architecture=path)
    forge_weights(file, with_facts(num_features=expression))

    with pytest.raises(SluiceError):
        home.bring(file)
    with pytest.raises(SluiceError):
        home.bring(file, own=(WORKLOAD, path))

    assert home.ledger.models() == []
    assert not mark.exists()


def test_trusted_callable_that_is_not_a_network_is_not_called(home: Home, file: Path) -> None:
    forge_model(file, architecture=f"{__name__}:must_not_run")

    version = home.bring(file, trust=[f"{__name__}:must_not_run"])

    with pytest.raises(IntegrityError, match=r"must be a subclass of torch\.nn\.Module"):
        load_networks(version, home.store)


def must_not_run(*_: object) -> None:
    raise AssertionError("called although it is no class of networks")


def test_module_named_only_by_a_file_is_not_imported(
    home: Home, user_file: tuple[Path, UserCode]
) -> None:
    file, _ = user_file

    with pytest.raises(UntrustedCode, match="but names probe_net:Net") as refused:
        home.bring(file)

    assert "--trust probe_net:Net" in refused.value.fix
    assert home.ledger.models() == []
    assert "probe_net" not in sys.modules


def test_trusted_code_is_recorded_and_runs(home: Home, user_file: tuple[Path, UserCode]) -> None:
    file, _ = user_file

    version = home.bring(file, trust=["probe_net:Net"])

    lines = [(line.action, line.reason) for line in home.ledger.history(MODEL)[1:]]
    assert lines == [("accept", WORKLOAD), ("trust", "probe_net:Net")]
    assert {line.actor for line in home.ledger.history(MODEL)} == {"eve"}
    assert home.ledger.verify(None, store=home.store) == []
    (network,) = load_networks(version, home.store)
    assert type(network.network).__name__ == "Net"


def test_trust_must_name_code_of_the_version(home: Home, file: Path) -> None:
    with pytest.raises(SettingsError, match="'other:Net' is no such code: the version names tests"):
        home.bring(file, trust=["other:Net"])


def test_trust_can_be_added_by_importing_again(
    home: Home, user_file: tuple[Path, UserCode]
) -> None:
    file, _ = user_file
    own = (WORKLOAD, "probe_net:Net")
    assert home.bring(file, own=own).trusted_code == ()

    assert home.bring(file, own=own, trust=["probe_net:Net"]).trusted_code == ("probe_net:Net",)
    home.bring(file, own=own, trust=["probe_net:Net"])

    actions = [line.action for line in home.ledger.history(MODEL)]
    assert actions == ["import", "accept", "accept", "trust"]


def test_stored_code_of_an_imported_version_runs_only_if_trusted(
    home: Home, user_file: tuple[Path, UserCode]
) -> None:
    """The pipeline has the path; the module in the file only shares its name."""
    file, _ = user_file
    own = (WORKLOAD, "probe_net:Net")
    version = home.bring(file, own=own)

    with pytest.raises(UntrustedCode, match="The code stored with"):
        load_members(version, version.lineage.members, home.store, code="stored")
    assert load_members(version, version.lineage.members, home.store)

    trusted = home.bring(file, own=own, trust=[*own])
    assert load_members(trusted, trusted.lineage.members, home.store, code="stored")


@pytest.mark.usefixtures("user_file")
def test_unaccepted_code_is_rejected_wherever_a_version_is_built(
    home: Home, tmp_path: Path
) -> None:
    """Also a version imported by an older Sluice, or a row not written by Sluice."""
    store = ArtifactStore(tmp_path / "away")
    with Ledger.open(f"sqlite:///{tmp_path / 'away.db'}", clock=Clock()) as away:
        lineage = away.version(MODEL, 1).lineage
    done = home.ledger.import_version(lineage, [], actor="eve", reason="a file", code=NOTHING)
    version = done.version

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

    assert home.bring(file, own=()).accepted_code == (WORKLOAD,)
    assert not home.ledger.version(MODEL, 1).is_imported
    assert home.ledger.version(MODEL, 2).is_imported
    assert load_networks(home.ledger.version(MODEL, 2), home.store)

    home.ledger.register(MODEL, sample_lineage(home.store, salt=1), [])
    assert not home.ledger.version(MODEL, 2).is_imported


@pytest.mark.parametrize(
    "path",
    ["os:system", "a/b:C", "..evil:C", "a:b:c", "a:", ":b", "a:b\x1b[2J", "x" * 300 + ":y", 7],
)
def test_malformed_import_paths_are_rejected_for_every_version(
    tmp_path: Path, path: object
) -> None:
    lineage = sample_lineage(ArtifactStore(tmp_path))
    lineage = with_settings(lineage, SETTINGS | {"workload": path})

    with pytest.raises(ContractError, match="The version of"):
        require_accepted_code(as_version(lineage))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"num_features": "2"}, "num_features"),
        ({"num_features": 2.0}, "num_features"),
        ({"num_features": True}, "num_features"),
        ({"num_features": -2}, "num_features"),
        ({"num_features": 10**12}, "at most|max"),
        ({"num_features": 3}, "x_mean must have shape"),
        ({"num_outputs": 0}, "num_outputs"),
        ({"num_outputs": None}, "num_outputs"),
        ({"scale_inputs": "yes"}, "scale_inputs"),
        ({"scale_target": 1}, "scale_target"),
        ({"loader": "os:system"}, "loader"),
    ],
)
def test_facts_in_the_header_of_weights_are_parsed_strictly(
    home: Home, file: Path, facts: dict[str, object], said: str
) -> None:
    forge_weights(file, with_facts(**facts))

    with pytest.raises(IntegrityError, match=said):
        home.bring(file)

    assert home.ledger.models() == []


def test_already_stored_weights_are_checked_the_same_way(
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


def many_receipts(version: dict) -> None:
    version["receipts"] = [version["receipts"][0]] * (LIMITS.max_receipts + 1)


@pytest.mark.parametrize(
    ("change", "said"),
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
        (many_receipts, "1,001 receipts"),
    ],
)
def test_names_numbers_and_texts_of_a_file_are_bounded(
    home: Home, file: Path, change: Callable[[dict], object], said: str
) -> None:
    forge_version(file, change)

    with pytest.raises(SluiceError, match=said):
        home.bring(file)

    assert home.ledger.models() == []
    assert not home.store.root.exists()


def test_sizes_of_a_file_are_bounded(home: Home, file: Path) -> None:
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
def test_special_files_are_refused_at_once(
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
            home.bring(file)
        with pytest.raises(StorageError, match="cannot be read"):
            home.store.get(digest)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_ambiguous_safetensors_files_are_rejected(home: Home, file: Path) -> None:
    """A duplicate key: some parsers use the first value, others the last."""

    def doubled(header: dict) -> bytes:
        text = json.dumps(header)
        return (
            '{"x_mean": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}, ' + text[1:]
        ).encode()

    forge_weights(file, with_header(doubled))
    with pytest.raises(IntegrityError, match="'x_mean' is duplicated"):
        home.bring(file)
    forge_weights(file, with_text(b"{}"))
    with pytest.raises(IntegrityError, match="0 tensors"):
        home.bring(file)
