"""Why do parameters get no gradient: cut off, dead, started at 0, or idle by design? (POC-2)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import nn

from sluice.findings.finding import Finding
from sluice.models.module_activity import RECTIFIERS, Activity
from sluice.models.parameter_names import listing

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)
_LISTS = (nn.ModuleList, nn.ModuleDict)

_BY_DESIGN = (
    "Parts without influence on these rows: a bias before a normalisation, recurrent weights with "
    "seq_len 1, a rare token, an expert that no row was sent to, or a part switched off."
)
_IF_MEANT = "Nothing must be done if that is meant; else check how the named parameters are used."


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The trainable parameters that got no gradient in any batch, by name."""

    missing: frozenset[str]
    """None at all: no path from the loss."""
    zero: frozenset[str]
    """Exactly 0 everywhere."""
    num_trainable: int
    num_batches: int

    @property
    def parameters(self) -> frozenset[str]:
        """All of them."""
        return self.missing | self.zero


def judge_silence(
    model: nn.Module, silence: Silence, activity: Mapping[str, Activity]
) -> tuple[Finding, ...]:
    """Return what is wrong with parameters that stay without gradient, failures first.

    Healthy designs at most warn: an expert that no row was sent to or that got weight 0, while
    one of the same class gets gradients; a single bias; recurrent weights of a window of one row;
    a token that does not occur. What fails is told apart by what the modules read and gave:
    cut off (no gradient at all), dead (no unit above 0, or the next layer reads only 0), started
    at 0, or else just 0.

    Args:
        model: After the batches.
        silence: Who got no gradient in all of them.
        activity: What the modules did in these batches.

    Assumes:
        Modules are called as modules. Where only their weights are used, the gradients alone
        decide, and a dead layer is reported as one with zero gradients.
    """
    case = _Case(model, silence, activity)
    findings = [
        case.missing(),
        case.dead(),
        case.started_at_zero(),
        case.just_zero(),
        case.by_design(),
    ]
    return tuple(finding for finding in findings if finding is not None)


class _Case:
    """The parameters of one network, sorted by where they are."""

    def __init__(
        self, model: nn.Module, silence: Silence, activity: Mapping[str, Activity]
    ) -> None:
        self.silence, self.activity = silence, activity
        self.modules = dict(model.named_modules())
        first = {id(parameter): name for name, parameter in model.named_parameters()}
        self.trained = {
            owner: {
                # A tied parameter has one name everywhere, the one that the silence uses.
                first[id(parameter)]: parameter
                for parameter in module.parameters(recurse=False)
                if parameter.requires_grad
            }
            for owner, module in self.modules.items()
        }
        names = {name for owned in self.trained.values() for name in owned}
        self.heard = names - silence.parameters
        self.idle = {
            owner
            for owner, owned in self.trained.items()
            if owned and set(owned) <= silence.parameters and self._is_idle(owner)
        }
        """Modules without gradient, in whose place a twin learns."""
        self.quiet = {
            owner
            for owner, owned in self.trained.items()
            if set(owned) <= silence.zero
            and any(parameter.ndim > 1 for parameter in owned.values())
            and not isinstance(self.modules[owner], _LOOKUPS)
        }
        """Modules with a weight matrix of which no parameter gets a gradient but 0."""

    def missing(self) -> Finding | None:
        """Fail on what the loss has no path to."""
        cut = [
            name for name in self._in_order(self.silence.missing) if _owner(name) not in self.idle
        ]
        if not cut:
            return None
        unused = {owner for owner in map(_owner, cut) if not self._ran(owner)}
        note = f" {listing(sorted(unused))} never ran." if unused else ""
        return Finding(
            outcome="fail",
            summary=f"{len(cut)} of {self.silence.num_trainable} trainable parameters got no "
            f"gradient: {listing(cut)}.{note}",
            kind="missing gradients",
        )

    def dead(self) -> Finding | None:
        """Fail on layers whose units are never active; warn when they learn by another way."""
        seen = self._dead_rectifier() or self._dead_layer() or self._zeros_read()
        if seen is None:
            return None
        culprit, text = seen
        hurt = culprit in self._quiet_or_norm() or any(o not in self.idle for o in self.quiet)
        if not hurt:
            return Finding(outcome="warn", summary=f"{text}.", kind="dead units")
        silent = self._in_order(self.silence.zero)
        return Finding(
            outcome="fail",
            summary=f"{text}; so {listing(silent)} get a gradient of exactly 0.",
            kind="dead units",
        )

    def _dead_rectifier(self) -> tuple[str, str] | None:
        """Return the layer before a ReLU of which no unit is active, and what to say."""
        for name, seen in self.activity.items():
            if seen.dead and isinstance(self.modules[name], RECTIFIERS):
                if self._starts_at_zero(seen.fed_by):
                    continue
                return seen.fed_by, _never_above(name, seen)
        return None

    def _dead_layer(self) -> tuple[str, str] | None:
        """Return a layer without gradient that only gives what a ReLU cuts to 0."""
        for name, seen in self.activity.items():
            # One unit alone, as an output has, may well be below 0 in every example.
            silent = seen.dead and seen.num_units > 1 and name in self._quiet_or_norm()
            if silent and self.heard and not self._starts_at_zero(name):
                return name, _never_above(name, seen)
        return None

    def _zeros_read(self) -> tuple[str, str] | None:
        """Return a layer without gradient after which the next layer reads only zeros."""
        for name, seen in self.activity.items():
            if not seen.num_examples or seen.read is not False:
                continue
            source = seen.fed_by
            if source in self.quiet and not self._starts_at_zero(source):
                units = self.activity[source].num_units
                return source, (
                    f"0 of {units} units of {source} are active: {name} read only zeros in "
                    f"{seen.num_examples} examples"
                )
        return None

    def started_at_zero(self) -> Finding | None:
        """Fail on layers of zeros that no step moves."""
        layers = [
            owner
            for owner in self.quiet
            if self._starts_at_zero(owner) and owner not in self.idle and self._reads(owner)
        ]
        if not layers:
            return None
        return Finding(
            outcome="fail",
            summary=f"The weights of {listing(layers)} are all 0 and get a gradient of exactly 0, "
            f"in {self.silence.num_batches} batches.",
            kind="zero gradients",
            cause="The layer, and one next to it, were initialised at 0, so nothing moves either.",
            fix="Initialise at random. Only the last layer of a branch may start at 0.",
        )

    def just_zero(self) -> Finding | None:
        """Fail on whole layers with a gradient of 0 for another reason."""
        layers = [owner for owner in self.quiet if owner not in self.idle]
        all_zero = self.silence.zero and not self.heard
        if not layers and not all_zero:
            return None
        names = self._in_order(
            self.silence.zero
            if all_zero
            else {name for owner in layers for name in self.trained[owner]}
        )
        return Finding(
            outcome="fail",
            summary=f"{len(names)} of {self.silence.num_trainable} gradients are exactly 0 in "
            f"{self.silence.num_batches} batches: {listing(names)}.",
            kind="zero gradients",
        )

    def by_design(self) -> Finding | None:
        """Warn about the rest."""
        missing = {name for name in self.silence.missing if _owner(name) in self.idle}
        rest = self._in_order(self.silence.zero | missing)
        if not rest:
            return None
        return Finding(
            outcome="warn",
            summary=f"{len(rest)} of {self.silence.num_trainable} trainable parameters got no "
            f"gradient but 0 in {self.silence.num_batches} batches: {listing(rest)}.",
            kind="zero gradients",
            cause=_BY_DESIGN,
            fix=_IF_MEANT,
        )

    def _is_idle(self, owner: str) -> bool:
        """Does it, or a part it is in, have a twin that learns in its place?"""
        return any(self._has_working_twin(name) for name in _upwards(owner))

    def _has_working_twin(self, name: str) -> bool:
        module, seen = self.modules[name], self.activity.get(name)
        parent = self.modules[_owner(name)] if name else None
        listed = isinstance(parent, _LISTS)
        for other, candidate in self.modules.items():
            if type(candidate) is not type(module) or _related(other, name):
                continue
            if not self._ran(name):
                alike = listed and _owner(other) == _owner(name)
            else:
                twin = self.activity.get(other)
                alike = seen is not None and twin is not None and seen.source == twin.source
            if alike and self._learns(other):
                return True
        return False

    def _learns(self, name: str) -> bool:
        return any(heard.startswith(f"{name}.") for heard in self.heard)

    def _ran(self, owner: str) -> bool:
        """Did any row go through the module, or through a part of it?"""
        return any(
            seen.num_examples
            for name, seen in self.activity.items()
            if name == owner or name.startswith(f"{owner}.")
        )

    def _reads(self, owner: str) -> bool:
        return owner not in self.activity or self.activity[owner].read is not False

    def _quiet_or_norm(self) -> set[str]:
        norms = {
            owner
            for owner, owned in self.trained.items()
            if isinstance(self.modules[owner], _NORMS) and owned and set(owned) <= self.silence.zero
        }
        return self.quiet | norms

    def _starts_at_zero(self, owner: str) -> bool:
        weights = [p for p in self.trained.get(owner, {}).values() if p.ndim > 1]
        return bool(weights) and not any(bool(p.detach().any()) for p in weights)

    def _in_order(self, names: Collection[str]) -> list[str]:
        return list(
            dict.fromkeys(n for owned in self.trained.values() for n in owned if n in names)
        )


def _never_above(name: str, seen: Activity) -> str:
    return (
        f"0 of {seen.num_units} units of {name} were above 0 in any of {seen.num_examples} examples"
    )


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _upwards(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _related(one: str, other: str) -> bool:
    if not one or not other:
        return True  # The whole network.
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
