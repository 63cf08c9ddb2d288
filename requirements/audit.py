"""Queries a service for known vulnerabilities of the locked packages.

The query also contains a control: an old release that is known to be vulnerable. If the service
reports no vulnerability of the control, it has no advisories, and the audit does not pass.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("lock.txt", "torch.txt", "dev.txt")
OSV_URL = "https://api.osv.dev/v1/query"
KNOWN_VULNERABLE = "django==2.0"
"""Control of the query. No lock file contains it. It has dozens of advisories since 2018."""

CLEAN, VULNERABLE, NOT_AUDITED = 0, 1, 3
"""Exit codes."""

TIMEOUT_S = 900


def query_service(requirements: Sequence[Path], *, osv_url: str) -> list[dict[str, Any]] | str:
    """Return the entries of the packages from the service, or the reason why the query failed."""
    with tempfile.TemporaryDirectory() as folder:
        control, answer = Path(folder, "control.txt"), Path(folder, "answer.json")
        # pip-audit requires a hash, although nothing is downloaded.
        control.write_text(f"{KNOWN_VULNERABLE} --hash=sha256:{'0' * 64}\n")
        files = [word for path in (*requirements, control) for word in ("-r", str(path))]
        command = [
            *(sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--strict"),
            *("--vulnerability-service", "osv", "--osv-url", osv_url, "--progress-spinner", "off"),
            *("--format", "json", "--desc", "off", "--output", str(answer), *files),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {TIMEOUT_S} s"
        try:
            entries: list[dict[str, Any]] = json.loads(answer.read_text())["dependencies"]
        except (OSError, ValueError, KeyError):
            lines = done.stderr.strip().splitlines() or ["pip-audit wrote no result"]
            is_unreachable = "ConnectionError" in done.stderr
            return f"not reachable ({lines[-1]})" if is_unreachable else lines[-1]
    return entries


def audit(requirements: Sequence[Path], *, osv_url: str) -> tuple[int, str]:
    """Return the exit code and the text to print."""
    entries = query_service(requirements, osv_url=osv_url)
    if isinstance(entries, str):
        return NOT_AUDITED, f"Not audited: {osv_url}: {entries}"
    control, _, version = KNOWN_VULNERABLE.partition("==")
    controls = [p for p in entries if (p["name"], p.get("version")) == (control, version)]
    if not any(package.get("vulns") for package in controls):
        return NOT_AUDITED, (
            f"Not audited: {osv_url} knows no vulnerability of {KNOWN_VULNERABLE}, which has many. "
            "It is not an advisory service, or it has no advisories."
        )
    locked = [package for package in entries if package["name"] != control]
    lines = [
        f"{p['name']} {p['version']}: {v['id']}, fixed in {', '.join(v['fix_versions']) or 'none'}"
        for p in locked
        for v in p.get("vulns", [])
    ]
    # A lock file may contain a package and version twice, with different environment markers.
    audited = {(p["name"], p.get("version")) for p in locked if "skip_reason" not in p}
    if not audited:
        return NOT_AUDITED, "Not audited: no package was queried. Are the lock files empty?"
    if lines:
        return VULNERABLE, "\n".join([*sorted(set(lines)), "Run `make lock ARGS=--upgrade`."])
    return CLEAN, f"{len(audited)} packages, no known vulnerability"


def main(arguments: Sequence[str]) -> int:
    """Audit the lock files, and return the exit code: 0 clean, 1 vulnerable, 3 not audited."""
    parser = argparse.ArgumentParser(
        description="Look for known vulnerabilities of the locked packages."
    )
    parser.add_argument("--osv-url", default=OSV_URL, help="service with the interface of OSV")
    parser.add_argument(
        "requirements", nargs="*", type=Path, default=[ROOT / "requirements" / n for n in LOCKS]
    )
    options = parser.parse_args(arguments)
    code, text = audit(options.requirements, osv_url=options.osv_url)
    print(text, file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
