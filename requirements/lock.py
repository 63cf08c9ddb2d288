"""Writes the lock files: every package of every extra, pinned with its hashes.

``lock.txt`` contains the packages that Sluice and its extras need to run. ``dev.txt`` contains the
packages that only the extras ``dev`` and ``docs`` need, so that a server does not install them.

torch is in two separate files, from which bootstrap.py chooses: ``torch-cpu.txt`` pins the CPU
build, ``torch.txt`` the default build with the CUDA packages that only it needs. One pin with both
hashes would not work: pip prefers a file whose link in the package index contains a matching hash,
and wheels in a folder have no such link. The resolver finds only the default build, so the hash of
the CPU build is a constant here.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = "requirements/constraints.txt"
TOOL_EXTRAS = frozenset({"dev", "docs"})
"""Extras for the development of Sluice. They are not needed to run it."""
OLDEST_PYTHON = "3.11"
TORCH_VERSION = "2.13.0"
CPU_TORCH_HASHES = ("6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",)
"""SHA-256 of the known +cpu wheels: CPython 3.11, Linux on x86_64."""

_CUDA_NAME = re.compile(r"(nvidia-.+|cuda-.+|triton)$")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^ ;\\]+)")

HEADER = """\
# Made by `make lock` from pyproject.toml. Change that file, not this one.
# {about}
# Install with pip install --require-hashes --no-deps -r <file>.
"""
ABOUT = {
    "lock.txt": "What Sluice and its extras need to run, torch aside, for every machine.",
    "dev.txt": "What only the tools of a checkout need (extras dev and docs), besides lock.txt.",
    "torch.txt": "The ordinary build of torch and the CUDA packages it needs on Linux.",
    "torch-cpu.txt": "The CPU build of torch, where pip is offered it.",
}


class Pin(NamedTuple):
    """One locked package: its name, version, the packages that require it, and its lines."""

    name: str
    version: str
    parents: frozenset[str]
    text: str


def read_pins(text: str) -> tuple[Pin, ...]:
    """Return the pins of a compiled requirements file, in its order.

    Raises:
        ValueError: A line before the first pin is neither a comment nor blank.
    """
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if _PIN.match(line):
            blocks.append([line])
        elif blocks:
            blocks[-1].append(line)
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"A lock file must hold only 'name==version' pins, got {line!r}.")
    return tuple(_pin(block) for block in blocks)


def split_torch(pins: Sequence[Pin]) -> tuple[tuple[Pin, ...], tuple[Pin, ...]]:
    """Return the pins without torch and CUDA, and those of torch and the CUDA packages.

    A package belongs to CUDA if its name indicates it, or if only CUDA packages require it.

    Raises:
        ValueError: torch is missing, or pinned to a version whose CPU build is unknown.
    """
    versions = [pin.version for pin in pins if pin.name == "torch"]
    if versions != [TORCH_VERSION]:
        raise ValueError(
            f"torch must be locked once, as {TORCH_VERSION}, got {versions or 'no torch'}. "
            f"Change {CONSTRAINTS}, TORCH_VERSION and CPU_TORCH_HASHES together."
        )
    cuda = {pin.name for pin in pins if _CUDA_NAME.match(pin.name)}
    while found := {p.name for p in pins if p.parents and p.parents <= cuda} - cuda:
        cuda |= found
    with_torch = cuda | {"torch"}
    return (
        tuple(pin for pin in pins if pin.name not in with_torch),
        tuple(pin for pin in pins if pin.name in with_torch),
    )


def cpu_pin(hashes: Sequence[str]) -> str:
    """Return the pin of the CPU build of torch."""
    lines = [f"torch=={TORCH_VERSION}+cpu", *(f"    --hash=sha256:{h}" for h in hashes)]
    return " \\\n".join(lines) + "\n"


def write_locks(folder: Path, pins: Sequence[Pin], *, to_run: Set[str]) -> None:
    """Write the four lock files.

    Args:
        folder: Folder of the lock files.
        pins: Pins of all extras.
        to_run: Names of the packages that are needed without the extras ``dev`` and ``docs``.
    """
    others, torch = split_torch(pins)
    texts = {
        "lock.txt": "".join(pin.text for pin in others if pin.name in to_run),
        "dev.txt": "".join(pin.text for pin in others if pin.name not in to_run),
        "torch.txt": "".join(pin.text for pin in torch),
        "torch-cpu.txt": cpu_pin(CPU_TORCH_HASHES),
    }
    for name, text in texts.items():
        (folder / name).write_text(HEADER.format(about=ABOUT[name]) + text)


def compile_pins(
    root: Path, uv: Path, *, extras: Iterable[str], current: str, upgrade: bool
) -> str:
    """Resolve pyproject.toml for all platforms.

    Args:
        root: Folder of the checkout.
        uv: Path of uv, the resolver.
        extras: Extras of the project to include.
        current: Text of the current pins, which are kept if possible.
        upgrade: Whether to replace the current pins by newer versions.
    """
    resolved = root / "requirements" / ".resolved.txt"
    resolved.write_text(current)
    command = [
        *(str(uv), "pip", "compile", "pyproject.toml", "--universal"),
        *(word for extra in extras for word in ("--extra", extra)),
        *("--generate-hashes", "--python-version", OLDEST_PYTHON, "--no-header", "--quiet"),
        *("--constraint", CONSTRAINTS, "--output-file", "requirements/.resolved.txt"),
        *(["--upgrade"] if upgrade else []),
    ]
    try:
        subprocess.run(command, cwd=root, check=True)
        return resolved.read_text()
    finally:
        resolved.unlink()


def main() -> None:
    """Write the lock files into the folder of this file."""
    parser = argparse.ArgumentParser(description="Write the lock files from pyproject.toml.")
    parser.add_argument(
        "--upgrade", action="store_true", help="replace the pins by newer versions if possible"
    )
    upgrade = parser.parse_args().upgrade
    folder, uv = ROOT / "requirements", Path(sys.executable).parent / "uv"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    files = [folder / name for name in ("lock.txt", "dev.txt", "torch.txt")]
    current = "".join(path.read_text() for path in files if path.exists())
    all_text = compile_pins(ROOT, uv, extras=sorted(extras), current=current, upgrade=upgrade)
    to_run = sorted(extras - TOOL_EXTRAS)
    runtime_text = compile_pins(ROOT, uv, extras=to_run, current=all_text, upgrade=False)
    pins = read_pins(all_text)
    write_locks(folder, pins, to_run={pin.name for pin in read_pins(runtime_text)})
    print(f"locked {len(pins)} packages")


def _pin(block: list[str]) -> Pin:
    match = _PIN.match(block[0])
    assert match is not None
    comments = [line.strip().lstrip("#").strip() for line in block if line.strip().startswith("#")]
    words = [comment.removeprefix("via").strip() for comment in comments]
    # "-c constraints.txt" limits a version, but is no package that requires this one.
    parents = frozenset(word for word in words if word and not word.startswith("-c "))
    return Pin(match[1].lower(), match[2], parents, "\n".join(block) + "\n")


if __name__ == "__main__":
    main()
