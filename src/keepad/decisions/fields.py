"""Typed values out of a dict that was read from a file: nothing in it is trusted."""

from __future__ import annotations

import math
from collections.abc import Collection

from keepad.errors import KeepADError


class Fields:
    """A dict whose values are read by type.

    Args:
        values: What `json.load` gave, of any type.
        what: What it should be, for the error: "a saved calibration".
        keys: The keys it must have; any if None.

    Raises:
        KeepADError: Not a dict, or other keys. So do all methods, for a value of another type or out of range.
    """

    def __init__(self, values: object, what: str, keys: Collection[str] | None = None) -> None:
        if not isinstance(values, dict):
            raise KeepADError(f"This is not {what}: it is a {type(values).__name__}, not a dict.")
        if keys is not None and set(values) != set(keys):
            wrong = sorted(map(str, set(values) ^ set(keys)))
            raise KeepADError(f"This is not {what}: the keys {', '.join(wrong)[:200]} are missing or unknown.")
        self._values = values
        self._what = what

    @property
    def keys(self) -> list[str]:
        """The keys, in their order."""
        return list(self._values)

    def number(self, key: str, low: float = -math.inf, high: float = math.inf) -> float:
        """The finite number under `key`, within `low` and `high`."""
        return self._number(key, self._values[key], low, high)

    def number_or_none(self, key: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        """The number under `key`, or None where it is null."""
        return None if self._values[key] is None else self.number(key, low, high)

    def integer(self, key: str, low: int = 0, high: int = 2**53) -> int:
        """The whole number under `key`, within `low` and `high`."""
        return self._integer(key, self._values[key], low, high)

    def integers(self, key: str, low: int = 0, high: int = 2**53) -> tuple[int, ...]:
        """The list of whole numbers under `key`."""
        return tuple(self._integer(key, value, low, high) for value in self.items(key))

    def numbers(self, key: str, low: float = -math.inf, high: float = math.inf) -> tuple[float, ...]:
        """The list of finite numbers under `key`."""
        return tuple(self._number(key, value, low, high) for value in self.items(key))

    def text(self, key: str) -> str:
        """The string under `key`."""
        value = self._values[key]
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The list of strings under `key`."""
        texts = []
        for value in self.items(key):
            if not isinstance(value, str):
                raise self._wrong(key, "a list of strings", value)
            texts.append(value)
        return tuple(texts)

    def items(self, key: str) -> list[object]:
        """The list under `key`, its elements of any type."""
        values = self._values[key]
        if not isinstance(values, list | tuple):
            raise self._wrong(key, "a list", values)
        return list(values)

    def value(self, key: str) -> object:
        """Whatever is under `key`."""
        return self._values[key]

    def _integer(self, key: str, value: object, low: int, high: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(key, f"a whole number of {low} to {high}", value)
        return value

    def _number(self, key: str, value: object, low: float, high: float) -> float:
        try:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        except OverflowError:  # an int above 1.8e308
            number = math.inf
        if not math.isfinite(number) or not low <= number <= high:
            within = "" if math.isinf(low) and math.isinf(high) else f" of {low:g} to {high:g}"
            raise self._wrong(key, f"a finite number{within}", value)
        return number

    def _wrong(self, key: str, expected: str, value: object) -> KeepADError:
        return KeepADError(f"This is not {self._what}: '{key}' must be {expected}, not {value!r:.40}.")
