"""Baskets: images that a client sends, in as many requests as it likes, before a profile is taught from them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from keepad.framing import SQUASHED, Framing
from keepad.images import InputImage
from keepad.serve.errors import RefusedError

_SECONDS = 900  # after which a basket that nobody touched is forgotten


@dataclass(eq=False)
class Basket:
    """Images at input size, in memory only.

    Attributes:
        framing: How the images became inputs; that of the profile that they are for.
        id: Name that cannot be guessed.
        images: The images.
        touched: Time of its last use.
    """

    framing: Framing = SQUASHED
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    images: list[InputImage] = field(default_factory=list)
    touched: float = field(default_factory=time.monotonic)


class Baskets:
    """All baskets; used in the event loop only.

    Args:
        limit: Images in all of them together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._baskets: dict[str, Basket] = {}

    def new(self, framing: Framing = SQUASHED) -> Basket:
        """An empty basket for images that become inputs in this way."""
        self._forget_old()
        basket = Basket(framing)
        self._baskets[basket.id] = basket
        return basket

    def get(self, id: str) -> Basket:
        """The basket of that name.

        Raises:
            RefusedError: 404, there is none.
        """
        self._forget_old()
        if id not in self._baskets:
            raise RefusedError(404, "there is no such basket; one that is not used for 15 minutes is forgotten.")
        basket = self._baskets[id]
        basket.touched = time.monotonic()
        return basket

    def add(self, basket: Basket, images: Sequence[InputImage]) -> None:
        """Put images into a basket.

        Raises:
            RefusedError: 413, all baskets together would hold too many.
        """
        self.check_room(len(images))
        basket.images.extend(images)
        basket.touched = time.monotonic()

    def check_room(self, count: int) -> None:
        """Refuse, with 413, images for which there is no room."""
        self._forget_old()
        held = sum(len(basket.images) for basket in self._baskets.values())
        if held + count > self._limit:
            raise RefusedError(413, f"the service holds {self._limit} images to be taught at most, and has {held} now.")

    def take(self, id: str, framing: Framing = SQUASHED) -> list[InputImage]:
        """The images of a basket, which is gone then.

        Raises:
            RefusedError: 404, there is no such basket; 400, it is empty; 409, its images are for another profile.
        """
        basket = self.get(id)
        images = basket.images
        if basket.framing.description() != framing.description():
            raise RefusedError(
                409,
                "the basket was filled for another fit or region of interest; fill one with ?profile= and the name of "
                "the profile that its images are for.",
            )
        if not images:
            raise RefusedError(400, "the basket is empty; send images to it first.")
        del self._baskets[id]
        return images

    def drop(self, id: str) -> None:
        """Forget a basket; nothing happens if it is gone."""
        self._baskets.pop(id, None)

    def _forget_old(self) -> None:
        oldest = time.monotonic() - _SECONDS
        self._baskets = {id: basket for id, basket in self._baskets.items() if basket.touched >= oldest}
