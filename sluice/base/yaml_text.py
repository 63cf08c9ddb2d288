"""Reading YAML that somebody else wrote, with bounds on what it stands for.

A text of some hundred bytes with nested aliases stands for gigabytes once it is used. The values
are therefore counted as if every alias was written out, before any of them is built.
"""

from typing import Any

import yaml

MAX_CHARACTERS = 200_000
"""Length of a text; that of a shipped pipeline is below 2,000."""

MAX_VALUES = 10_000
"""Keys, values, lists and mappings, with each alias counted as what it stands for."""

MAX_DEPTH = 50
"""Nested mappings and lists, through aliases as well."""


class _BoundedLoader(yaml.SafeLoader):
    """Counts values and depth while it composes nodes, before it builds any value."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._extents: dict[int, tuple[int, int]] = {}  # values and depth, by the node's id
        self._open: list[list[int]] = [[0, 0]]  # the same of the nodes around the present one

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._extents:
                raise _refused("an alias must not stand for what it is a part of", mark)
        else:
            if len(self._open) > MAX_DEPTH:
                raise _refused(f"values must be nested at most {MAX_DEPTH} levels deep", mark)
            self._open.append([0, 0])
            node = super().compose_node(parent, index)
            num_values, depth = self._open.pop()
            self._extents[id(node)] = (num_values + 1, depth + 1)
        num_values, depth = self._extents[id(node)]
        around = self._open[-1]
        around[0], around[1] = around[0] + num_values, max(around[1], depth)
        if around[0] > MAX_VALUES:
            raise _refused(f"a file must stand for at most {MAX_VALUES:,} values", mark)
        if around[1] > MAX_DEPTH:
            raise _refused(f"values must be nested at most {MAX_DEPTH} levels deep", mark)
        return node


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text, of plain types.

    Raises:
        yaml.YAMLError: It is no YAML, is longer than ``MAX_CHARACTERS``, stands for more than
            ``MAX_VALUES``, is nested deeper than ``MAX_DEPTH``, or contains itself; says where.
        ValueError: It holds a date that does not exist.
    """
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(
            f"the text must have at most {MAX_CHARACTERS:,} characters, got {len(text):,}"
        )
    return yaml.load(text, Loader=_BoundedLoader)


def _refused(problem: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, mark)
