"""Networks for images and texts, the causal language model, and sampling of tokens."""

import pytest
import torch

from sluice.base.errors import ContractError, SettingsError
from sluice.models.causal_transformer import CausalTransformer
from sluice.models.generation import sample_tokens
from sluice.models.image_cnn import ImageCnn
from sluice.models.settings import ModelSettings
from sluice.models.text_cnn import TextCnn


def test_image_cnn_accepts_uint8_and_float_pixels_of_any_size():
    network = ImageCnn(3, 5, ModelSettings(hidden=4, layers=2)).eval()
    pixels = torch.randint(0, 256, (2, 3, 24, 17), dtype=torch.uint8)

    assert network(pixels).shape == network(pixels[:, :, :16, :16]).shape == (2, 5)
    torch.testing.assert_close(network(pixels), network(pixels.float() / 255))


@pytest.mark.parametrize("layers", [1, 3])
def test_padding_does_not_change_the_output_of_the_text_cnn(layers):
    network = TextCnn(20, 3, ModelSettings(hidden=8, layers=layers)).eval()
    with torch.no_grad():
        network.embedding.weight.add_(1.0)  # without the mask, padding would have an effect
    ids = torch.randint(2, 20, (4, 9))
    mask = torch.ones(4, 9, dtype=torch.bool)
    padded_ids = torch.cat([ids, torch.randint(0, 20, (4, 6))], dim=1)
    padded_mask = torch.cat([mask, torch.zeros(4, 6, dtype=torch.bool)], dim=1)

    torch.testing.assert_close(network(padded_ids, padded_mask), network(ids, mask))


def test_later_tokens_do_not_change_earlier_outputs_of_a_causal_transformer():
    torch.manual_seed(0)
    network = CausalTransformer(11, 11, ModelSettings(hidden=16, heads=2, layers=2)).eval()
    ids = torch.randint(0, 11, (3, 8))
    changed = torch.cat([ids[:, :5], (ids[:, 5:] + 1) % 11], dim=1)

    before, after = network(ids), network(changed)

    assert before.shape == (3, 8, 11)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().max() > 0.01
    torch.testing.assert_close(network(ids[:, :5]), before[:, :5])
    assert network.head.weight is network.embedding.weight


@pytest.mark.parametrize(
    ("hidden", "num_outputs", "message"),
    [(15, 11, "Set hidden to 14 or 16"), (16, 12, "one vocabulary, got 11 input and 12 output")],
)
def test_invalid_width_or_vocabulary_is_rejected(hidden, num_outputs, message):
    with pytest.raises(SettingsError, match=message):
        CausalTransformer(11, num_outputs, ModelSettings(hidden=hidden, heads=2))


def count_up(ids):
    """Return logits that predict the next number with certainty."""
    return torch.nn.functional.one_hot((ids + 1) % 5, 5) * 50.0


def test_sampled_tokens_depend_on_model_temperature_and_seed():
    prompt = torch.tensor([[0], [3]])

    def sample(temperature, seed=0, network=count_up):
        generator = torch.Generator().manual_seed(seed)
        arguments = {"temperature": temperature, "generator": generator, "max_context": 2}
        return sample_tokens(network, prompt, 6, **arguments)

    assert sample(0.0).tolist() == sample(1.0).tolist() == [[1, 2, 3, 4, 0, 1], [4, 0, 1, 2, 3, 4]]
    hot = sample(100.0)
    assert torch.equal(hot, sample(100.0))
    assert not torch.equal(hot, sample(100.0, seed=1))
    lengths = []

    def record_length(ids):
        lengths.append(ids.shape[1])
        return count_up(ids)

    sample(0.0, network=record_length)
    assert lengths == [1, 2, 2, 2, 2, 2]
    with pytest.raises(ContractError, match="at least one token"):
        sample_tokens(
            count_up,
            torch.zeros(2, 0, dtype=torch.int64),
            1,
            temperature=1.0,
            generator=torch.Generator(),
            max_context=2,
        )


def test_sampled_tokens_have_the_probabilities_of_the_model():
    probabilities = torch.tensor([0.1, 0.6, 0.3])
    found = sample_tokens(
        lambda ids: probabilities.log().expand(*ids.shape, 3),
        torch.zeros(4_000, 1, dtype=torch.int64),
        1,
        temperature=1.0,
        generator=torch.Generator().manual_seed(0),
        max_context=1,
    )

    observed = torch.bincount(found.flatten(), minlength=3) / 4_000
    torch.testing.assert_close(observed, probabilities, atol=0.03, rtol=0)
