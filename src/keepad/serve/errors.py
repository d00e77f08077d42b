"""What a service answers instead of a result: a status and one sentence."""

from __future__ import annotations

from keepad.errors import ImageError, KeepADError


class RefusedError(Exception):
    """A request that is answered with a status and a sentence.

    Args:
        status: HTTP status.
        sentence: What was wrong, and what to do.
        retry_after: Seconds after which it is worth trying again, or None.
    """

    def __init__(self, status: int, sentence: str, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def refusal_of(error: KeepADError) -> RefusedError:
    """The answer to an error of the library: 422 for an image that cannot be used, else 400."""
    return RefusedError(422 if isinstance(error, ImageError) else 400, str(error))
