"""Rows that a network reads batch by batch, instead of one tensor in memory.

``protocol`` defines what a row source is, and ``order`` the order in which its rows are read. The
other modules contain row sources and their helpers. The classes are imported when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.data.rows.content import content_digests as content_digests
    from sluice.data.rows.dataset import DatasetRows as DatasetRows
    from sluice.data.rows.image_listing import image_folder_table as image_folder_table
    from sluice.data.rows.image_listing import verify_images as verify_images
    from sluice.data.rows.images import ImageFolderRows as ImageFolderRows
    from sluice.data.rows.images import ImageShardRows as ImageShardRows
    from sluice.data.rows.shard_rows import ShardRows as ShardRows
    from sluice.data.rows.shard_rows import shard_table as shard_table
    from sluice.data.rows.subset import SubsetRows as SubsetRows
    from sluice.data.rows.table import TableRows as TableRows
    from sluice.data.rows.texts import TextRows as TextRows
    from sluice.data.rows.token_corpus import write_tokens as write_tokens
    from sluice.data.rows.tokens import TokenBlocks as TokenBlocks
    from sluice.data.rows.tokens import TokenRows as TokenRows

_MODULES = {
    "DatasetRows": "dataset",
    "ImageFolderRows": "images",
    "ImageShardRows": "images",
    "ShardRows": "shard_rows",
    "SubsetRows": "subset",
    "TableRows": "table",
    "TextRows": "texts",
    "TokenBlocks": "tokens",
    "TokenRows": "tokens",
    "content_digests": "content",
    "image_folder_table": "image_listing",
    "shard_table": "shard_rows",
    "verify_images": "image_listing",
    "write_tokens": "token_corpus",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"sluice.data.rows.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
