"""The type of NumPy arrays in signatures; shapes and dtypes stand in docstrings."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
