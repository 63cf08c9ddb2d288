"""Reads the licence of every locked package, compares it with the reviewed ones, and lists all.

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
License 2.0 (`LICENSE`). The list covers the locked packages, not the code that a package
bundles, whose licences are in the licence files of the package. The list is the maintainers'
reading, not legal advice.
"""


class LicenseProblem(Exception):
    """A licence was not reviewed; the message states which one and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageLicense:
    """The licence of one locked package."""

    name: str
    license: str
    """SPDX expression, or the text that the review gives instead."""

    note: str
    """Obligations of a licence that is accepted for this package only; empty for other licences."""

    where: str
    """Platform on which the package is installed; empty for all platforms."""

    is_tool: bool
    """Whether only the development of Sluice needs the package."""


class Review:
    """Reviewed licences and packages, as read from ``licenses.toml``."""

    def __init__(self, reviewed: Mapping[str, Any]) -> None:
        self._accepted = {name for names in reviewed["reviewed"].values() for name in names}
        self._spelling: dict[str, str] = reviewed["spelling"]
        self.packages: dict[str, dict[str, str]] = reviewed["packages"]
        self.elsewhere: dict[str, dict[str, str]] = reviewed["elsewhere"]

    def license_of(self, name: str, metadata: Distribution) -> tuple[str, str]:
        """Return licence and note of an installed package.

        Args:
            name: Normalised name of the package.
            metadata: Metadata of the package.

        Raises:
            LicenseProblem: The licence was not reviewed, or differs from the reviewed one.
        """
        candidates = list(declared_licenses(metadata))
        if reviewed := self.packages.get(name):
            if reviewed["declared"] not in candidates:
                raise LicenseProblem(
                    f"{name} was reviewed as {reviewed['declared']!r} and now declares "
                    f"{candidates}. Review it again and change [packages.{name}]."
                )
            return reviewed["license"], reviewed["note"]
        expressions = [self._spelling.get(text, text) for text in candidates]
        # All must be accepted: a package may declare GPL in a field and MIT in a classifier.
        if expressions and all(_parts(text) <= self._accepted for text in expressions):
            return expressions[0], ""
        raise LicenseProblem(
            f"{name} declares {candidates or 'no licence'}, which is not reviewed. Read its "
            f"licence files, then add it to [reviewed], [spelling] or [packages.{name}], or "
            "remove the package."
        )


def declared_licenses(package: Distribution) -> Iterable[str]:
    """Yield the licences that the metadata of a package declare.

    If there is an SPDX expression, it is the only one. Otherwise they are the licence field and
    each classifier. A licence field of several lines is the text of a licence, and is omitted.
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
        LicenseProblem: A licence was not reviewed, or a package is not installed. The message
            names all of them.
    """
    review = Review(tomllib.loads((root / "requirements" / "licenses.toml").read_text()))
    by_name = {normalised(package.name): package for package in installed}
    found, problems = [], []
    for file in ("lock.txt", "torch.txt", "dev.txt"):
        names = {p.name for p in lock.read_pins((root / "requirements" / file).read_text())}
        for name in sorted(names):
            try:
                text, note, where = _find_license(normalised(name), review, by_name)
            except LicenseProblem as problem:
                problems.append(str(problem))
                continue
            is_tool = file == "dev.txt"
            found.append(
                PackageLicense(name=name, license=text, note=note, where=where, is_tool=is_tool)
            )
    if problems:
        raise LicenseProblem("\n".join(problems))
    return sorted(found, key=lambda package: package.name)


def render(packages: Iterable[PackageLicense]) -> str:
    """Return the page that lists them."""
    packages = list(packages)
    lines = [HEADER]
    lines += ["## Conditions for redistributing Sluice", ""]
    lines += [f"- **{p.name}** ({p.license}): {p.note}" for p in packages if p.note]
    lines += [
        "- **nvidia-\\***, **cuda-toolkit**: not free software. The default build of torch "
        "needs them on Linux; NVIDIA's terms state what may be redistributed. The CPU build needs "
        "none of them.",
    ]
    for title, is_tool in (("Needed to run", False), ("Needed only for development", True)):
        lines += ["", f"## {title}", "", "| package | licence | |", "|---|---|---|"]
        lines += [
            f"| {p.name} | {p.license} | {'see above' if p.note else p.where} |"
            for p in packages
            if p.is_tool == is_tool
        ]
    return "\n".join(lines) + "\n"


def normalised(name: str) -> str:
    """Return the name of a distribution in the normalised form that package indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Write ``docs/licenses.md``; return 1 if a licence is not reviewed."""
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


def _find_license(
    name: str, review: Review, by_name: Mapping[str, Distribution]
) -> tuple[str, str, str]:
    """Return licence, note and platform."""
    if other := review.elsewhere.get(name):  # makes the page the same on every machine
        return other["license"], "", other["where"]
    if name not in by_name:
        raise LicenseProblem(
            f"{name} is locked and not installed, so its licence cannot be read. Run `make setup`; "
            f"for a package of another platform, add [elsewhere.{name}]."
        )
    return *review.license_of(name, by_name[name]), ""


if __name__ == "__main__":
    sys.exit(main())
