"""Writes the software bill of materials of the packages that Sluice needs to run (CycloneDX JSON).

It lists the locked packages of this platform and Python with version, licence, dependencies, and
the hashes of the files that the lock accepts. It omits packages that only development needs, and
code that a package bundles, such as the copy of aiohttp in Ray and the native libraries in torch.
"""

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement

from requirements import licenses, lock

ROOT = Path(__file__).resolve().parent.parent
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VERSION = re.compile(r'(?m)^__version__ = "(.+)"$')
_PROJECT_PARENT = "(pyproject.toml)"


def pins_here(folder: Path, names: Sequence[str]) -> list[lock.Pin]:
    """Return the pins of the named lock files whose markers hold on this platform and Python."""
    pins = [pin for name in names for pin in lock.read_pins((folder / name).read_text())]
    markers = [Requirement(pin.text.splitlines()[0].rstrip("\\ ")).marker for pin in pins]
    return [
        pin
        for pin, marker in zip(pins, markers, strict=True)
        if marker is None or marker.evaluate()
    ]


def make_sbom(root: Path, *, torch: str) -> Bom:
    """Return the bill of materials.

    Args:
        root: The checkout.
        torch: Lock file of the build of torch, ``torch.txt`` or ``torch-cpu.txt``.

    Raises:
        LicenseProblem: The licence of a package was not reviewed.
    """
    pins = pins_here(root / "requirements", ("lock.txt", torch))
    known = {p.name: p.license for p in licenses.read_licenses(root, distributions())}
    components = {pin.name: _component(pin, known[pin.name]) for pin in pins}
    name = tomllib.loads((root / "pyproject.toml").read_text())["project"]["name"]
    version = _VERSION.search((root / "sluice" / "__init__.py").read_text())
    assert version is not None
    sluice = Component(
        name=name,
        version=version[1],
        type=ComponentType.APPLICATION,
        bom_ref=name,
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
    )
    bom = Bom(components=components.values())
    bom.metadata.component = sluice
    parents = {pin.name: pin.parents for pin in pins}
    # The pin of the CPU build of torch does not name the packages that require it.
    bom.register_dependency(
        sluice,
        [
            component
            for needed, component in components.items()
            if needed == "torch" or any(p.endswith(_PROJECT_PARENT) for p in parents[needed])
        ],
    )
    for parent, component in components.items():
        bom.register_dependency(component, _dependencies_of(parent, components, parents))
    return bom


def write_sbom(bom: Bom, out: Path) -> None:
    """Write a bill of materials; if writing fails, no incomplete file remains at ``out``.

    Raises:
        ValueError: The bill of materials does not fit the schema of CycloneDX 1.6.
    """
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"The bill of materials does not fit CycloneDX 1.6: {problem}")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_suffix(".tmp")
    temporary.write_text(text + "\n")
    os.replace(temporary, out)


def main() -> int:
    """Write ``dist/sbom.cdx.json``; return 1 if a licence was not reviewed."""
    parser = argparse.ArgumentParser(description="Write the bill of materials (CycloneDX JSON).")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "sbom.cdx.json")
    parser.add_argument(
        "--torch",
        choices=("torch.txt", "torch-cpu.txt"),
        default="torch.txt",
        help="lock file of the build of torch that is shipped",
    )
    options = parser.parse_args()
    try:
        bom = make_sbom(ROOT, torch=options.torch)
    except licenses.LicenseProblem as problem:
        print(problem, file=sys.stderr)
        return licenses.NOT_REVIEWED
    write_sbom(bom, options.out)
    print(f"{options.out}: {len(bom.components)} packages")
    return 0


def _component(pin: lock.Pin, license_text: str) -> Component:
    purl = PackageURL("pypi", None, pin.name, pin.version)
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        # A name, not an expression: "BSD" and "none declared" are no SPDX identifiers.
        licenses=[DisjunctiveLicense(name=license_text)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=h) for h in _HASH.findall(pin.text)],
    )


def _dependencies_of(
    parent: str, components: dict[str, Component], parents: dict[str, frozenset[str]]
) -> Iterable[Component]:
    return [
        component
        for name, component in components.items()
        if parent in {licenses.normalised(p) for p in parents[name]}
    ]


if __name__ == "__main__":
    sys.exit(main())
