import pytest
import torch

from sluice.data.rows import content_digests
from sluice.data.rows.protocol import DictRows


@pytest.mark.parametrize("change", [None, 300])
def test_a_digest_changes_with_the_content_of_its_row_only(change):
    source = torch.arange(1_200, dtype=torch.float32).reshape(600, 2)
    before = content_digests(source)
    if change is not None:
        source[change, 1] += 1

    after = content_digests(source)

    assert len(set(before)) == 600
    assert [n for n in range(600) if before[n] != after[n]] == ([] if change is None else [change])


def test_a_dict_counts_by_all_of_its_tensors():
    ids, mask = torch.zeros(3, 4), torch.tensor([[1], [1], [0]])

    digests = content_digests(DictRows({"ids": ids, "mask": mask}))

    assert digests[0] == digests[1] != digests[2]
