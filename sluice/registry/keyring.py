"""The keys that a registry's signatures are checked with, and who signs with which.

They are listed in ``known_keys.yaml`` in the folder of the signing key, so that every command,
job and server that has the key also has the list. Without the file only the key itself is known
and any name may be given for the history.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AwareDatetime, Field, StringConstraints

from sluice.base.errors import GateBlocked, SettingsError
from sluice.base.settings import Settings
from sluice.registry.signing import PublicKey, SigningKey, VerifyingKey, require_private

KNOWN_KEYS = "known_keys.yaml"
_FILE = "file:"

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
KeyText = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class KnownKeys(Settings):
    """What ``known_keys.yaml`` holds."""

    actors: dict[Name, KeyText] = Field(
        min_length=1,
        description="Key by the name that --actor gives: an Ed25519 public key in base64, or "
        "'file:' with the path of a key file. Several names may have one key.",
    )
    retired: dict[KeyText, Annotated[AwareDatetime, Field(strict=False)]] = Field(
        {},
        description="Keys that sign nothing any more, each with the moment of its end (ISO 8601 "
        "with its zone): they still verify what they signed before.",
    )
    anchor: str | None = Field(
        None,
        min_length=1,
        description="Folder or fsspec URL (s3://bucket/prefix) where the last signed line is also "
        "kept, one new object for each signature; best one that keeps every object (object lock). "
        "Beside the key when not set.",
    )
    two_person_since: AwareDatetime | None = Field(
        None,
        strict=False,
        description="Promotions from this moment on need the approval of another actor than the "
        "promoter, signed with that actor's key. Never when not set.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """A signing key, and every key whose signatures count beside its own."""

    signing: SigningKey
    known: Mapping[str, VerifyingKey]
    """By key id."""

    actors: Mapping[str, str] = field(default_factory=dict)
    """Key id by name; empty when names are not bound to keys."""

    retired: Mapping[str, datetime] = field(default_factory=dict)
    """End of each key that only verifies, by its id."""

    anchor: str | None = None
    two_person_since: datetime | None = None

    @classmethod
    def around(cls, key: SigningKey) -> Self:
        """Return the keys that are known where a signing key lies.

        Raises:
            SettingsError: ``known_keys.yaml`` is not one, others may change it, or it does not
                list the key for signing.
        """
        path = None if key.path is None else key.path.with_name(KNOWN_KEYS)
        if path is None or not path.exists():
            return cls(signing=key, known={key.key_id: key})
        require_private(path, what="The list of known keys")
        settings = KnownKeys.parse(_load(path), where=str(path))
        actors = {name: _read_key(text, path) for name, text in settings.actors.items()}
        retired = [(_read_key(text, path), end) for text, end in settings.retired.items()]
        if settings.two_person_since is not None:
            _require_personal(actors, path)
        if key.key_id not in {each.key_id for each in actors.values()}:
            raise SettingsError(
                f"The key {key.path} (id {key.key_id}) must belong to an actor in {path}, and none "
                "has it.",
                fix="Add its name and public half under actors, or use the key that is listed.",
            )
        return cls(
            signing=key,
            known={each.key_id: each for each in (*actors.values(), *(key for key, _ in retired))},
            actors={name: each.key_id for name, each in actors.items()},
            retired={each.key_id: end for each, end in retired},
            anchor=settings.anchor,
            two_person_since=settings.two_person_since,
        )

    def require_own(self, actor: str | None) -> str:
        """Return the name that a change is signed under, which must belong to the signing key.

        Args:
            actor: Who makes the change; None for a change that names nobody.

        Raises:
            GateBlocked: The name belongs to another key, or to none.
        """
        own = [name for name, key_id in self.actors.items() if key_id == self.signing.key_id]
        if not self.actors or actor in own:
            return actor or ""
        if actor is None:
            return own[0]
        whose = "belongs to another key" if actor in self.actors else "belongs to no key"
        raise GateBlocked(
            f"A change is signed with the key of who makes it: {actor!r} {whose} in {KNOWN_KEYS}, "
            f"and the key {self.signing.path} is that of {', '.join(own)}.",
            fix=f"Give your own name (--actor {own[0]}), or sign with the key of {actor}.",
        )

    def may_sign(self, key_id: str, actor: str) -> bool:
        """Say whether a key may have signed under a name."""
        return not self.actors or key_id in self.retired or self.actors.get(actor) == key_id


def _load(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(
            f"The list of known keys {path} cannot be read ({error}).",
            fix="Write YAML: actors, with a name and its public key on each line.",
        ) from None
    if not isinstance(found, dict):
        raise SettingsError(
            f"The list of known keys {path} must be a mapping, got {found!r:.80}.",
            fix="Begin it with 'actors:', and a name with its public key on each line below.",
        )
    return found


def _read_key(text: str, listed_in: Path) -> VerifyingKey:
    if text.startswith(_FILE):
        return SigningKey.read(listed_in.parent / text.removeprefix(_FILE))
    return PublicKey.parse(text, where=str(listed_in))


def _require_personal(actors: Mapping[str, VerifyingKey], path: Path) -> None:
    """Refuse shared secrets for approvals: whoever verifies one could give it."""
    secret = sorted(name for name, key in actors.items() if not isinstance(key, PublicKey))
    if secret:
        raise SettingsError(
            f"{path}: with two_person_since every actor must have an Ed25519 public key, and "
            f"{', '.join(secret)} has a key file.",
            fix="Make one each: openssl genpkey -algorithm ed25519 -out NAME.key; list the middle "
            "line of: openssl pkey -in NAME.key -pubout",
        )
