"""Digests of the content of rows."""

import pytest
import torch

from sluice.data.rows import content_digests
from sluice.data.rows.protocol import DictRows


@pytest.mark.parametrize("changed_row", [None, 300])
def test_digest_depends_only_on_the_content_of_its_row(changed_row):
    source = torch.arange(1_200, dtype=torch.float32).reshape(600, 2)
    before = content_digests(source)
    if changed_row is not None:
        source[changed_row, 1] += 1

    after = content_digests(source)

    assert len(set(before)) == 600
    assert [n for n in range(600) if before[n] != after[n]] == (
        [] if changed_row is None else [changed_row]
    )


def test_digest_of_a_dict_depends_on_all_tensors():
    ids, mask = torch.zeros(3, 4), torch.tensor([[1], [1], [0]])

    digests = content_digests(DictRows({"ids": ids, "mask": mask}))

    assert digests[0] == digests[1] != digests[2]
