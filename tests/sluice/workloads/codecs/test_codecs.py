"""Codecs: decoding of requests to the inputs used in training, and rejections (TRACE-3)."""

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


def compute_tables(workload):
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    return raw, frame


def check_codec(workload, **changes):
    raw, frame = compute_tables(workload)
    return check_served_inputs(
        workload,
        required=True,
        raw=raw,
        frame=frame,
        folds=workload.plan_folds(frame),
        **changes,
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_request_is_decoded_bitwise_equal_to_the_training_example(workloads, name):
    workload = workloads[name]
    raw, frame = compute_tables(workload)

    body = workload.request_of(raw, frame, np.array([100]))
    request = json.loads(json.dumps(body))  # the JSON that a client sends

    assert_same(workload.codec().decode(request), network_input(workload, 100))


@pytest.mark.parametrize("name", WORKLOADS)
def test_gate_check_passes_if_requests_equal_examples(workloads, name):
    finding = check_codec(workloads[name])

    assert finding.outcome == "pass"
    assert "have the same bits as the examples" in finding.summary
    assert finding.numbers["codec_digest"] == workloads[name].codec().identity().digest


@pytest.mark.parametrize("name", WORKLOADS)
def test_warm_up_input_has_dtype_and_shape_of_an_example(workloads, name):
    example = workloads[name].codec().example()
    training_input = network_input(workloads[name], 100)
    if isinstance(training_input, dict):
        assert {key: part.dtype for key, part in example.items()} == {
            key: part.dtype for key, part in training_input.items()
        }
    else:
        assert (example.dtype, example.shape) == (training_input.dtype, training_input.shape)


@pytest.mark.parametrize(
    ("name", "codec", "message"),
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
def test_codec_with_other_settings_than_training_is_rejected(workloads, name, codec, message):
    workload = workloads[name]
    with_codec = type(workload)(workload.settings)
    with_codec.codec = lambda: codec(workload)

    with pytest.raises(ContractError) as caught:
        check_codec(with_codec)
    assert message in caught.value.what


def test_context_shorter_than_the_feature_memory_is_rejected():
    class LongMemory(RawBars):
        def compute_features(self, raw):
            mean = raw["value"].rolling(30, min_periods=1).mean()
            return super().compute_features(raw).assign(mean=mean)

    with pytest.raises(ContractError) as caught:
        check_codec(LongMemory())
    assert caught.value.fix.endswith("raise context_rows.")
    assert check_codec(LongMemory(RawBars.settings_type(context_rows=40))).outcome == "pass"


def test_exponentially_decaying_features_pass_within_the_tolerance():
    class Decaying(RawBars):
        def compute_features(self, raw):
            mean = raw["value"].ewm(halflife=2).mean()
            return super().compute_features(raw).assign(mean=mean)

    finding = check_codec(Decaying(RawBars.settings_type(context_rows=40)))

    assert 0 < finding.numbers["max_deviation"] <= 1e-4
    assert "standard deviations" in finding.summary


def test_default_codec_is_windows():
    workload = Signals()
    raw, frame = compute_tables(workload)

    assert isinstance(workload.codec(), WindowsCodec)
    body = workload.request_of(raw, frame, np.array([50, 60]))
    assert_same(workload.codec().decode(body)[:1], network_input(workload, 50))
    with pytest.raises(ContractError, match="no complete window"):
        workload.request_of(raw, frame, np.array([0]))


def test_texts_are_padded_as_in_training(tmp_path):
    texts = ["a b c", "a", "a b c d e f g"]
    ids = {letter: number for number, letter in enumerate("abcdefg", start=1)}
    documents = [[ids[letter] for letter in text.split()] for text in texts]
    write_tokens(tmp_path / "tokens", documents, vocab_size=9)
    for settings in ({"max_len": 5, "pad_id": 8}, {"max_len": 6, "pad_to": "max_len"}, {}):
        rows = TokenRows(tmp_path / "tokens", vocab_size=9, **settings)
        codec = TextCodec(lambda text: [ids[x] for x in text.split()], vocab_size=9, **settings)
        assert_same(codec.decode({"texts": texts}), rows[torch.arange(3)])
    single_tensor = TextCodec(lambda text: [ids[x] for x in text.split()], vocab_size=9, names=None)
    assert torch.equal(single_tensor.decode({"texts": texts[:1]}), torch.tensor([[1, 2, 3]]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_chars": 0}, "'max_chars' must be at least 1, got 0."),
        ({"max_len": 0}, "'max_len' must be at least 1, got 0."),
        ({"pad_id": 9}, "'pad_id' must be from 0 to 8, got 9."),
    ],
)
def test_text_codec_setting_out_of_range_is_reported(settings, message):
    with pytest.raises(ContractError) as caught:
        TextCodec(str.split, vocab_size=9, **settings)
    assert caught.value.what == message


def test_row_decoded_to_two_inputs_is_rejected():
    class Doubled(RawBars):
        def examples(self, frame, rows):
            examples = super().examples(frame, rows)
            return replace(examples, x=torch.cat([examples.x, examples.x]))

    with pytest.raises(
        PayloadError, match=r"rows\.0 must become one input, .* returns float32 \(2,"
    ):
        Doubled().codec().decode(make_rows_body(Doubled()))


def test_jpeg_is_decoded_as_in_image_folder_rows(tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.jpg", quality=90)
    for settings in ({}, {"mode": "L"}, {"as_float": True, "resize": "stretch"}):
        rows = ImageFolderRows(tmp_path, ["one.jpg"], size=(12, 7), **settings)
        codec = ImagesCodec((12, 7), **settings)
        content = base64.b64encode((tmp_path / "one.jpg").read_bytes()).decode()
        assert_same(codec.decode({"images": [content]}), rows[torch.arange(1)])


def make_png_header(width, height):
    """Return a PNG file with the header of an image of the given size and without pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + bytes(4)


def encode_base64(content):
    return base64.b64encode(content).decode()


def read_stored_image(workload):
    return (workload.folder / "000.png").read_bytes()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (lambda _: ["?!"], "images.0 must be base64"),
        (
            lambda w: [
                encode_base64(read_stored_image(w)),
                encode_base64(read_stored_image(w))[:-3],
            ],
            "images.1 must be base64",
        ),
        (lambda w: [encode_base64(read_stored_image(w)[:-40])], "images.0 cannot be decoded"),
        (
            lambda _: [encode_base64(b"%!PS-Adobe-3.0 EPSF-3.0")],
            "images.0 must be an image of the format",
        ),
        (
            lambda _: [encode_base64(make_png_header(50_000, 50_000))],
            "at most 16,777,216 pixels, got Image size (25",
        ),
        (
            lambda _: [encode_base64(make_png_header(5_000, 5_000))],
            "images.0 must have at most 16,777,216 pixels",
        ),
        (
            lambda _: [encode_base64(make_png_header(4_000, 4_000))] * 5,
            "may have at most 67,108,864 pixels together",
        ),
        (lambda _: [""], "images.0 must be an image"),
        (lambda _: [], "1 value of the body is wrong: images: List should have at least 1"),
        (lambda w: [encode_base64(read_stored_image(w))] * 65, "at most 64 images, got 65"),
        (lambda _: [17], "images.0: Input should be a valid string"),
    ],
)
def test_invalid_or_oversized_image_is_rejected_with_its_index(workloads, images, message):
    workload = workloads["images"]

    with pytest.raises(PayloadError) as caught:
        workload.codec().decode({"images": images(workload)})
    assert message in caught.value.what


@pytest.mark.parametrize(
    ("key", "is_suggested"), [("text", True), ("zebra", False), ("texts" * 20_000, False)]
)
def test_unknown_key_error_suggests_a_similar_field(workloads, key, is_suggested):
    with pytest.raises(PayloadError) as caught:
        workloads["texts"].codec().decode({key: ["good"]})
    assert ("(did you mean 'texts'?)" in caught.value.what) == is_suggested


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["good", ""], "texts.1 must have at least one token"),
        (["good", " \t "], "texts.1 must have at least one token"),
        (["x" * 20_001], "texts.0 must have at most 20,000 characters, got 20,001"),
        (["good"] * 65, "at most 64 texts, got 65"),
        ([None], "texts.0: Input should be a valid string"),
    ],
)
def test_invalid_or_oversized_text_is_rejected_with_its_index(workloads, texts, message):
    with pytest.raises(PayloadError) as caught:
        workloads["texts"].codec().decode({"texts": texts})
    assert message in caught.value.what


@pytest.mark.parametrize(
    ("sequences", "message"),
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
def test_invalid_token_sequence_is_rejected_with_its_index(workloads, sequences, message):
    with pytest.raises(PayloadError) as caught:
        workloads["tokens"].codec().decode({"sequences": sequences})
    assert message in caught.value.what


@pytest.mark.parametrize(
    "change", [{"vocab_size": 0}, {"min_len": 0}, {"min_len": 9}, {"max_elements": 0}]
)
def test_invalid_bounds_of_the_tokens_codec_are_rejected(change):
    with pytest.raises(ContractError, match="at least 1, and max_len at least min_len"):
        TokensCodec(**{"vocab_size": 5, "max_len": 8} | change)


def test_large_vocabulary_limits_the_elements_of_a_request(workloads):
    class Large(BlockWorkload):
        vocab_size = 50_000

    large = Large(workloads["tokens"].settings.model_copy(update={"block_len": 128}))
    assert large.codec().max_elements == 2  # 2 x 128 x 50,000 logits
    assert large.codec().schema()["properties"]["sequences"]["items"]["maxItems"] == 128


def test_tokens_with_padding_are_limited():
    codec = TextCodec(lambda text: [1] * len(text), vocab_size=2, max_tokens=100)
    assert codec.decode({"texts": ["a" * 25] * 4})["ids"].shape == (4, 25)
    with pytest.raises(PayloadError, match="at most 100 tokens with padding"):
        codec.decode({"texts": ["a" * 26, "a", "a", "a"]})


def make_rows_body(workload, **changes):
    raw, frame = compute_tables(workload)
    body = workload.request_of(raw, frame, np.array([100]))
    for name, change in changes.items():
        body[name] = change(body[name])
    return body


def replace_cell(value, column):
    def change(rows):
        rows[0][3][column] = value
        return rows

    return change


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": replace_cell(None, 0)}, "rows.0: the table does not match its schema"),
        ({"rows": replace_cell(float("nan"), 0)}, "Input should be a finite number"),
        (
            {"rows": replace_cell("high", 0)},
            "Row 3 of rows.0, column 'value' must be of kind float",
        ),
        ({"rows": replace_cell(True, 0)}, "must be of kind float, got bool"),
        ({"rows": replace_cell(1.5, 1)}, "column 'volume' must be of kind int, got float"),
        ({"rows": replace_cell(2**70, 1)}, "cannot be converted to int"),
        ({"rows": replace_cell("yesterday", 2)}, "cannot be converted to datetime"),
        ({"rows": replace_cell("1999-01-01T00:00:00+00:00", 2)}, "does not match its schema"),
        ({"rows": replace_cell(1e25, 0)}, "must be finite"),
        ({"rows": lambda rows: [rows[0][1:]]}, "must have 8 rows of 3 values, got 7 rows"),
        ({"rows": lambda rows: [[row[:2] for row in rows[0]]]}, "got 8 rows of 2 values."),
        ({"columns": lambda names: [*names[:2], "tim"]}, "missing: time; unknown: tim"),
        ({"columns": lambda names: names[:2]}, "missing: time"),
    ],
)
def test_invalid_raw_rows_are_rejected_with_their_index(workloads, changes, message):
    workload = workloads["rows"]

    with pytest.raises(PayloadError) as caught:
        workload.codec().decode(make_rows_body(workload, **changes))
    assert message in caught.value.what


def test_error_of_workload_code_names_the_element_and_hides_its_message():
    class Fragile(RawBars):
        def compute_features(self, raw):
            if len(raw) < 20:
                raise KeyError("a secret of the server")
            return super().compute_features(raw)

    with pytest.raises(
        PayloadError, match=r"features of rows.0 cannot be computed: KeyError\."
    ) as caught:
        Fragile().codec().decode(make_rows_body(Fragile()))
    assert "secret" not in str(caught.value)


def test_target_among_the_raw_columns_is_filled_with_a_constant():
    class Labelled(SineWorkload):
        raw_schema = SineWorkload.raw_schema.model_copy(
            update={"columns": (*SineWorkload.raw_schema.columns, LABEL_COLUMN)}
        )

        def load_rows(self):
            return super().load_rows().assign(label=1.0)

        def codec(self):
            return RawRowsCodec(self, context_rows=9, unknown={"label": 0.0})

    workload = Labelled()

    assert workload.codec().columns == ("value", "slope")
    assert check_codec(workload).outcome == "pass"
    with pytest.raises(ContractError, match="must name columns of the raw schema"):
        RawRowsCodec(workload, context_rows=9, unknown={"lable": 0.0})
    with pytest.raises(ContractError, match="other columns of this schema, got 'label'"):
        RawRowsCodec(
            workload, context_rows=9, unknown={"label": 0.0}, unknown_newest={"label": 0.0}
        )


LABEL_COLUMN = SineWorkload.raw_schema.columns[0].model_copy(update={"name": "label"})


def test_changed_tokenizer_file_is_reported_with_digests_and_probe(tmp_path):
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
    assert "'zzqx unheardofword' was decoded to [1, 1] and is decoded to [1, 12]" in message
    assert "file vocabulary.json was" in message

    file.write_text(json.dumps(words | {"unseen": 12}))  # no probe contains the word
    with pytest.raises(CodecMismatch, match=r"file vocabulary\.json was"):
        require_same_codec("it", trained, workload.codec().identity())
    file.unlink()
    with pytest.raises(ContractError, match="cannot be read"):
        TextCodec(str.split, vocab_size=5, files={"v": file}, probes=()).identity()


@pytest.mark.parametrize(
    "change",
    [{"size": 9}, {"mode": "L"}, {"resize": "stretch"}, {"as_float": True}],
)
def test_identity_depends_on_every_image_setting(change):
    default = ImagesCodec(8).identity()
    other = ImagesCodec(**({"size": 8} | change)).identity()

    assert default == ImagesCodec((8, 8)).identity()
    assert default.digest != other.digest
    (name,) = change
    assert any(name in clause for clause in default.differences(other))


def test_tokenizer_that_fails_on_a_probe_is_reported():
    def only_known(text):
        return [{"a": 0}[word] for word in text.split()]

    with pytest.raises(ContractError, match=r"raised KeyError at .*test_codecs.py:\d+"):
        TextCodec(only_known, vocab_size=5).identity()


def test_raw_rows_codec_rejects_earlier_rows_of_a_cluster():
    class Days(RawBars):
        cluster_column = "day"

    with pytest.raises(ContractError, match=r"cluster column 'day'.* context_rows is 8"):
        RawRowsCodec(Days(), context_rows=8)
    RawRowsCodec(Days(), context_rows=1)
    assert pd.api.types.is_datetime64_any_dtype(RawBars().load_rows().index)


def test_schema_has_required_fields_and_limits(workloads):
    texts = workloads["texts"].codec().schema()
    assert texts["required"] == ["texts"]
    assert texts["additionalProperties"] is False
    assert texts["properties"]["texts"]["maxItems"] == 64
    assert texts["properties"]["texts"]["items"] == {"type": "string", "maxLength": 20_000}
    rows = workloads["rows"].codec().schema()
    assert rows["properties"]["rows"]["items"]["minItems"] == 8
    assert rows["properties"]["columns"]["items"]["enum"] == ["value", "volume", "time"]


class Watched(TextWorkload):
    """Text workload with two feature columns that are computed from the text and watched."""

    feature_columns = ("length", "words")

    def compute_features(self, raw):
        text = raw["text"]
        return raw.assign(length=text.str.len(), words=text.str.split().str.len())

    def watched(self, text):
        return len(text), len(text.split())

    def codec(self):
        file = self.folder / "vocabulary.json"
        return TextCodec(Vocabulary(file), vocab_size=50, max_len=12, watch=self.watched)


def test_watched_values_of_a_text_must_equal_its_feature_columns(workloads):
    workload = Watched(workloads["texts"].settings)
    request = workload.codec().parse({"texts": ["a good film"]})

    assert check_codec(workload).outcome == "pass"
    assert workload.codec().watched_values(request, {}) == (11.0, 3.0)
    workload.watched = lambda text: (len(text.split()), len(text))
    with pytest.raises(ContractError, match="watched values of row"):
        check_codec(workload)


def test_watched_values_of_an_image_are_computed_from_its_pixels(workloads):
    codec = ImagesCodec(8, watch=lambda x: (x.float().mean(),))
    body = codec.parse({"images": [encode_base64(read_stored_image(workloads["images"]))]})

    (value,) = codec.watched_values(body, codec.decode_request(body))

    assert value == pytest.approx(codec.decode_request(body).float().mean().item())
    assert ImagesCodec(8).watched_values(body, codec.decode_request(body)) == ()
