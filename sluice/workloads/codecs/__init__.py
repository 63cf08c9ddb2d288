"""Codecs: how the body of a prediction request becomes the input of a network.

``codec`` contains the base class of codecs, and ``request`` the base class of request bodies. The
other modules contain the codecs and their helpers. The classes are imported when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.workloads.codecs.codec import Codec as Codec
    from sluice.workloads.codecs.images import ImagesCodec as ImagesCodec
    from sluice.workloads.codecs.raw_rows import RawRowsCodec as RawRowsCodec
    from sluice.workloads.codecs.request import CodecRequest as CodecRequest
    from sluice.workloads.codecs.text import TextCodec as TextCodec
    from sluice.workloads.codecs.tokens import TokensCodec as TokensCodec
    from sluice.workloads.codecs.windows import WindowsCodec as WindowsCodec

_MODULES = {
    "Codec": "codec",
    "CodecRequest": "request",
    "ImagesCodec": "images",
    "RawRowsCodec": "raw_rows",
    "TextCodec": "text",
    "TokensCodec": "tokens",
    "WindowsCodec": "windows",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"sluice.workloads.codecs.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
