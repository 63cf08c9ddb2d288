"""Ties that a program makes while it builds its networks, and what they come to.

A tie is one parameter that is registered in two modules. It is kept as the two places, which go on
when a module is replaced by another under the same name.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn import Parameter


@dataclass(slots=True)
class _Place:
    """Where a module has a parameter, by a name with dots."""

    owner: "weakref.ref[nn.Module]"
    path: str

    def held(self) -> Parameter | None:
        """Return the parameter that is there now."""
        owner = self.owner()
        try:
            return None if owner is None else owner.get_parameter(self.path)
        except AttributeError:  # what was there has other parts now
            return None


@dataclass(slots=True)
class _Tie:
    parameter: "weakref.ref[Parameter]"
    places: tuple[_Place, _Place]

    @property
    def is_alive(self) -> bool:
        return all(place.owner() is not None for place in self.places)


class Ties:
    """Hears of every module and parameter that is registered."""

    def __init__(self) -> None:
        self._homes: dict[int, tuple[weakref.ref[Parameter], _Place]] = {}
        """Where each parameter was registered first, by its identity."""
        self._ties: list[_Tie] = []

    def registers(self, module: nn.Module, name: str, parameter: Parameter | None) -> None:
        """Hear of a parameter, before it is in the module."""
        if parameter is None or module._parameters.get(name) is parameter:
            return
        key, place = id(parameter), _Place(weakref.ref(module), name)
        _, home = self._homes.get(key, (None, place))
        if home.held() is not parameter:  # it moved, or it is new
            ref = weakref.ref(parameter, lambda _: self._homes.pop(key, None))
            self._homes[key] = ref, place
            return
        self._ties = [tie for tie in self._ties if tie.is_alive and tie.places != (home, place)]
        self._ties.append(_Tie(weakref.ref(parameter), (home, place)))

    def replaces(self, parent: nn.Module, name: str, module: nn.Module | None) -> None:
        """Hear of a module, before it is in its parent: places in the one before become its own."""
        old = parent._modules.get(name)
        if old is None or old is module or not self._ties:
            return
        inside = {id(m): f"{name}.{inner}" if inner else name for inner, m in old.named_modules()}

        def moved(place: _Place) -> _Place:
            path = inside.get(id(place.owner()))
            return place if path is None else _Place(weakref.ref(parent), f"{path}.{place.path}")

        for tie in self._ties:
            one, other = tie.places
            tie.places = moved(one), moved(other)

    def parted(self) -> Iterator[tuple[Parameter, Parameter]]:
        """Yield what the places of ties hold that are ties no more; first what is newer."""
        for tie in self._ties:
            one, other = (place.held() for place in tie.places)
            if not (type(one) is type(other) is Parameter) or one.data_ptr() == other.data_ptr():
                continue
            yield (other, one) if one is tie.parameter() else (one, other)
