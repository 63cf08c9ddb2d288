"""Findings of the training tracer for a candidate, as text and as replay pages."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from sluice.assets.resources import SluiceState
from sluice.reports.folder import save_page
from sluice.trace.report.replay.page import rename_replay
from sluice.training.members import Member

_MAX_PAGES = 6
"""Maximum number of replay pages of members with findings."""


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Findings of the traces of one candidate."""

    markdown: str
    """List of all findings, in Markdown."""

    errors: tuple[str, ...]
    """One text for each finding with the severity "error"."""

    replays: Mapping[str, str]
    """URLs of the replay pages, by seed and fold."""


def save_replays(
    pipeline: str, members: Sequence[Member], state: SluiceState, *, environ: Mapping[str, str]
) -> TraceSummary:
    """Save replay pages of the first member and of at most ``_MAX_PAGES`` members with findings.

    Raises:
        StorageError: A page cannot be written.
    """
    members_with_findings = [member for member in members if member.diagnoses]
    members_with_page = [
        *members_with_findings[:_MAX_PAGES],
        *(m for m in members[:1] if not m.diagnoses),
    ]
    replays = {
        _member_name(member): save_page(
            rename_replay(
                f"{pipeline} {_member_name(member)}", state.store.get(member.replay).decode()
            ),
            f"replays/{pipeline}/seed-{member.seed}-fold-{member.fold_id}",
            home=state.home,
            environ=environ,
        ).url
        for member in members_with_page
        if member.replay
    }
    lines = [
        f"- {_member_name(member)}, since step {d.step}: **{d.fault}**. {d.finding.what} "
        f"{d.finding.fix}"
        for member in members_with_findings
        for d in member.diagnoses
    ]
    num_traced = sum(bool(member.replay) for member in members)
    return TraceSummary(
        markdown="\n".join(lines) or f"No findings in the traces of {num_traced} trainings.",
        errors=tuple(error for member in members for error in trace_errors(member)),
        replays=replays,
    )


def trace_errors(member: Member, *, faults: Container[str] | None = None) -> tuple[str, ...]:
    """Return one text for each error in a member's trace.

    If ``faults`` is given, errors with other faults are left out.
    """
    return tuple(
        f"{_member_name(member)}: {d.fault} since step {d.step}. {d.finding.what} {d.finding.fix} "
        f"False alarm if: {d.finding.contradicted_by}"
        for d in member.diagnoses
        if d.finding.severity == "error" and (faults is None or d.fault in faults)
    )


def shared_errors(members: Sequence[Member]) -> tuple[str, ...]:
    """Return the faults that are errors in more than half of the traced members.

    A bug in the code affects all members, so an error in a single member does not stop the run.
    """
    traced_members = [member for member in members if member.replay]
    counts = Counter(
        fault
        for member in traced_members
        for fault in {d.fault for d in member.diagnoses if d.finding.severity == "error"}
    )
    return tuple(fault for fault, count in counts.most_common() if count > len(traced_members) / 2)


def _member_name(member: Member) -> str:
    return f"seed {member.seed} fold {member.fold_id}"
