"""Record of the code that determines a model, by module and package, so that changes are named."""

from collections.abc import Iterator, Mapping

from pydantic import Field

from sluice.base.digests import digest_json, short
from sluice.base.settings import Record

_MAX_LISTED_CHANGES = 5
"""Maximum number of changes that a text lists; further changes are only counted."""


class CodeIdentity(Record):
    """Digests and versions of all code that determines a model, by module and distribution."""

    modules: dict[str, str] = Field(
        description="Digest of the source of each module of the user and of Sluice, by dotted name."
    )
    distributions: dict[str, str] = Field(description="Version of each distribution, by name.")
    data_files: dict[str, str] = Field(
        description="Digest of the content of each data file that the workload declares."
    )
    not_followed: tuple[str, ...] = Field(
        (),
        description="Imports, calls and modules that may run code which the digest does not cover.",
    )

    @property
    def digest(self) -> str:
        """Digest of the modules, distributions and data files."""
        return digest_json([self.modules, self.distributions, self.data_files])

    @property
    def coverage_warning(self) -> str:
        """Sentence that lists where the digest may not cover all code; "" if it covers all code."""
        if not self.not_followed:
            return ""
        return (
            f"The code digest may not cover all code: {'; '.join(self.not_followed)}. Changes of "
            "code that is run or imported there are not detected."
        )

    def changes(self, earlier: "CodeIdentity") -> tuple[str, ...]:
        """Return one phrase for each module, package or file that changed since ``earlier``."""
        return (
            *_iter_changes("module", earlier.modules, self.modules),
            *_iter_changes("package", earlier.distributions, self.distributions, is_version=True),
            *_iter_changes("data file", earlier.data_files, self.data_files),
        )


def describe_changes(now: CodeIdentity, earlier: CodeIdentity | None) -> str:
    """Return the changes since an earlier identity, as a phrase; "code" if no change is known."""
    changes = now.changes(earlier) if earlier is not None else ()
    if not changes:
        return "code"
    num_unlisted = len(changes) - _MAX_LISTED_CHANGES
    more = f" and {num_unlisted} more" if num_unlisted > 0 else ""
    return ", ".join(changes[:_MAX_LISTED_CHANGES]) + more


def _iter_changes(
    kind: str, earlier: Mapping[str, str], now: Mapping[str, str], *, is_version: bool = False
) -> Iterator[str]:
    for name in sorted(earlier.keys() | now.keys()):
        before, after = earlier.get(name), now.get(name)
        if before == after:
            continue
        if before is None or after is None:
            yield f"{kind} {name} {'added' if before is None else 'removed'}"
        elif is_version:
            yield f"{kind} {name} {before} -> {after}"
        else:
            yield f"{kind} {name} changed ({short(before)} -> {short(after)})"
