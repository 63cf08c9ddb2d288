"""Tied parameters of a program, and whether their ties are still intact.

A tie is a parameter that is registered under two paths, usually in two modules. A path is a module
and a name. It stays valid when a module is replaced by another module under the same name.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn import Parameter


@dataclass(slots=True)
class _ParameterPath:
    """Path of a parameter: a module, and a dotted name below it."""

    owner: "weakref.ref[nn.Module]"
    name: str

    def current_parameter(self) -> Parameter | None:
        """Return the parameter that is at the path now; None if no parameter is.

        Attributes are not read: the weight of a parametrized layer is a property, and computing a
        spectral norm changes buffers of the layer.
        """
        module = self.owner()
        *module_names, parameter_name = self.name.split(".")
        for module_name in module_names:
            module = None if module is None else module._modules.get(module_name)
        return None if module is None else module._parameters.get(parameter_name)


@dataclass(slots=True)
class _Tie:
    """A parameter, and the two paths under which it was registered."""

    parameter: "weakref.ref[Parameter]"
    paths: tuple[_ParameterPath, _ParameterPath]

    @property
    def is_alive(self) -> bool:
        return all(path.owner() is not None for path in self.paths)


class TiedParameters:
    """Finds ties when parameters are registered, and ties that are broken later."""

    def __init__(self) -> None:
        self._first_paths: dict[int, tuple[weakref.ref[Parameter], _ParameterPath]] = {}
        """First known path of each parameter, with the parameter, by the id of the parameter."""
        self._ties: list[_Tie] = []

    def on_register(self, module: nn.Module, name: str, parameter: Parameter | None) -> None:
        """Record a parameter, before it is registered in a module."""
        if parameter is None or module._parameters.get(name) is parameter:
            return
        parameter_id, path = id(parameter), _ParameterPath(weakref.ref(module), name)
        _, first_path = self._first_paths.get(parameter_id, (None, path))
        # No tie if the parameter is new, or is no longer registered at its first path.
        if first_path.current_parameter() is not parameter:
            ref = weakref.ref(parameter, lambda _: self._first_paths.pop(parameter_id, None))
            self._first_paths[parameter_id] = ref, path
            return
        # Ties of deleted modules, and an earlier record of the same tie, are dropped.
        self._ties = [tie for tie in self._ties if tie.is_alive and tie.paths != (first_path, path)]
        self._ties.append(_Tie(weakref.ref(parameter), (first_path, path)))

    def on_replace(self, parent: nn.Module, name: str, module: nn.Module | None) -> None:
        """Update the paths of ties before a module is replaced.

        Paths into the old module become paths into the new module.
        """
        old_module = parent._modules.get(name)
        if old_module is None or old_module is module or not self._ties:
            return
        old_names = {
            id(m): f"{name}.{inner_name}" if inner_name else name
            for inner_name, m in old_module.named_modules()
        }

        def path_after_replacement(path: _ParameterPath) -> _ParameterPath:
            prefix = old_names.get(id(path.owner()))
            if prefix is None:
                return path
            return _ParameterPath(weakref.ref(parent), f"{prefix}.{path.name}")

        for tie in self._ties:
            first_path, second_path = tie.paths
            tie.paths = path_after_replacement(first_path), path_after_replacement(second_path)

    def find_broken(self) -> Iterator[tuple[Parameter, Parameter]]:
        """Yield the two parameters of each broken tie.

        The first parameter replaced the tied parameter in one module. The second is the tied
        parameter, or the parameter that replaced it in the other module.
        """
        for tie in self._ties:
            first_parameter, second_parameter = (path.current_parameter() for path in tie.paths)
            # Different parameters that share memory still have equal values.
            if (
                not (type(first_parameter) is type(second_parameter) is Parameter)
                or first_parameter.data_ptr() == second_parameter.data_ptr()
            ):
                continue
            if first_parameter is tie.parameter():
                yield second_parameter, first_parameter
            else:
                yield first_parameter, second_parameter
