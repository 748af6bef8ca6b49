"""Arrays in one piece of memory, as they go to a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from octavo_engine.runtime.transfers import ALIGNMENT, Readback, pack, places, to_device, unpacked

pytestmark = pytest.mark.engine

SHAPES = arrays_of.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9)
ARRAYS = st.lists(st.one_of([arrays_of.arrays(kind, SHAPES) for kind in (np.int64, np.int32, np.float32)]), min_size=1)


@given(ARRAYS)
def test_what_is_packed_comes_out_the_same(arrays):
    packed = torch.full((places(arrays)[-1],), 77, dtype=torch.uint8)
    assert all(place % ALIGNMENT == 0 for place in places(arrays))
    pack(arrays, packed)
    for array, tensor in zip(arrays, unpacked(arrays, packed), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype


def test_columns_of_a_larger_array_are_packed_as_they_read():
    array = np.arange(12, dtype=np.int32).reshape(3, 4)[:, 1:3]
    packed = torch.zeros(places([array])[-1], dtype=torch.uint8)
    pack([array], packed)
    assert unpacked([array], packed)[0].tolist() == array.tolist()


def test_on_a_host_nothing_is_copied():
    array = np.arange(5)
    (tensor,) = to_device([array], torch.device("cpu"))
    array[2] = 40
    assert tensor.tolist() == [0, 1, 40, 3, 4]
    assert Readback([tensor]).wait()[0] is tensor
