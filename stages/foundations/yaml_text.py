"""YAML as plain data: `yaml.safe_load` by libyaml where PyYAML has it, which takes a tenth of the time."""

from __future__ import annotations

from typing import Any

import yaml

DEEPEST = 100
"""Lists and mappings inside each other. libyaml's own limit is the stack: 30,000 end the process without a word."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that a mapping has twice: PyYAML takes the last value, and DVC ends with a traceback."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Called before the keys that `<<` names are mixed in, which a mapping may override."""
        if not hasattr(node, "has_different_keys"):
            seen: dict[tuple[str, str], yaml.Node] = {}
            for key, _ in node.value:
                if (
                    isinstance(key, yaml.ScalarNode)
                    and (first := seen.setdefault((key.tag, key.value), key)) is not key
                ):
                    raise yaml.constructor.ConstructorError(
                        f"the key `{key.value}` stands here first",
                        first.start_mark,
                        "and is here a second time: remove one",
                        key.start_mark,
                    )
            node.has_different_keys = True  # mixed in, the keys of `<<` may repeat those of the mapping
        super().flatten_mapping(node)


def load_yaml(text: str | bytes) -> Any:
    """The one document of `text`, None when it is empty.

    yaml.YAMLError when it is no YAML, repeats a key, or holds more than `DEEPEST` lists and mappings inside each other.
    """
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.composer.ComposerError(
                None, None, f"more than {DEEPEST} lists or mappings inside each other: remove some", event.start_mark
            )
    return yaml.load(text, _Loader)
