"""Ed25519 signatures of version files, verified with a list of trusted public keys."""

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError, SettingsError
from sluice.registry.ledger import Ledger
from sluice.registry.public_keys import (
    ExporterPrivateKey,
    ExporterPublicKey,
    ManifestSignature,
    TrustedKeys,
    make_key_pair,
)
from sluice.registry.transfer import ImportedVersion, export_version, import_version
from tests.sluice.registry.hostile_files import (
    Parts,
    forge_version,
    forge_weights,
    read_parts,
    with_header,
    write_parts,
    write_zip,
)
from tests.sluice.registry.ledger_samples import MODEL, SETTINGS, Clock, register_sample

SIGNATURE = "signature.ed25519.txt"

# RFC 8032, section 7.1: TEST 1, TEST 2 and TEST 3 as secret key, public key, message, signature.
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("secret", "public", "message", "signature"), RFC_8032)
def test_signatures_equal_the_test_vectors_of_rfc_8032(
    secret: str, public: str, message: str, signature: str
) -> None:
    key, content = ExporterPrivateKey(bytes.fromhex(secret)), bytes.fromhex(message)

    assert key.public.content.hex() == public
    assert key.sign(content).hex() == signature
    assert key.public.verify(bytes.fromhex(signature), content)
    assert not key.public.verify(bytes.fromhex(signature), content + b"\0")
    assert not key.public.verify(bytes(64), content)


@pytest.fixture
def key(tmp_path: Path) -> ExporterPrivateKey:
    make_key_pair(tmp_path / "team_a.pem", name="team_a")
    return ExporterPrivateKey.read(tmp_path / "team_a.pem")


@pytest.fixture
def trusted(key: ExporterPrivateKey) -> TrustedKeys:
    other = ExporterPrivateKey(bytes.fromhex(RFC_8032[0][0]))
    return TrustedKeys({"team_a": key.public, "team_b": other.public})


@pytest.fixture
def away(tmp_path: Path) -> Iterator[tuple[Ledger, ArtifactStore]]:
    store = ArtifactStore(tmp_path / "away")
    with Ledger.open(f"sqlite:///{tmp_path / 'away.db'}", clock=Clock()) as ledger:
        register_sample(ledger, store, salt=1)
        yield ledger, store


@pytest.fixture
def file(away: tuple[Ledger, ArtifactStore], key: ExporterPrivateKey, tmp_path: Path) -> Path:
    return export(away, tmp_path / "v.sluice", key)


def export(
    away: tuple[Ledger, ArtifactStore], target: Path, key: ExporterPrivateKey | None
) -> Path:
    ledger, store = away
    export_version(ledger, MODEL, 1, store=store, target=target, key=None, private_key=key)
    return target


def import_file(file: Path, folder: Path, trusted: TrustedKeys | None) -> ImportedVersion:
    with Ledger.open(f"sqlite:///{folder / 'home.db'}", clock=Clock()) as ledger:
        done = import_version(
            ledger,
            file,
            store=ArtifactStore(folder / "home"),
            actor="eve",
            key=None,
            trusted_keys=trusted,
            local_paths_of=lambda _: [str(SETTINGS["workload"])],
            trusted_paths=(),
        )
        assert ledger.history(MODEL)[0].reason.endswith(f"; {done.signed_by}")
    return done


def test_signer_is_returned_and_recorded_in_the_history(
    file: Path,
    away: tuple[Ledger, ArtifactStore],
    key: ExporterPrivateKey,
    trusted: TrustedKeys,
    tmp_path: Path,
) -> None:
    unsigned = export(away, tmp_path / "unsigned", None)
    for folder, source, keys, expected in (
        ("a", file, trusted, "signed by team_a"),
        ("b", file, None, f"signed by an unknown key, {key.public.text}"),
        ("c", unsigned, None, "unsigned"),
    ):
        (tmp_path / folder).mkdir()
        assert import_file(source, tmp_path / folder, keys).signed_by == expected


def test_unsigned_files_and_unknown_signers_are_rejected_if_keys_are_trusted(
    away: tuple[Ledger, ArtifactStore], trusted: TrustedKeys, tmp_path: Path
) -> None:
    unknown_key = ExporterPrivateKey(bytes(32))
    with pytest.raises(IntegrityError, match=r"trusted key \(team_a, team_b\), but is unsigned"):
        import_file(export(away, tmp_path / "u", None), tmp_path, trusted)
    with pytest.raises(IntegrityError, match="signed by the unknown key ed25519:3b6a27bc"):
        import_file(export(away, tmp_path / "s", unknown_key), tmp_path, trusted)

    assert not (tmp_path / "home").exists()


def change_header(file: Path) -> None:
    forge_weights(file, with_header(lambda header: header.update(x_mean=header.pop("x_mean"))))


def change_weights(file: Path) -> None:
    forge_weights(file, lambda content: content[:-1] + bytes([content[-1] ^ 1]))


def change_receipt(file: Path) -> None:
    forge_version(file, lambda version: version["receipts"][0].update(reason="Better than ever."))


def change_metrics(file: Path) -> None:
    forge_version(file, lambda version: version["lineage"]["metrics"].update(mse=0.1))


def replace_signature(file: Path) -> None:
    """Change the metrics and sign with another key, but name the trusted key."""
    change_metrics(file)

    def make_signature(parts: Parts) -> bytes:
        key = parts[SIGNATURE].partition(b" ")[0]
        other = ManifestSignature.make(parts["manifest.json"], ExporterPrivateKey(bytes(32)))
        return key + b" " + other.content.partition(b" ")[2]

    parts = read_parts(file)
    write_zip(file, parts | {SIGNATURE: make_signature(parts)})


def write_malformed_signature(file: Path) -> None:
    write_parts(file, read_parts(file) | {SIGNATURE: b"ed25519:zz 00"})


@pytest.mark.parametrize(
    "change",
    [
        change_header,
        change_weights,
        change_receipt,
        change_metrics,
        replace_signature,
        write_malformed_signature,
    ],
)
@pytest.mark.parametrize("has_list", [True, False])
def test_file_changed_after_signing_is_rejected(
    file: Path,
    trusted: TrustedKeys,
    tmp_path: Path,
    change: Callable[[Path], None],
    has_list: bool,
) -> None:
    change(file)

    with pytest.raises(IntegrityError, match=r"Ed25519 signature of .* does not match its content"):
        import_file(file, tmp_path, trusted if has_list else None)

    assert not (tmp_path / "home").exists()


def test_removing_the_signature_does_not_bypass_trusted_keys(
    file: Path, trusted: TrustedKeys, tmp_path: Path
) -> None:
    parts = read_parts(file)
    del parts[SIGNATURE]
    write_zip(file, parts)

    with pytest.raises(IntegrityError, match="but is unsigned"):
        import_file(file, tmp_path, trusted)


def test_key_pair_is_private_and_existing_or_unsafe_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    public = make_key_pair(path, name="team_a")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "key.pem.pub").read_text() == f"team_a {public.text}\n"
    assert ExporterPrivateKey.read(path).public == public
    assert public.content.hex() not in repr(ExporterPrivateKey.read(path))
    with pytest.raises(SettingsError, match="exists"):
        make_key_pair(path, name="team_a")
    with pytest.raises(SettingsError, match="64 lower-case"):
        make_key_pair(tmp_path / "b.pem", name="../evil")
    path.chmod(0o640)
    with pytest.raises(SettingsError, match="has mode 0640"):
        ExporterPrivateKey.read(path)
    path.write_text("no key")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="is not an Ed25519 private key"):
        ExporterPrivateKey.read(path)


def test_malformed_list_of_trusted_keys_is_rejected(tmp_path: Path) -> None:
    path, line = tmp_path / "trusted", f"team_a ed25519:{'a1' * 32}"
    path.write_text(f"# people\n\n  {line}\nteam_b ed25519:{'b2' * 32}\n")

    assert TrustedKeys.read(path).name_of(ExporterPublicKey(bytes([0xA1] * 32))) == "team_a"
    assert TrustedKeys.read(path).name_of(ExporterPublicKey(bytes(32))) is None
    for text in ("", "# none\n", line[:-2], f"{line}\n{line}", line.upper(), f"x{line}y", "a b c"):
        path.write_text(text)
        with pytest.raises(SettingsError):
            TrustedKeys.read(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        TrustedKeys.read(tmp_path / "nowhere")


def test_manifest_lists_every_part_of_the_file(file: Path) -> None:
    parts = read_parts(file)
    manifest_parts = json.loads(parts["manifest.json"])["parts"]

    assert set(manifest_parts) == set(parts) - {"manifest.json", SIGNATURE}
