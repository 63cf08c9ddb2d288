"""Attacks by version files through import paths, zip parts, tables, settings and identities."""

import io
import json
import os
import signal
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError, IntegrityError, SluiceError, UntrustedCode
from sluice.config.pipeline import defs_folder, find_pipeline
from sluice.config.resolved import resolve
from sluice.drift.reference_file import load_reference
from sluice.drift.reference_store import read_held_out_losses
from sluice.evaluation.reference import score_version
from sluice.models.build import ARCHITECTURES, build_network, sketch_network
from sluice.models.settings import ModelSettings
from sluice.registry.ledger import Ledger
from sluice.registry.loading import load_members, load_networks
from sluice.registry.public_keys import ExporterPrivateKey, TrustedKeys
from sluice.registry.stored_code import CODE_ROLE, StoredModule, pack_code
from sluice.registry.transfer import export_version, import_version
from sluice.rehearsal.request_rows import load_request_rows
from sluice.training.weights import differing_shapes
from tests.sluice.registry.code_samples import UserCode
from tests.sluice.registry.hostile_files import (
    forge_model,
    forge_version,
    read_parts,
    write_parts,
)
from tests.sluice.registry.ledger_samples import (
    MODEL,
    SETTINGS,
    Clock,
)
from tests.sluice.registry.test_hostile_import import Home, file, home, user_file
from tests.support.synthetic import SineSettings, SineWorkload

WORKLOAD = str(SETTINGS["workload"])

__all__ = ["file", "home", "user_file"]


# ---- 1: an import path within the package sluice that resolves to code outside it


@pytest.mark.parametrize(
    "path",
    [
        "sluice.models.linear:nn.Identity",  # any class of torch, imported in a module of Sluice
        "sluice.models.linear:torch.nn.LazyLinear",
        "sluice.models.linear:LastRowLinear.__mro__",
        "sluice.models.build:LastRowLinear",  # a class of Sluice, defined in another module
        "sluice.models.nowhere:Net",
        "sluice.workloads.bars.more:Net",
        "sluice.models.:Net",
    ],
)
def test_class_imported_into_a_sluice_module_needs_trust(home: Home, file: Path, path: str) -> None:
    forge_model(file, architecture=path)

    with pytest.raises(SluiceError) as error:
        home.import_file(file)

    assert isinstance(error.value, UntrustedCode | ContractError)
    assert home.ledger.models() == []


def test_class_defined_in_sluice_needs_no_trust(home: Home, file: Path) -> None:
    forge_model(file, architecture="sluice.models.small_cnn:SmallCnn")

    assert home.import_file(file).accepted_code == (WORKLOAD,)


# ---- 2: parts of the zip that share bytes


def make_overlapping_zip(parts: dict[str, bytes], *, num_names: int) -> bytes:
    """Return a zip with nested entries: each contains the entries that start after it."""
    body, entries = b"", []

    def local_header(name: str, content: bytes) -> bytes:
        size, crc = len(content), zlib.crc32(content)
        return (
            struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, crc, size, size, len(name), 0)
            + name.encode()
        )

    nested = os.urandom(1) * 200_000
    starts = []  # start of each entry, counted from the end of the nested data
    digests = {}
    for number in range(num_names):
        digests[f"artifacts/{number}"] = digest_bytes(nested)
        nested = local_header(f"artifacts/{number}", nested) + nested
        starts.append(len(nested))
    body = nested
    directory = []
    for number, start in enumerate(starts):
        at = len(body) - start
        head = body[at : at + 30]
        directory.append((f"artifacts/{number}", at, head))
    manifest = json.loads(parts["manifest.json"])
    manifest["parts"] = digests
    text = json.dumps(manifest).encode()
    directory.append(("manifest.json", len(body), local_header("manifest.json", text)[:30]))
    body += local_header("manifest.json", text) + text
    for name, at, head in directory:
        fields = struct.unpack("<4s5H3L2H", head)
        entries.append(
            struct.pack(
                "<4s6H3L5H2L", b"PK\1\2", 20, 20, *fields[2:9], len(name), 0, 0, 0, 0, 0, at
            )
            + name.encode()
        )
    end = b"".join(entries)
    count = len(entries)
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(end), len(body), 0)
    return body + end + tail


def test_overlapping_parts_do_not_exhaust_the_memory(home: Home, file: Path) -> None:
    """Every digest in the manifest matches; 300 parts of 200 kB are in a file of 250 kB."""
    file.write_bytes(make_overlapping_zip(read_parts(file), num_names=300))
    size = file.stat().st_size
    assert size < 300_000

    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError, match="its parts overlap"):
            home.import_file(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 20 * size


# ---- 3: a table artifact that is far larger in memory than on disk


@pytest.fixture(scope="module")
def decompression_bomb() -> bytes:
    """A Parquet file of some kilobytes that becomes 3 GB: one long text, in many rows."""
    num_rows, text = 400, "x" * (8 * 2**20)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * num_rows, pa.int32()), [text])
    columns = dict.fromkeys(("seed", "fold", "loss"), pa.array([0] * num_rows))
    buffer = io.BytesIO()
    pq.write_table(
        pa.table({**columns, "row": texts, "name": texts}),
        buffer,
        compression="zstd",
        write_statistics=False,
        dictionary_pagesize_limit=2**30,
        store_schema=False,
    )
    assert len(buffer.getvalue()) < 100_000
    return buffer.getvalue()


def add_artifact(file: Path, role: str, content: bytes) -> None:
    parts = read_parts(file)
    parts[f"artifacts/{digest_bytes(content)}"] = content
    write_parts(file, parts)
    forge_version(file, lambda v: v["lineage"]["artifacts"].update({role: digest_bytes(content)}))


@pytest.mark.slow
def test_table_of_an_import_does_not_exhaust_the_memory(
    home: Home, file: Path, decompression_bomb: bytes
) -> None:
    for role in ("losses", "held-out losses", "drift features"):
        add_artifact(file, role, decompression_bomb)
    version = home.import_file(file)
    workload = SineWorkload()
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    before = pa.total_allocated_bytes()
    digest = digest_bytes(decompression_bomb)

    for read in (
        lambda: score_version(
            version, workload, raw, frame, workload.plan_folds(frame), home.store
        ),
        lambda: read_held_out_losses(digest, home.store),
        lambda: load_reference(digest, home.store),
    ):
        with pytest.raises(IntegrityError, match="as rows in memory it would be too large"):
            read()

    assert pa.total_allocated_bytes() - before < 2**27


@pytest.mark.parametrize(
    "column",
    [
        {"row": [["a", "list"]]},
        {"loss": ["low"]},
        {"seed": ["0"]},
        {"fold": [[0]]},
        {"loss": pa.array([[1.0]])},
    ],
)
def test_recorded_losses_of_other_types_are_rejected(
    home: Home, file: Path, column: dict[str, object]
) -> None:
    buffer = io.BytesIO()
    good = {"seed": [0], "fold": [0], "row": ["0"], "loss": [1.0]}
    pq.write_table(pa.table(good | column), buffer)
    add_artifact(file, "losses", buffer.getvalue())
    workload = SineWorkload()
    raw = workload.load_rows()
    frame = workload.compute_features(raw)

    with pytest.raises(IntegrityError, match="its recorded losses must be"):
        score_version(
            home.import_file(file), workload, raw, frame, workload.plan_folds(frame), home.store
        )


# ---- 4: settings of a network that is far larger than the stored weights


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor that allocates memory while active."""

    num_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                self.num_bytes = max(self.num_bytes, leaf.untyped_storage().nbytes())
        return output


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gru", "transformer"])
def test_network_is_built_only_if_the_weights_match_its_settings(
    home: Home, file: Path, architecture: str
) -> None:
    forge_model(file, architecture=architecture, hidden=2_048, layers=1)
    version = home.import_file(file)

    with LargestTensor() as largest, pytest.raises(IntegrityError, match="do not fit the network"):
        load_networks(version, home.store)

    assert largest.num_bytes < 100_000


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "sluice.models.small_cnn:SmallCnn"])
def test_sketch_has_the_shapes_of_the_network_and_allocates_nothing(architecture: str) -> None:
    settings = ModelSettings(architecture=architecture, hidden=8, layers=2, dropout=0.1)
    generator = torch.get_rng_state()
    sketch = sketch_network(16, 3, settings)

    assert sketch is not None
    assert torch.equal(torch.get_rng_state(), generator)
    network = build_network(16, 3, settings)
    assert differing_shapes(sketch.state_dict(), network.state_dict()) == []
    assert {tensor.device.type for tensor in sketch.state_dict().values()} == {"meta"}


# ---- 5: settings that name a file without an end, such as a pipe


class VocabularySettings(SineSettings):
    """Settings of a workload that reads a file of the user."""

    vocabulary: str = "vocabulary.txt"


class VocabularyWorkload(SineWorkload):
    """Workload whose data file is a setting, as the documentation recommends."""

    settings_type = VocabularySettings

    def __init__(self, settings: VocabularySettings | None = None) -> None:
        super().__init__(settings)
        self.data_files = (self.settings.vocabulary,)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_data_file_that_is_not_a_regular_file_is_rejected(
    home: Home, file: Path, tmp_path: Path, kind: str
) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "pipe"
    if kind == "pipe":
        os.mkfifo(path)
    workload = f"{__name__}:VocabularyWorkload"
    settings = {"workload": workload, "workload_settings": {"vocabulary": str(path)}}
    forge_version(file, lambda v: v["lineage"]["resolved_config"].update(settings))
    version = home.import_file(file, own=[workload])
    signal.setitimer(signal.ITIMER_REAL, 20)  # ends the test process rather than hanging it
    try:
        with pytest.raises(SluiceError, match="not a regular file"):
            load_members(version, version.lineage.members, home.store)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


# ---- 6: settings that request a URL with a secret from the environment


@pytest.fixture
def recording_server() -> Iterator[tuple[str, list[str]]]:
    """A server that records the requested paths, and its address."""
    paths: list[str] = []

    class RecordingHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), RecordingHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
def test_rehearsal_does_not_contact_an_address_from_a_file(
    home: Home,
    file: Path,
    recording_server: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, paths = recording_server
    monkeypatch.setenv("DEPLOY_TOKEN", "hunter2")
    source = {"kind": "csv", "uri": f"{address}/${{DEPLOY_TOKEN}}"}
    settings = {
        "workload": "sluice.workloads.bars:BarsWorkload",
        "workload_settings": {"source": source},
    }
    forge_version(file, lambda v: v["lineage"]["resolved_config"].update(settings))

    workload = resolve(find_pipeline(MODEL, defs_folder())).workload
    rows = load_request_rows(home.import_file(file), workload)

    assert paths == []
    assert len(rows.keys) > 50


# ---- 7: the candidate digest, which covers the weights and no other artifact


def test_local_training_replaces_forged_modules_of_a_candidate(
    home: Home, user_file: tuple[Path, UserCode]
) -> None:
    """A file has a genuine candidate and a forged code archive; then it is trained locally."""
    file, code = user_file
    forged_archive = pack_code(
        {"probe_net": StoredModule(source=b"raise SystemExit('evil')", is_package=False)}
    )
    parts = read_parts(file)
    genuine_digest = json.loads(parts["version.json"])["lineage"]["artifacts"][CODE_ROLE]
    del parts[f"artifacts/{genuine_digest}"]
    parts[f"artifacts/{digest_bytes(forged_archive)}"] = forged_archive
    parts["version.json"] = parts["version.json"].replace(
        genuine_digest.encode(), digest_bytes(forged_archive).encode()
    )
    write_parts(file, parts)
    version = home.import_file(file, trust=["probe_net:Net"], own=[WORKLOAD])
    all_trusted = home.import_file(file, trust=["probe_net:Net", WORKLOAD])

    with pytest.raises(IntegrityError, match=r"The stored code of .* must match its code digest"):
        load_members(all_trusted, version.lineage.members, home.store, code="stored")
    home.ledger.register(MODEL, code.lineage(home.store), [])

    own = home.ledger.version(MODEL, version.number)
    assert (own.is_imported, own.trusted_code) == (False, ())
    assert own.lineage.artifacts[CODE_ROLE] == genuine_digest
    assert home.import_file(file, trust=["probe_net:Net"]) == own
    assert load_members(own, own.lineage.members, home.store, code="stored")


# ---- 8: a signed genuine file after the import of a forged file of the same candidate


def change_metrics(version: dict) -> None:
    version["lineage"]["metrics"].update(mse=0.01)


def change_reference(version: dict) -> None:
    version["lineage"]["reference"] = "ab" * 32


@pytest.mark.parametrize("change", [change_metrics, change_reference])
def test_signed_file_does_not_confirm_a_forged_import_of_the_same_candidate(
    home: Home, file: Path, tmp_path: Path, change: Callable[[dict], None]
) -> None:
    key = ExporterPrivateKey(bytes(32))
    trusted = TrustedKeys({"team_a": key.public})
    signed = tmp_path / "signed"
    with Ledger.open(f"sqlite:///{tmp_path / 'away.db'}", clock=Clock()) as away:
        store = ArtifactStore(tmp_path / "away")
        export_version(away, MODEL, 1, store=store, target=signed, key=None, private_key=key)
    forge_version(file, change)
    forged = home.import_file(file)

    with pytest.raises(ContractError, match="must agree with the first file"):
        import_version(
            home.ledger,
            signed,
            store=home.store,
            actor="eve",
            key=None,
            trusted_keys=trusted,
            local_paths_of=lambda _: [WORKLOAD],
            trusted_paths=(),
        )

    assert home.import_file(file) == forged
    assert "signed by" not in "".join(line.reason for line in home.ledger.history(MODEL))
