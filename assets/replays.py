"""What the traces of a candidate's trainings show: in words, and as pages to play back."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.assets.resources import State
from sluice.reports.folder import save_page
from sluice.trace.replay.page import replay_of
from sluice.training.members import Member

_MOST_PAGES = 6


@dataclass(frozen=True, slots=True)
class Traces:
    """What to show of the traces."""

    said: str
    """Markdown."""
    errors: tuple[str, ...]
    replays: Mapping[str, str]
    """Addresses of pages by what they show."""


def keep_replays(
    pipeline: str, members: Sequence[Member], state: State, *, environ: Mapping[str, str]
) -> Traces:
    """Keep the pages of members with something to look at, and of the first one.

    Raises:
        StorageError: A page cannot be written.
    """
    told = [member for member in members if member.diagnoses]
    shown = [*told[:_MOST_PAGES], *(m for m in members[:1] if not m.diagnoses)]
    replays = {
        _name(member): save_page(
            replay_of(f"{pipeline} {_name(member)}", state.store.get(member.replay).decode()),
            f"replays/{pipeline}/seed-{member.seed}-fold-{member.fold_id}",
            home=state.home,
            environ=environ,
        ).url
        for member in shown
        if member.replay
    }
    lines = [
        f"- {_name(member)}, since step {d.step}: **{d.fault}**. {d.finding.what} {d.finding.fix}"
        for member in told
        for d in member.diagnoses
    ]
    traced = sum(bool(member.replay) for member in members)
    return Traces(
        said="\n".join(lines) or f"Nothing wrong in the traces of {traced} trainings.",
        errors=tuple(sentence for member in members for sentence in errors_of(member)),
        replays=replays,
    )


def errors_of(member: Member) -> tuple[str, ...]:
    """Return a sentence for every error that the member's trace shows."""
    return tuple(
        f"{_name(member)}: {d.fault} since step {d.step}. {d.finding.what} {d.finding.fix} "
        f"Not so if: {d.finding.contradicted_by}"
        for d in member.diagnoses
        if d.finding.severity == "error"
    )


def shared_errors(members: Sequence[Member]) -> tuple[str, ...]:
    """Return the faults that are errors in more than half of the traced members.

    A fault of the code is in all of them: one alone is no reason to stop, however certain its
    rule is.
    """
    traced = [member for member in members if member.replay]
    counts = Counter(
        fault
        for member in traced
        for fault in {d.fault for d in member.diagnoses if d.finding.severity == "error"}
    )
    return tuple(fault for fault, count in counts.most_common() if count > len(traced) / 2)


def _name(member: Member) -> str:
    return f"seed {member.seed} fold {member.fold_id}"
