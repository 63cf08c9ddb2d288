"""How much a version file may hold: more is refused before it is read."""

from pydantic import Field

from sluice.base.settings import Settings


class ImportLimits(Settings):
    """Upper bounds of everything in a version file that its author chooses."""

    max_file_bytes: int = Field(
        4 * 2**30, ge=1, description="Size of the whole file [bytes]; it is held in memory."
    )
    max_parts: int = Field(
        10_000, ge=1, description="Parts of the file: artifacts, description, signatures."
    )
    max_description_bytes: int = Field(
        64 * 2**20,
        ge=1,
        description="Size of the manifest, and of lineage, receipts and history [bytes each].",
    )
    max_header_bytes: int = Field(
        4 * 2**20, ge=1, description="Size of the header of a safetensors file [bytes]."
    )
    max_tensors: int = Field(10_000, ge=1, description="Tensors of a safetensors file.")
    max_dimensions: int = Field(8, ge=1, description="Axes of a tensor.")
    max_features: int = Field(
        1_000_000, ge=1, description="Columns of inputs, and of outputs, that a network may state."
    )
    max_members: int = Field(4_096, ge=1, description="Members of a version: seeds times folds.")
    max_receipts: int = Field(1_000, ge=0, description="Receipts that come with a version.")
    max_history: int = Field(10_000, ge=0, description="Lines of history that come with it.")
    max_text: int = Field(
        20_000, ge=1, description="Length of a reason, a name or another single text [characters]."
    )


LIMITS = ImportLimits()
"""The bounds in use; no file can change them."""
