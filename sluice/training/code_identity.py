"""Record of the code behind a model, by part, so that a difference can be named."""

from collections.abc import Iterator, Mapping

from pydantic import Field

from sluice.base.digests import digest_json, short
from sluice.base.settings import Record

_SHOWN = 5
"""Number of changes that a description lists; further changes are counted."""


class CodeIdentity(Record):
    """The code behind a model, by part, so that a difference can be named."""

    modules: dict[str, str] = Field(
        description="Digest of the source by dotted name: the user's modules and Sluice's."
    )
    distributions: dict[str, str] = Field(description="Version of each distribution, by name.")
    data_files: dict[str, str] = Field(
        description="Digest of the content of each data file that the workload declares."
    )
    not_followed: tuple[str, ...] = Field(
        (),
        description="Imports and code that are computed at run time and not covered by the digest.",
    )

    @property
    def digest(self) -> str:
        """Digest of all covered parts."""
        return digest_json([self.modules, self.distributions, self.data_files])

    @property
    def gap(self) -> str:
        """What the digest does not cover, as one sentence; "" if it covers everything."""
        if not self.not_followed:
            return ""
        return (
            "The code digest does not cover code that is computed at run time: "
            f"{'; '.join(self.not_followed)}. Changes there are not detected."
        )

    def changes(self, earlier: "CodeIdentity") -> tuple[str, ...]:
        """Return one phrase for each part that differs from an earlier identity."""
        return (
            *_changes("module", earlier.modules, self.modules),
            *_changes("package", earlier.distributions, self.distributions, show_values=True),
            *_changes("data file", earlier.data_files, self.data_files),
        )


def describe_changes(now: CodeIdentity, earlier: CodeIdentity | None) -> str:
    """Return what changed since an earlier identity, as a phrase; "code" if it is unknown."""
    changes = now.changes(earlier) if earlier is not None else ()
    if not changes:
        return "code"
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return ", ".join(changes[:_SHOWN]) + more


def _changes(
    kind: str, earlier: Mapping[str, str], now: Mapping[str, str], *, show_values: bool = False
) -> Iterator[str]:
    for name in sorted(earlier.keys() | now.keys()):
        before, after = earlier.get(name), now.get(name)
        if before == after:
            continue
        if before is None or after is None:
            yield f"{kind} {name} {'added' if before is None else 'removed'}"
        elif show_values:
            yield f"{kind} {name} {before} -> {after}"
        else:
            yield f"{kind} {name} changed ({short(before)} -> {short(after)})"
