"""Read the licence of every locked package, compare it with those reviewed, and list them all.

The licence is what the metadata of the installed package declare: its SPDX expression, else its
licence field and its classifiers. What `licenses.toml` does not cover is an error, never a guess.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from requirements import lock

ROOT = Path(__file__).resolve().parent.parent
NOT_REVIEWED = 1
_OPERATORS = re.compile(r"\s+(?:AND|OR)\s+|[()]")

HEADER = """\
# Licenses of the dependencies

Made by `make licenses` from the metadata of the installed packages and
`requirements/licenses.toml`; change that file, not this one. Sluice itself is under the Apache
License 2.0 (`LICENSE`). The list covers the locked packages, not what a package bundles inside
itself; each says that in its own licence files. It is the maintainers' reading, not legal advice.
"""


class LicenseProblem(Exception):
    """A licence was not reviewed; the message says which and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageLicense:
    """The licence of one locked package."""

    name: str
    license: str
    """SPDX expression, or what the review says in its place."""

    note: str
    """What a licence that is not reviewed for all asks for; empty for the others."""

    where: str
    """Platform, of a package that is not installed everywhere; else empty."""

    tool: bool
    """Whether only a checkout needs the package."""


class Review:
    """What was reviewed, as ``licenses.toml`` says."""

    def __init__(self, reviewed: Mapping[str, Any]) -> None:
        self._accepted = {name for names in reviewed["reviewed"].values() for name in names}
        self._spelling: dict[str, str] = reviewed["spelling"]
        self.packages: dict[str, dict[str, str]] = reviewed["packages"]
        self.elsewhere: dict[str, dict[str, str]] = reviewed["elsewhere"]

    def license_of(self, name: str, metadata: Distribution) -> tuple[str, str]:
        """Return licence and note of an installed package, whose name is normalised.

        Raises:
            LicenseProblem: It was not reviewed, or the package declares another than before.
        """
        candidates = list(declared(metadata))
        if own := self.packages.get(name):
            if own["declared"] not in candidates:
                raise LicenseProblem(
                    f"{name} was reviewed as {own['declared']!r} and now declares {candidates}. "
                    f"Review it again and change [packages.{name}]."
                )
            return own["license"], own["note"]
        expressions = [self._spelling.get(text, text) for text in candidates]
        # Every one of them: a field that says GPL is not outvoted by a classifier that says MIT.
        if expressions and all(_parts(text) <= self._accepted for text in expressions):
            return expressions[0], ""
        raise LicenseProblem(
            f"{name} declares {candidates or 'no licence'}, which is not reviewed. Read its "
            f"licence files, then add it to [reviewed], [spelling] or [packages.{name}], or do "
            "without it."
        )


def declared(package: Distribution) -> Iterable[str]:
    """Yield what the metadata of a package say of its licence.

    That is the SPDX expression alone where there is one, else a licence field of one line (a longer
    one is the text itself) and each classifier.
    """
    metadata = package.metadata
    if expressions := metadata.get_all("License-Expression"):
        yield expressions[0]
        return
    text = (metadata.get_all("License") or [""])[0].strip()
    if text and text != "UNKNOWN" and "\n" not in text:
        yield text
    for classifier in metadata.get_all("Classifier") or []:
        if classifier.startswith("License ::") and classifier != "License :: OSI Approved":
            yield classifier.rpartition("::")[2].strip()


def read_licenses(root: Path, installed: Iterable[Distribution]) -> list[PackageLicense]:
    """Return the licence of every locked package, by name.

    Args:
        root: The checkout.
        installed: Packages whose metadata can be read.

    Raises:
        LicenseProblem: At least one was not reviewed, or is not installed; all are named.
    """
    review = Review(tomllib.loads((root / "requirements" / "licenses.toml").read_text()))
    by_name = {normalised(package.name): package for package in installed}
    found, problems = [], []
    for file in ("lock.txt", "torch.txt", "dev.txt"):
        names = {p.name for p in lock.read_pins((root / "requirements" / file).read_text())}
        for name in sorted(names):
            try:
                text, note, where = _one(normalised(name), review, by_name)
            except LicenseProblem as problem:
                problems.append(str(problem))
                continue
            tool = file == "dev.txt"
            found.append(PackageLicense(name=name, license=text, note=note, where=where, tool=tool))
    if problems:
        raise LicenseProblem("\n".join(problems))
    return sorted(found, key=lambda package: package.name)


def render(packages: Iterable[PackageLicense]) -> str:
    """Return the page that lists them."""
    packages = list(packages)
    lines = [HEADER]
    lines += ["## To know before you pass Sluice on", ""]
    lines += [f"- **{p.name}** ({p.license}): {p.note}" for p in packages if p.note]
    lines += [
        "- **nvidia-\\***, **cuda-toolkit**: not free software. The ordinary build of torch "
        "needs them on Linux; NVIDIA's terms say what may be passed on. The CPU build needs none.",
    ]
    for title, tool in (("Needed to run", False), ("Tools of a checkout", True)):
        lines += ["", f"## {title}", "", "| package | licence | |", "|---|---|---|"]
        lines += [
            f"| {p.name} | {p.license} | {'see above' if p.note else p.where} |"
            for p in packages
            if p.tool == tool
        ]
    return "\n".join(lines) + "\n"


def normalised(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Write ``docs/licenses.md``; return 1 when something is not reviewed."""
    try:
        packages = read_licenses(ROOT, distributions())
    except LicenseProblem as problem:
        print(problem, file=sys.stderr)
        return NOT_REVIEWED
    (ROOT / "docs" / "licenses.md").write_text(render(packages))
    print(f"docs/licenses.md: {len(packages)} packages, each with a reviewed licence")
    return 0


def _parts(expression: str) -> set[str]:
    return {part.strip() for part in _OPERATORS.split(expression) if part.strip()}


def _one(name: str, review: Review, by_name: Mapping[str, Distribution]) -> tuple[str, str, str]:
    """Return licence, note and platform."""
    if other := review.elsewhere.get(name):  # the same page on every machine
        return other["license"], "", other["where"]
    if name not in by_name:
        raise LicenseProblem(
            f"{name} is locked and not installed, so its licence cannot be read. Run `make setup`; "
            f"for a package of another platform, add [elsewhere.{name}]."
        )
    return *review.license_of(name, by_name[name]), ""


if __name__ == "__main__":
    sys.exit(main())
