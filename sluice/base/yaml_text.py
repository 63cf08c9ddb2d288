"""Reads untrusted YAML with limits on its size after alias expansion.

A text of some hundred bytes with nested aliases can expand to gigabytes. Values are therefore
counted with every alias expanded, before any of them is built.
"""

from typing import Any

import yaml

MAX_CHARACTERS = 200_000
"""Maximum length of a text; a shipped pipeline has less than 2,000 characters."""

MAX_VALUES = 10_000
"""Maximum number of keys, values, lists and mappings, with every alias expanded."""

MAX_DEPTH = 50
"""Maximum nesting of mappings and lists, with every alias expanded."""


class _BoundedLoader(yaml.SafeLoader):
    """YAML loader that counts values and depth while composing nodes, before building values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._extents: dict[int, tuple[int, int]] = {}  # number of values and depth by node id
        self._open: list[list[int]] = [[0, 0]]  # the same for the enclosing nodes

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._extents:
                raise _refused("an alias must not refer to a value that contains it", mark)
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
            raise _refused(f"a file must expand to at most {MAX_VALUES:,} values", mark)
        if around[1] > MAX_DEPTH:
            raise _refused(f"values must be nested at most {MAX_DEPTH} levels deep", mark)
        return node


def load_yaml(text: str) -> Any:
    """Parse a YAML text into plain Python types.

    Raises:
        yaml.YAMLError: The text is not YAML, is longer than ``MAX_CHARACTERS``, expands to more
            than ``MAX_VALUES``, is nested deeper than ``MAX_DEPTH``, or contains itself. The
            message has the position.
        ValueError: The text contains a date that does not exist.
    """
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(
            f"the text must have at most {MAX_CHARACTERS:,} characters, got {len(text):,}"
        )
    return yaml.load(text, Loader=_BoundedLoader)


def _refused(problem: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, mark)
