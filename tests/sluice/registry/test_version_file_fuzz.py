"""Malformed version files are rejected with a readable error and without stored versions."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import EXIT_INTERNAL_ERROR, SluiceError
from sluice.registry.ledger import Ledger
from sluice.registry.transfer import export_version, import_version
from tests.sluice.registry.hostile_files import (
    forge_version,
    forge_weights,
    read_parts,
    with_header,
    with_text,
    write_parts,
    write_zip,
)
from tests.sluice.registry.ledger_samples import MODEL, SETTINGS, Clock, register_sample

Change = Callable[[Path], object]
_DEEP = b"[" * 200_000
_NUM_FLIPS, _NUM_CUTS = 25, 15


def change_bytes(change: Callable[[bytes], bytes]) -> Change:
    return lambda file: file.write_bytes(change(file.read_bytes()))


def replace_part(name: str, content: bytes) -> Change:
    return lambda file: write_parts(file, read_parts(file) | {name: content})


def replace_manifest(content: bytes) -> Change:
    return lambda file: write_zip(file, read_parts(file) | {"manifest.json": content})


def flip_bits(seed: int) -> Change:
    def change(content: bytes) -> bytes:
        rng, changed = random.Random(seed), bytearray(content)
        for _ in range(1 + seed % 4):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)

    return change_bytes(change)


def flip_directory_bit(seed: int) -> Change:
    """Flip bits in the zip directory, the last kilobyte."""

    def change(content: bytes) -> bytes:
        rng, changed = random.Random(seed), bytearray(content)
        changed[-1 - rng.randrange(min(1_000, len(changed)))] ^= 1 << rng.randrange(8)
        return bytes(changed)

    return change_bytes(change)


def change_header(change: Callable[[dict[str, Any]], object]) -> Change:
    return lambda file: forge_weights(file, with_header(change))


def replace_header(content: bytes) -> Change:
    return lambda file: forge_weights(file, with_text(content))


def change_tensor(**changes: object) -> Change:
    return change_header(lambda header: header["x_mean"].update(changes))


def change_description(change: Callable[[dict[str, Any]], object]) -> Change:
    """Change the description and update the manifest."""

    def changed(file: Path) -> None:
        parts = read_parts(file)
        version = json.loads(parts["version.json"])
        change(version)
        write_parts(file, parts | {"version.json": json.dumps(version).encode()})

    return changed


def make_mutations() -> Iterator[tuple[str, Change]]:
    for k in range(_NUM_CUTS):
        yield f"cut {k}", change_bytes(lambda c, k=k: c[: len(c) * k // _NUM_CUTS])
    for seed in range(_NUM_FLIPS):
        yield f"flip {seed}", flip_bits(seed)
        yield f"flip in the directory {seed}", flip_directory_bit(seed)
    yield (
        "encrypted",
        change_bytes(
            lambda c: c.replace(
                b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"
            )
        ),
    )
    yield (
        "unknown zip version",
        change_bytes(lambda c: c.replace(b"PK\x01\x02\x14\x03\x14", b"PK\x01\x02\x14\x03\xff")),
    )
    yield "doubled", change_bytes(lambda c: c + c[:100])
    for name, change in (
        ("manifest", replace_manifest),
        ("version", lambda c: replace_part("version.json", c)),
    ):
        for content in (b"", b"null", b"[]", b'"x"', b"\xff\xfe", b"[[[", b"NaN", b"1" * 5_000):
            yield f"{name} {content[:9]!r}", change(content)
    yield "version nested", replace_part("version.json", _DEEP)
    yield "version nested in a field", replace_part("version.json", b'{"lineage":' * 50_000)
    yield "version key twice", replace_part("version.json", b'{"number": 1, "number": 2}')
    for size in (0, 1, 2**31, 2**63 - 1, 2**64 - 1):
        long = struct.pack("<Q", size)
        yield f"header of {size}", lambda f, long=long: forge_weights(f, lambda c: long + c[8:])
    yield "no weights", lambda f: forge_weights(f, lambda c: c[:0])
    yield "weights cut", lambda f: forge_weights(f, lambda c: c[:-1])
    yield "weights with more", lambda f: forge_weights(f, lambda c: c + b"\0")
    for content in (b"", b"null", b"[]", b"\xff", _DEEP, b'{"a":' * 50_000, b'{"x_mean": NaN}'):
        yield f"header {content[:9]!r}", replace_header(content)
    for changes in (
        {"dtype": "F64"},
        {"dtype": "F4"},
        {"dtype": 7},
        {"dtype": ["F32"]},
        {"shape": [-2]},
        {"shape": [2.0]},
        {"shape": [True, 2]},
        {"shape": "2"},
        {"shape": [2**62, 2**62]},
        {"shape": [1] * 100_000},
        {"shape": [3]},
        {"data_offsets": [0, 8, 16]},
        {"data_offsets": [8, 0]},
        {"data_offsets": [-8, 0]},
        {"data_offsets": [4, 12]},
        {"data_offsets": [0, 2**64]},
        {"data_offsets": None},
        {"loader": "os:system"},
    ):
        yield f"tensor {str(changes)[:50]}", change_tensor(**changes)
    yield (
        "overlap",
        change_header(lambda h: h["x_std"].update(data_offsets=h["x_mean"]["data_offsets"])),
    )
    yield "tensor missing", change_header(lambda h: h.pop("x_std"))
    yield "no metadata", change_header(lambda h: h.pop("__metadata__"))
    yield "metadata number", change_header(lambda h: h.update(__metadata__={"sluice": 3}))
    yield "metadata more", change_header(lambda h: h["__metadata__"].update(pickle="x"))
    for facts in ("", "null", "[]", "{}", "[" * 100_000, '{"num_features": NaN}', "\ud800"):
        yield (
            f"facts {facts[:9]!a}",
            change_header(lambda h, f=facts: h["__metadata__"].update(sluice=f)),
        )
    yield "seeds", change_description(lambda v: v["lineage"].update(seeds="x"))
    yield "members", change_description(lambda v: v["lineage"].update(members=[[]]))
    yield "date", change_description(lambda v: v["lineage"].update(created_at="0000-99-99"))
    yield "receipt", change_description(lambda v: v["receipts"][0].pop("gate"))
    yield "history", change_description(lambda v: v["history"][0].update(action="evil"))
    yield "non-finite seconds", lambda f: forge_version(f, _set_nonfinite_seconds)


def _set_nonfinite_seconds(version: dict[str, Any]) -> None:
    version["lineage"]["training_seconds"] = float("nan")


MUTATIONS = list(make_mutations())


@pytest.fixture(scope="module")
def valid_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("away")
    store = ArtifactStore(folder / "artifacts")
    with Ledger.open(f"sqlite:///{folder / 'away.db'}", clock=Clock()) as ledger:
        register_sample(ledger, store, salt=1)
        export_version(
            ledger, MODEL, 1, store=store, target=folder / "v", key=None, private_key=None
        )
    return (folder / "v").read_bytes()


def test_every_malformed_file_is_rejected_with_a_readable_error(
    valid_file: bytes, tmp_path: Path
) -> None:
    file, store = tmp_path / "v.sluice", ArtifactStore(tmp_path / "home")
    accepted, wrong_errors = [], []
    with Ledger.open(f"sqlite:///{tmp_path / 'home.db'}", clock=Clock()) as ledger:

        def import_file() -> None:
            import_version(
                ledger,
                file,
                store=store,
                actor="eve",
                key=None,
                trusted_keys=None,
                local_paths_of=lambda _: [str(SETTINGS["workload"])],
                trusted_paths=(),
            )

        for name, change in MUTATIONS:
            file.write_bytes(valid_file)
            change(file)
            try:
                import_file()
                accepted.append((name, file.read_bytes()))
            except SluiceError as error:
                if error.exit_code == EXIT_INTERNAL_ERROR or not error.fix:
                    wrong_errors.append((name, repr(error)))
            except Exception as error:  # the command would print a traceback
                wrong_errors.append((name, repr(error)))

        assert wrong_errors == []
        assert len(ledger.versions(MODEL)) == bool(accepted)
    assert len(MUTATIONS) >= 120
    # A flipped bit in a zip date or attribute, which no reader uses, does not change the parts.
    unaffected = [name for name, content in accepted if _same_parts(content, valid_file, tmp_path)]
    assert [name for name, _ in accepted] == unaffected


def _same_parts(one: bytes, other: bytes, folder: Path) -> bool:
    for name, content in (("one", one), ("other", other)):
        (folder / name).write_bytes(content)
    return read_parts(folder / "one") == read_parts(folder / "other")
