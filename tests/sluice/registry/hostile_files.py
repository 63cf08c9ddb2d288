"""Helpers that forge version files with consistent digests, as an attacker can write them."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.base.digests import digest_bytes, digest_json
from sluice.registry.lineage import Lineage

Parts = dict[str, bytes]


def read_parts(file: Path) -> Parts:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_parts(file: Path, parts: Parts) -> None:
    """Write a version file and set the digests in its manifest to those of the parts."""
    manifest = json.loads(parts["manifest.json"])
    manifest["parts"] = {
        name: digest_bytes(content)
        for name, content in parts.items()
        if name == "version.json" or name.startswith("artifacts/")
    }
    parts["manifest.json"] = json.dumps(manifest).encode()
    write_zip(file, parts)


def write_zip(file: Path, parts: Parts) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def forge_version(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the version's description and recompute the digests of config and candidate."""
    parts = read_parts(file)
    version = json.loads(parts["version.json"])
    change(version)
    lineage = version["lineage"]
    lineage["config"] = digest_json(lineage["resolved_config"])
    lineage["candidate"] = Lineage.model_validate(lineage).compute_candidate()
    parts["version.json"] = json.dumps(version).encode()
    write_parts(file, parts)


def forge_model(file: Path, **settings: object) -> None:
    """Change settings of the network in the resolved config."""
    forge_version(file, lambda v: v["lineage"]["resolved_config"]["model"].update(settings))


def forge_weights(file: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the weights of every member and store them under their new digests."""
    parts = read_parts(file)
    text = parts["version.json"].decode()
    for member in json.loads(text)["lineage"]["members"]:
        content = change(parts.pop(f"artifacts/{member['weights']}"))
        parts[f"artifacts/{digest_bytes(content)}"] = content
        text = text.replace(member["weights"], digest_bytes(content))
    parts["version.json"] = text.encode()
    write_parts(file, parts)
    forge_version(file, lambda _: None)


def with_header(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """Return a function that changes the safetensors header of weights and its length field.

    ``change`` edits the header in place, or returns the bytes of another one.
    """

    def change_content(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        new_header = change(header)
        return with_text(
            new_header if isinstance(new_header, bytes) else json.dumps(header).encode()
        )(content)

    return change_content


def with_text(text: bytes) -> Callable[[bytes], bytes]:
    """Return a function that replaces the safetensors header of weights by ``text``."""

    def change_content(content: bytes) -> bytes:
        rest = content[8 + int.from_bytes(content[:8], "little") :]
        return len(text).to_bytes(8, "little") + text + rest

    return change_content


def with_facts(**facts: object) -> Callable[[bytes], bytes]:
    """Return a function that changes Sluice's metadata in the header of weights."""

    def change(header: dict[str, Any]) -> None:
        values = json.loads(header["__metadata__"]["sluice"]) | facts
        header["__metadata__"]["sluice"] = json.dumps(values)

    return with_header(change)
