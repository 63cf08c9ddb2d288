"""Limits of the sizes and counts in imported version files, which are untrusted."""

from pydantic import Field

from sluice.base.settings import Settings


class ImportLimits(Settings):
    """Upper limits of all sizes and counts that the author of a version file can choose."""

    max_file_bytes: int = Field(
        4 * 2**30,
        ge=1,
        description="Maximum size of the whole file, which is kept in memory [bytes].",
    )
    max_parts: int = Field(
        10_000,
        ge=1,
        description="Maximum number of parts of a file: the artifacts, the manifest, version.json "
        "(lineage, receipts and history) and the signatures.",
    )
    max_description_bytes: int = Field(
        64 * 2**20,
        ge=1,
        description="Maximum size of each part that is not an artifact [bytes].",
    )
    max_header_bytes: int = Field(
        4 * 2**20, ge=1, description="Maximum size of the header of a safetensors file [bytes]."
    )
    max_tensors: int = Field(
        10_000, ge=1, description="Maximum number of tensors in a safetensors file."
    )
    max_dimensions: int = Field(8, ge=1, description="Maximum number of axes of a tensor.")
    max_features: int = Field(
        1_000_000,
        ge=1,
        description="Maximum number of input columns, and of output columns, of a network.",
    )
    max_members: int = Field(
        4_096, ge=1, description="Maximum number of members of a version: seeds times folds."
    )
    max_receipts: int = Field(1_000, ge=0, description="Maximum number of receipts of a version.")
    max_history: int = Field(
        10_000, ge=0, description="Maximum number of history entries of a version."
    )
    max_text: int = Field(
        20_000,
        ge=1,
        description="Maximum length of a reason, a name or any other text [characters].",
    )


LIMITS = ImportLimits()
"""Limits of every import. A version file cannot change them."""
