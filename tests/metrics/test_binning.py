"""The bins keep order and are narrow near 0 and 1."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.metrics.binning import BINS, bin_codes

unit = st.one_of(
    st.floats(0, 1, width=32),
    st.floats(0, 2.0**-20, width=32),  # just above 0
    st.integers(0, 3000).map(lambda steps: float(1 - np.float32(steps * 2.0**-24))),  # just below 1
    st.integers(-50, 50).map(lambda steps: float(np.float32(0.5 + steps * 2.0**-25))),  # around the middle
)


def code(value: float) -> int:
    return int(bin_codes(np.array([value], dtype=np.float32))[0])


@given(unit, unit)
@settings(deadline=None, max_examples=500)
def test_a_higher_value_never_has_a_lower_code(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert 0 <= code(low) <= code(high) <= BINS - 1


def test_the_ends_and_the_middle() -> None:
    assert (code(0.0), code(0.5), code(1.0)) == (0, BINS // 2, BINS - 1)
    assert code(-0.0) == 0


@pytest.mark.parametrize("distance", [2.0**-30, 1e-7, 1e-5, 1e-3, 0.1, 0.4])
def test_two_values_half_a_thousandth_apart_in_distance_to_zero_have_their_own_bins(distance: float) -> None:
    assert code(distance) < code(distance * 1.0005)


@pytest.mark.parametrize("steps", [1, 2, 10, 1000, 8000])
def test_just_below_one_every_float_has_its_own_bin(steps: int) -> None:
    assert code(1 - steps * 2.0**-24) > code(1 - (steps + 1) * 2.0**-24)


def test_the_input_is_not_modified() -> None:
    values = np.linspace(0, 1, 11, dtype=np.float32)
    before = values.copy()
    bin_codes(values)
    np.testing.assert_array_equal(values, before)
