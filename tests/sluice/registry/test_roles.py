"""Signing roles: actors bound to keys, and promotions with two persons."""

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
from sluice.base.errors import GateBlocked, SettingsError
from sluice.registry.keyring import KNOWN_KEYS, Keyring
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


def personal_key(path: Path) -> tuple[SigningKey, str]:
    """Create a personal key; return it and its public key in the format of the list."""
    private = Ed25519PrivateKey.generate()
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    key = SigningKey.read(path)
    assert isinstance(key, Ed25519SigningKey)
    spki = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00"
    raw = private.public_key().public_bytes_raw()
    return key, base64.b64encode(spki + raw).decode()


def list_keys(folder: Path, lines: list[str]) -> None:
    path = folder / KNOWN_KEYS
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, SigningKey]:
    """The key of each person, in one folder with the list of public keys."""
    made = {name: personal_key(tmp_path / f"{name}.key") for name in PEOPLE}
    list_keys(tmp_path, ["actors:", *(f"  {name}: {made[name][1]}" for name in PEOPLE)])
    return {name: key for name, (key, _) in made.items()}


def require_two(tmp_path: Path, since: datetime = NOW) -> None:
    path = tmp_path / KNOWN_KEYS
    path.write_text(path.read_text() + f"two_person_since: {since.isoformat()}\n")


def begin(url: str, store: ArtifactStore, keys: dict[str, SigningKey]) -> int:
    """Version 1 in production, and version 2 approved by the gates; return its number."""
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


def test_change_under_another_name_is_refused(
    url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    begin(url, store, keys)

    for name, whose in (("bob", "another key"), ("mallory", "no key"), ("Ada", "no key")):
        with pytest.raises(GateBlocked, match=rf"'{name}' has {whose} .*--actor ada"):
            promote(url, store, keys["ada"], name)
    with Ledger.open(url, clock=Clock(), key=keys["ada"]) as ledger:
        assert ledger.production_number(MODEL) == 1
        with pytest.raises(GateBlocked, match="'pipeline' has another key"):
            register_sample(ledger, store, salt=3)
        assert len(ledger.versions(MODEL)) == 2
    promote(url, store, keys["ada"], "ada")
    with Ledger.open(url, clock=Clock()) as ledger:
        assert ledger.verify(None, store=store, key=keys["bob"]) == []


class Modified(Ledger):
    """A modified client that writes any actor into the history and signs as bob."""

    @contextlib.contextmanager
    def _write(self, actor: str | None = None) -> Iterator[Connection]:
        del actor
        with super()._write("bob") as connection:
            yield connection


def test_modified_client_that_writes_another_name_is_found(
    tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    begin(url, store, keys)
    with Modified.open(url, clock=Clock(), key=keys["bob"]) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor="ada", reason="r", store=store)

    with Ledger.open(url, clock=Clock()) as ledger:
        (found,) = ledger.verify(None, store=store, key=keys["ada"])
    assert "(promote to version 2) names 'ada' but is signed with another key" in found.what


def test_private_key_list_is_found_with_the_shared_list(
    tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    begin(url, store, keys)
    common = (tmp_path / KNOWN_KEYS).read_text()
    half = common.split("bob: ")[1].split()[0]
    list_keys(tmp_path, [common.rstrip(), f"  chief: {half}"])
    promote(url, store, keys["bob"], "chief")
    list_keys(tmp_path, [common])

    with Ledger.open(url, clock=Clock()) as ledger:
        (found,) = ledger.verify(None, store=store, key=keys["ada"])
    assert "signed as 'chief'" in found.what


@pytest.mark.parametrize("who", [[], ["ada"]])
def test_promotion_needs_a_second_person(
    who: list[str], tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    begin(url, store, keys)
    require_two(tmp_path, NOW.replace(minute=0))
    for name in who:
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
        found = ledger.verify(None, store=store, key=keys["bob"])
    # The first version was promoted by ada alone, after the moment from which two are needed.
    assert [f.what for f in found] == [
        f"{MODEL}: entry 3 of the history (promote to version 1) was made without the approval of "
        "another actor."
    ]


def test_forged_or_unrelated_approval_is_invalid(
    tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    begin(url, store, keys)
    with Ledger.open(url, clock=Clock(), key=keys["bob"]) as ledger:
        real = ledger.approve(MODEL, 2, actor="bob", reason="reviewed")
        lineage = ledger.version(MODEL, 2).lineage
    copies = [
        real.model_copy(update={"reason": "all of them"}),
        real.model_copy(update={"subject": real.subject | {"candidate": "0" * 64}}),
        real.model_copy(
            update={
                "evidence": real.evidence
                | {"signature": keys["ada"].sign("approval", "x"), "key_id": keys["bob"].key_id}
            }
        ),
    ]
    url = f"sqlite:///{tmp_path / 'other.db'}"
    begin(url, store, keys)
    require_two(tmp_path)
    with Ledger.open(url, clock=Clock(), key=keys["pipeline"]) as ledger:
        ledger.register(MODEL, lineage, copies)

    with pytest.raises(GateBlocked, match="approval of an actor other"):
        promote(url, store, keys["ada"], "ada")


def test_approval_is_for_the_current_production_version(
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
        pytest.raises(Exception, match="not signed by a known key"),
    ):
        ledger.approve(MODEL, 1, actor="ada", reason="r")


def test_retired_key_verifies_but_does_not_sign(tmp_path: Path, store: ArtifactStore) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    old, old_half = personal_key(tmp_path / "old.key")
    with Ledger.open(url, clock=Clock(), key=old) as ledger:
        promote_chain(ledger, store, 1)
    new, new_half = personal_key(tmp_path / "new.key")
    with Ledger.open(url, clock=Clock(), key=new) as ledger:
        assert "the whole log" in ledger.verify(None, store=store, key=new)[0].what
    end = (NOW + timedelta(hours=1)).isoformat()
    list_keys(tmp_path, [f"actors: {{pipeline: {new_half}}}", f"retired: {{'{old_half}': {end}}}"])

    with Ledger.open(url, clock=Clock(), key=new) as ledger:
        register_sample(ledger, store, salt=2)
        assert ledger.verify(None, store=store, key=new) == []
    with pytest.raises(SettingsError, match=r"does not belong to any actor"):
        Ledger.open(url, clock=Clock(), key=old)


def test_openssl_keys_are_read_as_documented(tmp_path: Path) -> None:
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
def test_list_of_keys_is_read_strictly(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_bytes(b"k" * 32)
    path.chmod(0o600)
    list_keys(tmp_path, [text])

    with pytest.raises(SettingsError, match=what):
        Keyring.load(SigningKey.read(path))


@pytest.mark.parametrize("name", ["k", KNOWN_KEYS])
def test_files_writable_by_others_are_rejected(name: str, tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_bytes(b"k" * 32)
    path.chmod(0o640)  # a group that only reads is how Kubernetes mounts a secret
    list_keys(tmp_path, ["actors: {pipeline: 'file:k'}"])
    assert Keyring.load(SigningKey.read(path)).actors == {"pipeline": SigningKey(b"k" * 32).key_id}
    (tmp_path / name).chmod(0o660)

    with pytest.raises(SettingsError, match=f"mode 0660.*chmod 600 .*{name}"):
        Keyring.load(SigningKey.read(path))
