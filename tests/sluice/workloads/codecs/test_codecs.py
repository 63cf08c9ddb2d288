"""TRACE-3: a request is decoded to the input of the training, or refused with what is wrong."""

import base64
import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.errors import CodecMismatch, ContractError, PayloadError
from sluice.data.rows import ImageFolderRows, TokenRows, write_tokens
from sluice.failfast.data.served_inputs import check_served_inputs
from sluice.workloads.codecs import (
    ImagesCodec,
    RawRowsCodec,
    TextCodec,
    TokensCodec,
    WindowsCodec,
)
from sluice.workloads.codecs.identity import require_same_codec
from tests.support.codec_workloads import (
    BlockWorkload,
    ImageWorkload,
    NamedBars,
    RawBars,
    TextWorkload,
    Vocabulary,
    network_input,
    write_blocks,
    write_images,
    write_texts,
)
from tests.support.failfast_workloads import Signals
from tests.support.row_sources import assert_same
from tests.support.synthetic import SineWorkload

WORKLOADS = ("texts", "tokens", "images", "rows", "named rows")


@pytest.fixture(scope="module")
def workloads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    texts = TextWorkload.settings_type(**write_texts(folder / "texts"))
    images = ImageWorkload.settings_type(**write_images(folder / "images"))
    blocks = BlockWorkload.settings_type(**write_blocks(folder / "blocks"))
    return {
        "texts": TextWorkload(texts),
        "tokens": BlockWorkload(blocks),
        "images": ImageWorkload(images),
        "rows": RawBars(),
        "named rows": NamedBars(),
    }


def tables(workload):
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    return raw, frame


def checked(workload, **changes):
    raw, frame = tables(workload)
    return check_served_inputs(
        workload,
        required=True,
        raw=raw,
        frame=frame,
        folds=workload.plan_folds(frame),
        **changes,
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_request_for_a_row_is_decoded_to_the_bits_of_its_example(workloads, name):
    workload = workloads[name]
    raw, frame = tables(workload)

    body = workload.request_of(raw, frame, np.array([100]))
    sent = json.loads(json.dumps(body))  # as a client sends it

    assert_same(workload.codec().decode(sent), network_input(workload, 100))


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_gate_compares_requests_with_examples(workloads, name):
    finding = checked(workloads[name])

    assert finding.outcome == "pass"
    assert "have the same bits as the examples" in finding.summary
    assert finding.numbers["codec_digest"] == workloads[name].codec().identity().digest


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_warm_up_input_has_the_form_of_an_example(workloads, name):
    example, stored = workloads[name].codec().example(), network_input(workloads[name], 100)
    if isinstance(stored, dict):
        assert {key: part.dtype for key, part in example.items()} == {
            key: part.dtype for key, part in stored.items()
        }
    else:
        assert (example.dtype, example.shape) == (stored.dtype, stored.shape)


@pytest.mark.parametrize(
    ("name", "codec", "seen"),
    [
        ("texts", lambda _: TextCodec(str.split, vocab_size=50), "become a list of integers"),
        (
            "texts",
            lambda _: TextCodec(lambda text: [2 for _ in text.split()], vocab_size=50, max_len=12),
            "decoded to the input of the training",
        ),
        (
            "texts",
            lambda w: TextCodec(Vocabulary(w.folder / "vocabulary.json"), vocab_size=50),
            "decoded to the input of the training, {'ids': int64 (1, 12)",
        ),
        (
            "tokens",
            lambda _: TokensCodec(vocab_size=11, max_len=5),
            "must have 1 to 5 tokens, got 6",
        ),
        ("tokens", lambda _: TokensCodec(vocab_size=5, max_len=6), "token ids from 0 to 4, got"),
        ("images", lambda w: ImagesCodec(9, folder=w.folder), "uint8 (1, 3, 8, 8)"),
        ("images", lambda w: ImagesCodec(8, resize="stretch", folder=w.folder), "the training"),
        ("images", lambda _: ImagesCodec(8), "cannot build a request"),
        ("rows", lambda w: RawRowsCodec(w, context_rows=6), "cannot be computed"),
    ],
)
def test_a_codec_with_other_settings_than_the_examples_is_refused(workloads, name, codec, seen):
    workload = workloads[name]
    own = type(workload)(workload.settings)
    own.codec = lambda: codec(workload)

    with pytest.raises(ContractError) as caught:
        checked(own)
    assert seen in caught.value.what


def test_a_context_that_is_too_short_is_found_by_the_features_of_the_whole_history():
    class LongMemory(RawBars):
        def compute_features(self, raw):
            mean = raw["value"].rolling(30, min_periods=1).mean()
            return super().compute_features(raw).assign(mean=mean)

    with pytest.raises(ContractError) as caught:
        checked(LongMemory())
    assert caught.value.fix.endswith("raise context_rows.")
    assert checked(LongMemory(RawBars.settings_type(context_rows=40))).outcome == "pass"


def test_a_decaying_memory_passes_within_the_tolerance():
    class Decaying(RawBars):
        def compute_features(self, raw):
            mean = raw["value"].ewm(halflife=2).mean()
            return super().compute_features(raw).assign(mean=mean)

    finding = checked(Decaying(RawBars.settings_type(context_rows=40)))

    assert 0 < finding.numbers["max_deviation"] <= 1e-4
    assert "standard deviations" in finding.summary


def test_the_windows_of_a_frame_are_the_default_codec():
    workload = Signals()
    raw, frame = tables(workload)

    assert isinstance(workload.codec(), WindowsCodec)
    body = workload.request_of(raw, frame, np.array([50, 60]))
    assert_same(workload.codec().decode(body)[:1], network_input(workload, 50))
    with pytest.raises(ContractError, match="no complete window"):
        workload.request_of(raw, frame, np.array([0]))


def test_texts_are_padded_as_the_training_rows(tmp_path):
    texts = ["a b c", "a", "a b c d e f g"]
    ids = {letter: number for number, letter in enumerate("abcdefg", start=1)}
    documents = [[ids[letter] for letter in text.split()] for text in texts]
    write_tokens(tmp_path / "tokens", documents, vocab_size=9)
    for settings in ({"max_len": 5, "pad_id": 8}, {"max_len": 6, "pad_to": "max_len"}, {}):
        rows = TokenRows(tmp_path / "tokens", vocab_size=9, **settings)
        codec = TextCodec(lambda text: [ids[x] for x in text.split()], vocab_size=9, **settings)
        assert_same(codec.decode({"texts": texts}), rows[torch.arange(3)])
    alone = TextCodec(lambda text: [ids[x] for x in text.split()], vocab_size=9, names=None)
    assert torch.equal(alone.decode({"texts": texts[:1]}), torch.tensor([[1, 2, 3]]))


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({"max_chars": 0}, "'max_chars' must be at least 1, got 0."),
        ({"max_len": 0}, "'max_len' must be at least 1, got 0."),
        ({"pad_id": 9}, "'pad_id' must be from 0 to 8, got 9."),
    ],
)
def test_a_text_codec_names_the_setting_that_is_out_of_range(settings, seen):
    with pytest.raises(ContractError) as caught:
        TextCodec(str.split, vocab_size=9, **settings)
    assert caught.value.what == seen


def test_a_row_that_becomes_two_inputs_is_refused_as_that():
    class Doubled(RawBars):
        def examples(self, frame, rows):
            found = super().examples(frame, rows)
            return replace(found, x=torch.cat([found.x, found.x]))

    with pytest.raises(
        PayloadError, match=r"rows\.0 must become one input, .* returns float32 \(2,"
    ):
        Doubled().codec().decode(rows_body(Doubled()))


def test_a_jpeg_has_the_pixels_that_the_folder_has(tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.jpg", quality=90)
    for settings in ({}, {"mode": "L"}, {"as_float": True, "resize": "stretch"}):
        rows = ImageFolderRows(tmp_path, ["one.jpg"], size=(12, 7), **settings)
        codec = ImagesCodec((12, 7), **settings)
        content = base64.b64encode((tmp_path / "one.jpg").read_bytes()).decode()
        assert_same(codec.decode({"images": [content]}), rows[torch.arange(1)])


def png(width, height):
    """Return the header of a PNG file, which states a size, and no pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + bytes(4)


def encoded(content):
    return base64.b64encode(content).decode()


def stored(workload):
    return (workload.folder / "000.png").read_bytes()


@pytest.mark.parametrize(
    ("images", "seen"),
    [
        (lambda _: ["?!"], "images.0 must be base64"),
        (lambda w: [encoded(stored(w)), encoded(stored(w))[:-3]], "images.1 must be base64"),
        (lambda w: [encoded(stored(w)[:-40])], "images.0 cannot be decoded"),
        (
            lambda _: [encoded(b"%!PS-Adobe-3.0 EPSF-3.0")],
            "images.0 must be an image of the format",
        ),
        (lambda _: [encoded(png(50_000, 50_000))], "at most 16,777,216 pixels, got Image size (25"),
        (lambda _: [encoded(png(5_000, 5_000))], "images.0 must have at most 16,777,216 pixels"),
        (lambda _: [encoded(png(4_000, 4_000))] * 5, "may have at most 67,108,864 pixels together"),
        (lambda _: [""], "images.0 must be an image"),
        (lambda _: [], "1 value of the body is wrong: images: List should have at least 1"),
        (lambda w: [encoded(stored(w))] * 65, "at most 64 images, got 65"),
        (lambda _: [17], "images.0: Input should be a valid string"),
    ],
)
def test_hostile_images_are_refused_by_element(workloads, images, seen):
    workload = workloads["images"]

    with pytest.raises(PayloadError) as caught:
        workload.codec().decode({"images": images(workload)})
    assert seen in caught.value.what


@pytest.mark.parametrize(
    ("key", "is_suggested"), [("text", True), ("zebra", False), ("texts" * 20_000, False)]
)
def test_an_unknown_key_suggests_a_similar_field(workloads, key, is_suggested):
    with pytest.raises(PayloadError) as caught:
        workloads["texts"].codec().decode({key: ["good"]})
    assert ("(did you mean 'texts'?)" in caught.value.what) == is_suggested


@pytest.mark.parametrize(
    ("texts", "seen"),
    [
        (["good", ""], "texts.1 must have at least one token"),
        (["good", " \t "], "texts.1 must have at least one token"),
        (["x" * 20_001], "texts.0 must have at most 20,000 characters, got 20,001"),
        (["good"] * 65, "at most 64 texts, got 65"),
        ([None], "texts.0: Input should be a valid string"),
    ],
)
def test_hostile_texts_are_refused_by_element(workloads, texts, seen):
    with pytest.raises(PayloadError) as caught:
        workloads["texts"].codec().decode({"texts": texts})
    assert seen in caught.value.what


@pytest.mark.parametrize(
    ("sequences", "seen"),
    [
        ([[1, 2], []], "sequences.1: List should have at least 1 item"),
        ([[1, 2], [3]], "sequences.1 must have 2 to 6 tokens, got 1"),
        ([[1, 2, 3, 4, 5, 6, 7]], "sequences.0 must have 2 to 6 tokens, got 7"),
        ([[1, 2, 3], [1, 2]], "got 3 tokens in sequences.0 and 2 in sequences.1"),
        ([[1, 2], [3, -1]], "sequences.1 must have token ids from 0 to 10, got -1"),
        ([[1, 2], [3, 2**70]], "sequences.1 must have token ids from 0 to 10, got 1180"),
        ([[1, 2.0]], "sequences.0.1: Input should be a valid integer"),
        ([[1, True]], "sequences.0.1: Input should be a valid integer"),
        ([[1, 2]] * 65, "at most 64 sequences, got 65"),
        ("ab", "sequences: Input should be a valid list"),
    ],
)
def test_hostile_tokens_are_refused_by_element(workloads, sequences, seen):
    with pytest.raises(PayloadError) as caught:
        workloads["tokens"].codec().decode({"sequences": sequences})
    assert seen in caught.value.what


@pytest.mark.parametrize(
    "change", [{"vocab_size": 0}, {"min_len": 0}, {"min_len": 9}, {"max_elements": 0}]
)
def test_impossible_bounds_of_tokens_are_refused(change):
    with pytest.raises(ContractError, match="at least 1, and max_len at least min_len"):
        TokensCodec(**{"vocab_size": 5, "max_len": 8} | change)


def test_a_large_vocabulary_allows_fewer_blocks_in_a_request(workloads):
    class Large(BlockWorkload):
        vocab_size = 50_000

    large = Large(workloads["tokens"].settings.model_copy(update={"block_len": 128}))
    assert large.codec().max_elements == 2  # 2 x 128 x 50,000 logits
    assert large.codec().schema()["properties"]["sequences"]["items"]["maxItems"] == 128


def test_padding_of_one_long_text_is_bounded():
    codec = TextCodec(lambda text: [1] * len(text), vocab_size=2, max_tokens=100)
    assert codec.decode({"texts": ["a" * 25] * 4})["ids"].shape == (4, 25)
    with pytest.raises(PayloadError, match="at most 100 tokens with padding"):
        codec.decode({"texts": ["a" * 26, "a", "a", "a"]})


def rows_body(workload, **changes):
    raw, frame = tables(workload)
    body = workload.request_of(raw, frame, np.array([100]))
    for name, change in changes.items():
        body[name] = change(body[name])
    return body


def with_cell(value, column):
    def change(rows):
        rows[0][3][column] = value
        return rows

    return change


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"rows": with_cell(None, 0)}, "rows.0: the table does not match its schema"),
        ({"rows": with_cell(float("nan"), 0)}, "Input should be a finite number"),
        ({"rows": with_cell("high", 0)}, "Row 3 of rows.0, column 'value' must be of kind float"),
        ({"rows": with_cell(True, 0)}, "must be of kind float, got bool"),
        ({"rows": with_cell(1.5, 1)}, "column 'volume' must be of kind int, got float"),
        ({"rows": with_cell(2**70, 1)}, "cannot be converted to int"),
        ({"rows": with_cell("yesterday", 2)}, "cannot be converted to datetime"),
        ({"rows": with_cell("1999-01-01T00:00:00+00:00", 2)}, "does not match its schema"),
        ({"rows": with_cell(1e25, 0)}, "must be finite"),
        ({"rows": lambda rows: [rows[0][1:]]}, "must have 8 rows of 3 values, got 7 rows"),
        ({"rows": lambda rows: [[row[:2] for row in rows[0]]]}, "got 8 rows of 2 values."),
        ({"columns": lambda names: [*names[:2], "tim"]}, "missing: time; unknown: tim"),
        ({"columns": lambda names: names[:2]}, "missing: time"),
    ],
)
def test_hostile_raw_rows_are_refused_by_element(workloads, changes, seen):
    workload = workloads["rows"]

    with pytest.raises(PayloadError) as caught:
        workload.codec().decode(rows_body(workload, **changes))
    assert seen in caught.value.what


def test_errors_of_the_workloads_own_code_name_the_element_and_no_value():
    class Fragile(RawBars):
        def compute_features(self, raw):
            if len(raw) < 20:
                raise KeyError("a secret of the server")
            return super().compute_features(raw)

    with pytest.raises(
        PayloadError, match=r"features of rows.0 cannot be computed: KeyError\."
    ) as e:
        Fragile().codec().decode(rows_body(Fragile()))
    assert "secret" not in str(e.value)


def test_the_target_among_the_raw_columns_is_made_up():
    class Labelled(SineWorkload):
        raw_schema = SineWorkload.raw_schema.model_copy(
            update={"columns": (*SineWorkload.raw_schema.columns, Echo)}
        )

        def load_rows(self):
            return super().load_rows().assign(label=1.0)

        def codec(self):
            return RawRowsCodec(self, context_rows=9, unknown={"label": 0.0})

    workload = Labelled()

    assert workload.codec().columns == ("value", "slope")
    assert checked(workload).outcome == "pass"
    with pytest.raises(ContractError, match="must name columns of the raw schema"):
        RawRowsCodec(workload, context_rows=9, unknown={"lable": 0.0})
    with pytest.raises(ContractError, match="'unknown_newest' others of them, got 'label'"):
        RawRowsCodec(
            workload, context_rows=9, unknown={"label": 0.0}, unknown_newest={"label": 0.0}
        )


Echo = SineWorkload.raw_schema.columns[0].model_copy(update={"name": "label"})


def test_a_changed_tokenizer_file_is_named_with_both_digests_and_the_probe(tmp_path):
    workload = TextWorkload(TextWorkload.settings_type(**write_texts(tmp_path)))
    trained = workload.codec().identity()
    require_same_codec("it", trained, workload.codec().identity())
    require_same_codec("it", None, trained)

    file = tmp_path / "vocabulary.json"
    words = json.loads(file.read_text())
    file.write_text(json.dumps(words | {"unheardofword": 12}))
    current = workload.codec().identity()

    with pytest.raises(CodecMismatch) as caught:
        require_same_codec("it", trained, current)
    message = caught.value.what
    assert trained.digest[:12] in message
    assert current.digest[:12] in message
    assert "the probe 'zzqx unheardofword' became [1, 1] and becomes [1, 12]" in message
    assert "file vocabulary.json was" in message

    file.write_text(json.dumps(words | {"unseen": 12}))  # no probe has the word
    with pytest.raises(CodecMismatch, match=r"file vocabulary\.json was"):
        require_same_codec("it", trained, workload.codec().identity())
    file.unlink()
    with pytest.raises(ContractError, match="cannot be read"):
        TextCodec(str.split, vocab_size=5, files={"v": file}, probes=()).identity()


@pytest.mark.parametrize(
    "change",
    [{"size": 9}, {"mode": "L"}, {"resize": "stretch"}, {"as_float": True}],
)
def test_every_setting_of_image_decoding_is_part_of_the_identity(change):
    plain = ImagesCodec(8).identity()
    other = ImagesCodec(**({"size": 8} | change)).identity()

    assert plain == ImagesCodec((8, 8)).identity()
    assert plain.digest != other.digest
    (name,) = change
    assert any(name in clause for clause in plain.differences(other))


def test_a_tokenizer_that_fails_on_a_probe_is_reported_at_the_training():
    def only_known(text):
        return [{"a": 0}[word] for word in text.split()]

    with pytest.raises(ContractError, match=r"raised KeyError at .*test_codecs.py:\d+"):
        TextCodec(only_known, vocab_size=5).identity()


def test_rows_that_belong_together_cannot_be_served_alone():
    class Days(RawBars):
        cluster_column = "day"

    with pytest.raises(ContractError, match="cluster column 'day'"):
        RawRowsCodec(Days(), context_rows=8)
    assert pd.api.types.is_datetime64_any_dtype(RawBars().load_rows().index)


def test_the_schema_states_the_bounds(workloads):
    texts = workloads["texts"].codec().schema()
    assert texts["required"] == ["texts"]
    assert texts["additionalProperties"] is False
    assert texts["properties"]["texts"]["maxItems"] == 64
    assert texts["properties"]["texts"]["items"] == {"type": "string", "maxLength": 20_000}
    rows = workloads["rows"].codec().schema()
    assert rows["properties"]["rows"]["items"]["minItems"] == 8
    assert rows["properties"]["columns"]["items"]["enum"] == ["value", "volume", "time"]


class Watched(TextWorkload):
    """Its feature columns are two quantities of the text."""

    feature_columns = ("length", "words")

    def compute_features(self, raw):
        text = raw["text"]
        return raw.assign(length=text.str.len(), words=text.str.split().str.len())

    def watched(self, text):
        return len(text), len(text.split())

    def codec(self):
        file = self.folder / "vocabulary.json"
        return TextCodec(Vocabulary(file), vocab_size=50, max_len=12, watch=self.watched)


def test_the_watched_quantities_of_a_text_are_those_of_the_feature_columns(workloads):
    workload = Watched(workloads["texts"].settings)
    request = workload.codec().parse({"texts": ["a good film"]})

    assert checked(workload).outcome == "pass"
    assert workload.codec().watched_values(request, {}) == (11.0, 3.0)
    workload.watched = lambda text: (len(text.split()), len(text))
    with pytest.raises(ContractError, match="watched values of row"):
        checked(workload)


def test_the_brightness_of_an_image_can_be_watched(workloads):
    codec = ImagesCodec(8, watch=lambda x: (x.float().mean(),))
    body = codec.parse({"images": [encoded(stored(workloads["images"]))]})

    (value,) = codec.watched_values(body, codec.decode_request(body))

    assert value == pytest.approx(codec.decode_request(body).float().mean().item())
    assert ImagesCodec(8).watched_values(body, codec.decode_request(body)) == ()
