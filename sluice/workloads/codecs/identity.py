"""Identity of a codec: everything that decides how requests are decoded, and results of probes."""

from typing import Any

from pydantic import Field

from sluice.base.digests import digest_json, short
from sluice.base.errors import CodecMismatch
from sluice.base.settings import Record

_MAX_PROBE_CHARS = 60


class CodecProbe(Record):
    """A fixed element, and the result of decoding it."""

    element: str = Field(description="The element, or its name if it is not a text.")
    result: str | tuple[int, ...] = Field(
        description="For a text its token ids; for another element the digest of its tensor."
    )


class CodecIdentity(Record):
    """Everything that decides decoding, with its digest."""

    kind: str = Field(description="Kind of the codec, such as text.")
    parts: dict[str, str] = Field(description="Settings as JSON, and digests of files, by name.")
    probes: tuple[CodecProbe, ...] = ()
    digest: str = Field(description="Digest of kind, parts and probes.")

    @classmethod
    def of(
        cls, kind: str, parts: dict[str, str], probes: tuple[CodecProbe, ...]
    ) -> "CodecIdentity":
        """Return the identity with its digest."""
        content: dict[str, Any] = {
            "kind": kind,
            "parts": parts,
            "probes": [probe.model_dump(mode="json") for probe in probes],
        }
        return cls(kind=kind, parts=parts, probes=probes, digest=digest_json(content))

    def differences(self, current: "CodecIdentity") -> list[str]:
        """Return one clause for each difference to another identity; the probes come first."""
        if self.kind != current.kind:
            return [f"its kind was {self.kind} and is {current.kind}"]
        old_results = {probe.element: probe.result for probe in self.probes}
        new_results = {probe.element: probe.result for probe in current.probes}
        differences = [
            f"the probe {element[:_MAX_PROBE_CHARS]!r} was decoded to "
            f"{_describe_result(result)} and is decoded to {_describe_result(new_results[element])}"
            for element, result in old_results.items()
            if element in new_results and new_results[element] != result
        ]
        if old_results.keys() != new_results.keys():
            differences.append("the list of probes has changed")
        for name in sorted({*self.parts, *current.parts}):
            old_part, new_part = self.parts.get(name, "absent"), current.parts.get(name, "absent")
            if old_part != new_part:
                differences.append(
                    f"{name} was {_describe_part(old_part)} and is {_describe_part(new_part)}"
                )
        return differences


def require_same_codec(subject: str, trained: CodecIdentity | None, current: CodecIdentity) -> None:
    """Require that this process decodes requests in the same way as the training.

    Args:
        subject: Name of the version or of the models, for the message.
        trained: Identity at the training; None for versions of older releases, which are accepted.
        current: Identity of the codec in this process.

    Raises:
        CodecMismatch: The identities differ.
    """
    if trained is None or trained.digest == current.digest:
        return
    differences = trained.differences(current) or ["its digest was changed"]
    more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
    raise CodecMismatch(
        f"{subject} was trained with the codec '{trained.kind}' {short(trained.digest)}, but the "
        f"codec here is '{current.kind}' {short(current.digest)}: "
        f"{'; '.join(differences[:3])}{more}.",
        cause="A file or a setting of the codec, such as a tokenizer, has changed since the "
        "training. The network would receive other inputs than in the training.",
        fix="Restore the file or setting, or train the pipeline again. List the files in "
        "data_files of the workload, so that a change leads to a new training.",
    )


def _describe_result(result: str | tuple[int, ...]) -> str:
    if isinstance(result, str):
        return short(result)
    ids = ", ".join(map(str, result[:12]))
    return f"[{ids}{', ...' if len(result) > 12 else ''}]"


def _describe_part(value: str) -> str:
    is_digest = len(value) == 64 and set(value) <= set("0123456789abcdef")
    return short(value) if is_digest else value[:80]
