"""Reads untrusted YAML with limits on its size after alias expansion.

In YAML an alias repeats a value. A text of a few hundred bytes with nested aliases can therefore
expand to gigabytes. The loader counts all values, including repetitions by aliases, before it
builds any value.
"""

from typing import Any

import yaml

MAX_CHARACTERS = 200_000
"""Maximum length of a text [characters]; a shipped pipeline file has less than 2,000."""

MAX_VALUES = 10_000
"""Maximum number of keys, values, lists and mappings, with every alias expanded."""

MAX_DEPTH = 50
"""Maximum nesting of mappings and lists [levels], with every alias expanded."""


class _BoundedLoader(yaml.SafeLoader):
    """YAML loader that limits values and depth while it composes nodes, before it builds values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._extents: dict[int, tuple[int, int]] = {}
        """Number of values and depth of each finished node, by its id."""
        self._unfinished_extents: list[list[int]] = [[0, 0]]
        """Number of values and depth, so far, of the document and of each unfinished node."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._extents:
                raise _limit_error("an alias must not refer to a value that contains it", mark)
        else:
            if len(self._unfinished_extents) > MAX_DEPTH:
                raise _limit_error(f"values must be nested at most {MAX_DEPTH} levels deep", mark)
            self._unfinished_extents.append([0, 0])
            node = super().compose_node(parent, index)
            num_values, depth = self._unfinished_extents.pop()
            self._extents[id(node)] = (num_values + 1, depth + 1)
        num_values, depth = self._extents[id(node)]
        enclosing_extent = self._unfinished_extents[-1]
        enclosing_extent[0] += num_values
        enclosing_extent[1] = max(enclosing_extent[1], depth)
        if enclosing_extent[0] > MAX_VALUES:
            raise _limit_error(f"a file must expand to at most {MAX_VALUES:,} values", mark)
        if enclosing_extent[1] > MAX_DEPTH:
            raise _limit_error(f"values must be nested at most {MAX_DEPTH} levels deep", mark)
        return node


def load_yaml(text: str) -> Any:
    """Parse a YAML text into plain Python types.

    Raises:
        yaml.YAMLError: The text is not YAML, is longer than ``MAX_CHARACTERS``, expands to more
            than ``MAX_VALUES``, is nested deeper than ``MAX_DEPTH``, or has a value that contains
            itself. The
            message contains the position in the text.
        ValueError: The text contains a date that does not exist.
    """
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(
            f"the text must have at most {MAX_CHARACTERS:,} characters, got {len(text):,}"
        )
    return yaml.load(text, Loader=_BoundedLoader)


def _limit_error(problem: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, mark)
