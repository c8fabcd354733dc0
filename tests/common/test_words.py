"""Words for numbers, at the edges."""

from mplab.common.words import integer, plural


def test_one_is_singular_and_all_other_counts_are_plural():
    assert [plural(n, "bit") for n in (0, 1, 2)] == ["0 bits", "1 bit", "2 bits"]


def test_an_integer_of_up_to_128_bits_is_written_out():
    assert integer(2**128 - 1) == str(2**128 - 1)
    assert integer(2**128) == "an integer of 129 bits"
