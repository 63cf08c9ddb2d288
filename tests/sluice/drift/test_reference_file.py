"""A stored drift reference is read back unchanged, and damaged files are refused."""

import dataclasses
import io

import pyarrow.parquet as pq
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError
from sluice.config.drift_settings import EmbeddingDriftSettings
from sluice.drift.reference_file import (
    load_reference,
    parse_reference,
    reference_bytes,
    save_reference,
)
from sluice.drift.window_evaluation import evaluate_window
from tests.sluice.drift.frames import make_frame, make_reference


@pytest.fixture(scope="module")
def reference():
    return make_reference(make_frame(0, 1000))


def test_a_loaded_reference_gives_the_same_report(reference, tmp_path):
    store = ArtifactStore(tmp_path)
    digest = save_reference(reference, store)
    loaded = load_reference(digest, store)

    for rows in (500, 300):
        frame = make_frame(1, rows)
        reports = [evaluate_window(r, frame, window="w", threads=1) for r in (reference, loaded)]
        assert reports[0].model_dump_json() == reports[1].model_dump_json()
    assert save_reference(loaded, store) == digest


def test_embedding_settings_do_not_change_the_reference_of_columns(reference):
    content = reference_bytes(reference)
    other = reference.settings.model_copy(
        update={"embedding": EmbeddingDriftSettings(max_rows=100, min_discrepancy=0.1)}
    )

    assert reference_bytes(dataclasses.replace(reference, settings=other)) == content
    assert b"embedding" not in (pq.read_schema(io.BytesIO(content)).metadata or {})[b"sluice.drift"]
    assert parse_reference(content).settings.column_settings == other.column_settings


def test_a_reference_of_one_column_has_no_joint_test():
    one = make_reference(make_frame(0, 300)[["city"]])

    assert parse_reference(reference_bytes(one)).joint is None


def test_truncated_bytes_are_rejected(reference):
    content = reference_bytes(reference)

    for broken in (b"", b"{}", content[:-100], content[:50] + b"x" + content[51:-1]):
        with pytest.raises(IntegrityError, match="does not contain a valid drift reference"):
            parse_reference(broken)


def test_another_parquet_file_is_refused(tmp_path):
    make_frame(0, 10).to_parquet(tmp_path / "x.parquet")

    with pytest.raises(IntegrityError, match="KeyError"):
        parse_reference((tmp_path / "x.parquet").read_bytes())


def test_a_modified_threshold_is_rejected(reference):
    table = pq.read_table(io.BytesIO(reference_bytes(reference)))
    index = table.schema.get_field_index("block_length")
    longer = [length + 1 for length in table.column(index).to_pylist()]
    changed, buffer = table.set_column(index, "block_length", [longer]), io.BytesIO()
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), buffer)

    with pytest.raises(IntegrityError, match="does not match its header"):
        parse_reference(buffer.getvalue())


def test_a_missing_reference_is_an_integrity_error(tmp_path):
    with pytest.raises(IntegrityError, match="required and missing"):
        load_reference("0" * 64, ArtifactStore(tmp_path))
