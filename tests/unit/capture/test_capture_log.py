from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avsim.capture.log import Damage, encode, parts, read_part
from avsim.errors import InputError


def record(number):
    arrays = {"a": np.arange(number, dtype=np.int32), "b": np.full((2, number), number, dtype=np.float32)}
    return encode({"number": number, "text": "é\ud800"}, arrays, number)


WHOLE = [record(number) for number in range(1, 5)]
ENDS = np.cumsum([len(one) for one in WHOLE])


def read(path):
    damage = Damage()
    return [found.meta["number"] for found in read_part(path, damage)], damage


def test_records_come_back(tmp_path):
    path = tmp_path / "part"
    path.write_bytes(b"".join(WHOLE))
    damage = Damage()
    for number, found in enumerate(read_part(path, damage), start=1):
        assert found.meta == {"number": number, "text": "é\ud800"}
        assert np.array_equal(found.arrays["a"], np.arange(number))
        assert found.arrays["b"].shape == (2, number)
        assert found.arrays["b"].dtype == np.float32
    assert damage == Damage()


def test_a_file_cut_at_any_byte_gives_all_records_before_the_cut(tmp_path):
    path = tmp_path / "part"
    everything = b"".join(WHOLE)
    for length in range(len(everything)):
        path.write_bytes(everything[:length])
        whole = int((length >= ENDS).sum())
        start = 0 if whole == 0 else int(ENDS[whole - 1])
        numbers, damage = read(path)
        assert numbers == list(range(1, whole + 1))
        assert damage.cut_bytes == length - start
        assert damage.cut_steps == (whole + 1 if length - start >= 16 else 0)


@settings(database=None, deadline=None, derandomize=True, max_examples=200)
@given(at=st.integers(0, int(ENDS[-1]) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_read_as_data(tmp_path_factory, at, bit):
    path = tmp_path_factory.mktemp("flip") / "part"
    data = bytearray(b"".join(WHOLE))
    data[at] ^= 1 << bit
    path.write_bytes(data)
    numbers, damage = read(path)
    assert numbers == list(range(1, int((at >= ENDS).sum()) + 1))
    assert damage.cut_parts == 1


def test_parts_are_in_the_order_of_their_numbers(tmp_path):
    names = ["part-00002.log", "part-00010.log", "part-99999.log", "part-100000.log"]
    for name in reversed(names):
        (tmp_path / name).touch()
    assert [path.name for path in parts(tmp_path)] == names


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "nothing")
