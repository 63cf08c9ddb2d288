"""Known keys that verify a registry's signatures, and the actors to whom they belong.

The keys are listed in ``known_keys.yaml`` in the folder of the signing key. So every command, job
and server with access to the key also has the list. Without this file, only the signing key itself
is known, and a change may have any actor name.
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
from sluice.registry.signing import (
    Ed25519VerifyingKey,
    SigningKey,
    VerifyingKey,
    require_private_file,
)

KNOWN_KEYS_FILE = "known_keys.yaml"
_FILE_PREFIX = "file:"

ActorName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
KeyText = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class KnownKeys(Settings):
    """Content of ``known_keys.yaml``."""

    actors: dict[ActorName, KeyText] = Field(
        min_length=1,
        description="Key of each actor, by the actor's name (--actor): an Ed25519 public key in "
        "base64, or 'file:' with the path of a key file. Several actors may share a key.",
    )
    retired: dict[KeyText, Annotated[AwareDatetime, Field(strict=False)]] = Field(
        {},
        description="End time of each retired key (ISO 8601 with time zone). A retired key must "
        "not sign any more; its earlier signatures remain valid.",
    )
    anchor: str | None = Field(
        None,
        min_length=1,
        description="Folder or fsspec URL (s3://bucket/prefix) of the anchor, the copy of the last "
        "signed line outside the database. Each signature adds an object, so prefer a bucket with "
        "object lock. By default, the anchor is a file in the folder of the key.",
    )
    two_person_since: AwareDatetime | None = Field(
        None,
        strict=False,
        description="Time from which a promotion requires the approval of an actor other than the "
        "promoter, signed with that actor's key. By default, no promotion requires it.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """The signing key, and all keys whose signatures are accepted."""

    signing_key: SigningKey
    known_keys: Mapping[str, VerifyingKey]
    """All accepted keys by key id, including the signing key."""

    key_id_by_actor: Mapping[str, str] = field(default_factory=dict)
    """Key id by actor name; empty if actors are not bound to keys."""

    retirement_times: Mapping[str, datetime] = field(default_factory=dict)
    """End time of each retired key by key id."""

    anchor: str | None = None
    two_person_since: datetime | None = None

    @classmethod
    def load(cls, key: SigningKey) -> Self:
        """Load the keyring from the folder of a signing key.

        Raises:
            SettingsError: ``known_keys.yaml`` or a key file that it lists is invalid, its
                permissions are too wide, or it does not list the signing key.
        """
        path = None if key.path is None else key.path.with_name(KNOWN_KEYS_FILE)
        if path is None or not path.exists():
            return cls(signing_key=key, known_keys={key.key_id: key})
        require_private_file(path, what="The list of known keys")
        settings = KnownKeys.parse(_load_yaml(path), where=str(path))
        key_by_actor = {name: _read_key(text, path) for name, text in settings.actors.items()}
        retired_keys = [
            (_read_key(text, path), end_time) for text, end_time in settings.retired.items()
        ]
        if settings.two_person_since is not None:
            _require_personal_keys(key_by_actor, path)
        if key.key_id not in {actor_key.key_id for actor_key in key_by_actor.values()}:
            raise SettingsError(
                f"The key {key.path} (id {key.key_id}) does not belong to any actor in {path}.",
                fix="Add the actor and the public key under actors, or use a listed key.",
            )
        return cls(
            signing_key=key,
            known_keys={
                known_key.key_id: known_key
                for known_key in (
                    *key_by_actor.values(),
                    *(retired_key for retired_key, _ in retired_keys),
                )
            },
            key_id_by_actor={name: actor_key.key_id for name, actor_key in key_by_actor.items()},
            retirement_times={
                retired_key.key_id: end_time for retired_key, end_time in retired_keys
            },
            anchor=settings.anchor,
            two_person_since=settings.two_person_since,
        )

    def require_own_actor(self, actor: str | None) -> str:
        """Return the name of the actor who signs a change; this actor must own the signing key.

        A change that names no actor is signed in the name of the first owner of the key. Without
        ``known_keys.yaml``, any actor may sign, and a change that names no actor gets the name "".

        Args:
            actor: Actor of the change; None for a change that names no actor.

        Raises:
            GateBlocked: The listed actor has another key, or the actor is not listed.
        """
        own_actors = [
            name
            for name, key_id in self.key_id_by_actor.items()
            if key_id == self.signing_key.key_id
        ]
        if not self.key_id_by_actor or actor in own_actors:
            return actor or ""
        if actor is None:
            return own_actors[0]
        key_state = "has no key"
        other_fix = f"add a key of {actor!r} to {KNOWN_KEYS_FILE} and sign with it"
        if actor in self.key_id_by_actor:
            key_state, other_fix = "has another key", f"sign with the key of {actor!r}"
        raise GateBlocked(
            f"A change must be signed with the key of its actor: {actor!r} {key_state} in "
            f"{KNOWN_KEYS_FILE}, and the key {self.signing_key.path} belongs to "
            f"{', '.join(own_actors)}.",
            fix=f"Give your own name (--actor {own_actors[0]}), or {other_fix}.",
        )

    def may_sign(self, key_id: str, actor: str) -> bool:
        """Return whether a key may sign for an actor.

        A retired key may have signed for any actor, because the list does not name its owner. The
        end time of the key is not checked here.
        """
        return (
            not self.key_id_by_actor
            or key_id in self.retirement_times
            or self.key_id_by_actor.get(actor) == key_id
        )


def _load_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(
            f"The list of known keys {path} cannot be read ({error}).",
            fix="Use a readable YAML file: 'actors:', then a name and a public key per line.",
        ) from None
    if not isinstance(content, dict):
        raise SettingsError(
            f"The list of known keys {path} must be a mapping, got {content!r:.80}.",
            fix="Begin the file with 'actors:', followed by a name and a public key per line.",
        )
    return content


def _read_key(text: str, list_path: Path) -> VerifyingKey:
    if text.startswith(_FILE_PREFIX):
        return SigningKey.read(list_path.parent / text.removeprefix(_FILE_PREFIX))
    return Ed25519VerifyingKey.parse(text, where=str(list_path))


def _require_personal_keys(key_by_actor: Mapping[str, VerifyingKey], path: Path) -> None:
    """Reject key files, because anyone who can read a key file to verify can also sign with it."""
    actors_with_key_file = sorted(
        name for name, key in key_by_actor.items() if not isinstance(key, Ed25519VerifyingKey)
    )
    if actors_with_key_file:
        raise SettingsError(
            f"In {path}, two_person_since requires an Ed25519 public key for every actor, but "
            f"a key file is listed for {', '.join(actors_with_key_file)}.",
            fix="For each of these actors, create a key (openssl genpkey -algorithm ed25519 -out "
            "NAME.key) and list the middle line of: openssl pkey -in NAME.key -pubout",
        )
