"""Actors bound to personal keys, and promotions that require two persons."""

import base64
import contextlib
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from sqlalchemy import Connection

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked, IntegrityError, SettingsError
from sluice.registry.keyring import KNOWN_KEYS_FILE, Keyring
from sluice.registry.ledger import Ledger
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import Ed25519SigningKey, Ed25519VerifyingKey, SigningKey
from sluice.rollout.settings import RolloutSettings
from tests.sluice.registry.ledger_samples import (
    MODEL,
    NOW,
    Clock,
    promote_chain,
    register_sample,
)

PEOPLE = ("ada", "bob", "pipeline")


def make_personal_key(path: Path) -> tuple[SigningKey, str]:
    """Create a private key file; return the key and its public key as in the key list."""
    private = Ed25519PrivateKey.generate()
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    key = SigningKey.read(path)
    assert isinstance(key, Ed25519SigningKey)
    spki = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00"
    raw = private.public_key().public_bytes_raw()
    return key, base64.b64encode(spki + raw).decode()


def write_key_list(folder: Path, lines: list[str]) -> None:
    path = folder / KNOWN_KEYS_FILE
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, SigningKey]:
    """The key of each person; the key files are in one folder with the key list."""
    key_pairs = {name: make_personal_key(tmp_path / f"{name}.key") for name in PEOPLE}
    write_key_list(tmp_path, ["actors:", *(f"  {name}: {key_pairs[name][1]}" for name in PEOPLE)])
    return {name: key for name, (key, _) in key_pairs.items()}


def require_two_persons(tmp_path: Path, since: datetime = NOW) -> None:
    path = tmp_path / KNOWN_KEYS_FILE
    path.write_text(path.read_text() + f"two_person_since: {since.isoformat()}\n")


def promote_and_register(url: str, store: ArtifactStore, keys: dict[str, SigningKey]) -> int:
    """Promote version 1; register version 2 with its receipts and return its number."""
    with Ledger.open(url, clock=Clock(), key=keys["pipeline"]) as ledger:
        register_sample(ledger, store, salt=1)
    with Ledger.open(url, clock=Clock(), key=keys["ada"]) as ledger:
        ledger.promote(MODEL, 1, expected=None, actor="ada", reason="r", store=store)
    with Ledger.open(url, clock=Clock(), key=keys["pipeline"]) as ledger:
        return register_sample(ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate)


def promote(url: str, store: ArtifactStore, key: SigningKey, actor: str) -> None:
    with Ledger.open(url, clock=Clock(), key=key) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor=actor, reason="r", store=store)


def approve(url: str, key: SigningKey, actor: str) -> None:
    with Ledger.open(url, clock=Clock(), key=key) as ledger:
        ledger.approve(MODEL, 2, actor=actor, reason="reviewed")


def test_change_by_an_actor_without_that_key_is_rejected(
    url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    promote_and_register(url, store, keys)

    for name, problem in (("bob", "another key"), ("mallory", "no key"), ("Ada", "no key")):
        with pytest.raises(GateBlocked, match=rf"'{name}' has {problem} .*--actor ada"):
            promote(url, store, keys["ada"], name)
    with Ledger.open(url, clock=Clock(), key=keys["ada"]) as ledger:
        assert ledger.production_number(MODEL) == 1
        with pytest.raises(GateBlocked, match="'pipeline' has another key"):
            register_sample(ledger, store, salt=3)
        assert len(ledger.versions(MODEL)) == 2
    promote(url, store, keys["ada"], "ada")
    with Ledger.open(url, clock=Clock()) as ledger:
        assert ledger.verify(None, store=store, key=keys["bob"]) == []


class ModifiedClient(Ledger):
    """A modified client that writes any actor into the history and signs as bob."""

    @contextlib.contextmanager
    def _write(self, actor: str | None = None) -> Iterator[Connection]:
        del actor
        with super()._write("bob") as connection:
            yield connection


def test_verify_reports_an_actor_that_does_not_match_the_signing_key(
    tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    promote_and_register(url, store, keys)
    with ModifiedClient.open(url, clock=Clock(), key=keys["bob"]) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor="ada", reason="r", store=store)

    with Ledger.open(url, clock=Clock()) as ledger:
        (finding,) = ledger.verify(None, store=store, key=keys["ada"])
    assert "(promote to version 2) names 'ada' but is signed with another key" in finding.what


def test_verify_reports_an_actor_that_only_a_modified_key_list_names(
    tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    promote_and_register(url, store, keys)
    common = (tmp_path / KNOWN_KEYS_FILE).read_text()
    public_key = common.split("bob: ")[1].split()[0]
    write_key_list(tmp_path, [common.rstrip(), f"  chief: {public_key}"])
    promote(url, store, keys["bob"], "chief")
    write_key_list(tmp_path, [common])

    with Ledger.open(url, clock=Clock()) as ledger:
        (finding,) = ledger.verify(None, store=store, key=keys["ada"])
    assert "signed as 'chief'" in finding.what


@pytest.mark.parametrize("approvers", [[], ["ada"]])
def test_promotion_requires_the_approval_of_a_second_person(
    approvers: list[str], tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    promote_and_register(url, store, keys)
    require_two_persons(tmp_path, NOW.replace(minute=0))
    for name in approvers:
        approve(url, keys[name], name)

    with pytest.raises(GateBlocked, match=r"approval of an actor other.*registry approve"):
        promote(url, store, keys["ada"], "ada")
    with (
        RolloutLedger.open(url, clock=Clock(), key=keys["ada"]) as ledger,
        pytest.raises(GateBlocked, match="approval of an actor other"),
    ):
        ledger.start_rollout(MODEL, 2, RolloutSettings(), actor="ada", reason="r")
    approve(url, keys["bob"], "bob")
    promote(url, store, keys["ada"], "ada")
    with Ledger.open(url, clock=Clock()) as ledger:
        assert ledger.production_number(MODEL) == 2
        findings = ledger.verify(None, store=store, key=keys["bob"])
    # Ada promoted version 1 alone, after two persons were required.
    assert [f.what for f in findings] == [
        f"{MODEL}: entry 3 of the history (promote to version 1) was made without the approval of "
        "another actor."
    ]


def test_forged_or_unrelated_approval_does_not_count(
    tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    promote_and_register(url, store, keys)
    with Ledger.open(url, clock=Clock(), key=keys["bob"]) as ledger:
        approval = ledger.approve(MODEL, 2, actor="bob", reason="reviewed")
        lineage = ledger.version(MODEL, 2).lineage
    invalid_approvals = [
        approval.model_copy(update={"reason": "all of them"}),
        approval.model_copy(update={"subject": approval.subject | {"candidate": "0" * 64}}),
        approval.model_copy(
            update={
                "evidence": approval.evidence
                | {"signature": keys["ada"].sign("approval", "x"), "key_id": keys["bob"].key_id}
            }
        ),
    ]
    url = f"sqlite:///{tmp_path / 'other.db'}"
    promote_and_register(url, store, keys)
    require_two_persons(tmp_path)
    with Ledger.open(url, clock=Clock(), key=keys["pipeline"]) as ledger:
        ledger.register(MODEL, lineage, invalid_approvals)

    with pytest.raises(GateBlocked, match="approval of an actor other"):
        promote(url, store, keys["ada"], "ada")


def test_approval_requires_the_key_of_its_actor_and_a_reason(
    tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    with Ledger.open(url, clock=Clock(), key=keys["pipeline"]) as ledger:
        register_sample(ledger, store, salt=1)
        with pytest.raises(GateBlocked, match="'ada' has another key"):
            ledger.approve(MODEL, 1, actor="ada", reason="r")
        with pytest.raises(ValueError, match="reason"):
            ledger.approve(MODEL, 1, actor="pipeline", reason=" ")
    with (
        Ledger.open(url, clock=Clock(), key=SigningKey(b"k" * 32)) as ledger,
        pytest.raises(IntegrityError, match="not signed by a known key"),
    ):
        ledger.approve(MODEL, 1, actor="ada", reason="r")


def test_retired_key_verifies_old_lines_but_cannot_sign(
    tmp_path: Path, store: ArtifactStore
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    old, old_public = make_personal_key(tmp_path / "old.key")
    with Ledger.open(url, clock=Clock(), key=old) as ledger:
        promote_chain(ledger, store, 1)
    new, new_public = make_personal_key(tmp_path / "new.key")
    with Ledger.open(url, clock=Clock(), key=new) as ledger:
        assert "the whole log" in ledger.verify(None, store=store, key=new)[0].what
    end = (NOW + timedelta(hours=1)).isoformat()
    write_key_list(
        tmp_path, [f"actors: {{pipeline: {new_public}}}", f"retired: {{'{old_public}': {end}}}"]
    )

    with Ledger.open(url, clock=Clock(), key=new) as ledger:
        register_sample(ledger, store, salt=2)
        assert ledger.verify(None, store=store, key=new) == []
    with pytest.raises(SettingsError, match=r"does not belong to any actor"):
        Ledger.open(url, clock=Clock(), key=old)


def test_keys_made_with_the_documented_openssl_commands_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ada.key"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", path], check=True)
    command = ["openssl", "pkey", "-in", str(path), "-pubout"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    key = SigningKey.read(path)
    public = Ed25519VerifyingKey.parse(printed.splitlines()[1], where="test")

    assert public.key_id == key.key_id
    assert public.verify(key.sign("a", "b"), "a", "b")
    assert not public.verify(key.sign("a", "b"), "a", "c")
    assert not public.verify("no hexadecimal", "a", "b")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[]", "must be a mapping"),
        ("a: [", "cannot be read"),
        ("actors: {}", "actors"),
        ("actors: {ada: x}", "Ed25519 public key in base64 is required, got 'x'"),
        ("actors: {ada: 'file:gone'}", "cannot be read"),
        (
            "actors: {pipeline: 'file:k'}\ntwo_person_since: 2026-01-01T00:00:00Z",
            "a key file is listed for pipeline",
        ),
        ("actors: {pipeline: 'file:k'}\ntwo_person: true", "not a setting"),
    ],
)
def test_invalid_key_list_is_rejected(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_bytes(b"k" * 32)
    path.chmod(0o600)
    write_key_list(tmp_path, [text])

    with pytest.raises(SettingsError, match=what):
        Keyring.load(SigningKey.read(path))


@pytest.mark.parametrize("name", ["k", KNOWN_KEYS_FILE])
def test_key_files_writable_by_others_are_rejected(name: str, tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_bytes(b"k" * 32)
    path.chmod(0o640)  # a group that only reads is how Kubernetes mounts a secret
    write_key_list(tmp_path, ["actors: {pipeline: 'file:k'}"])
    keyring = Keyring.load(SigningKey.read(path))
    assert keyring.key_id_by_actor == {"pipeline": SigningKey(b"k" * 32).key_id}
    (tmp_path / name).chmod(0o660)

    with pytest.raises(SettingsError, match=f"mode 0660.*chmod 600 .*{name}"):
        Keyring.load(SigningKey.read(path))
