"""Settings of a service, checked before it opens a port."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from keepad.errors import KeepADError

LEAST_TOKEN = 16  # characters; a shorter one can be guessed over a network


@dataclass(frozen=True)
class Limits:
    """What one request, and all requests together, may take.

    Attributes:
        queue: Images of all requests that are in the house at once; more are answered with 429.
        images: Images of one request.
        bytes: Size of the body of one request, packed or unpacked.
        pixels: Pixels of one image; a larger one is refused by its header.
        seconds: Time from the first byte of a request to its answer.
        profiles: Profiles that can be made through the service.
        uploaded: Images that wait to be taught, in memory.
    """

    queue: int = 256
    images: int = 64
    bytes: int = 64_000_000
    pixels: int = 50_000_000
    seconds: float = 60.0
    profiles: int = 32
    uploaded: int = 512

    def __post_init__(self) -> None:
        if min(self.queue, self.images, self.bytes, self.pixels, self.profiles, self.uploaded) < 1:
            raise KeepADError("the limits of a service must be at least 1.")
        if not 0 < self.seconds < 86_400:
            raise KeepADError(f"a request may take from above 0 seconds to a day, not {self.seconds:g} seconds.")


@dataclass(frozen=True)
class ServeSettings:
    """Where a service listens, whom it answers, and how much it takes.

    Attributes:
        host: Address to listen on; one that other machines reach needs a token.
        port: Port; 0 takes a free one.
        token: Secret that every request must carry, or None on a loopback address.
        batch_size: Images per forward pass, at most.
        limits: Limits of requests.

    Raises:
        KeepADError: The address is no address, or others reach it and there is no token, or a weak one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    batch_size: int = 8
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise KeepADError(f"the batch size must be at least 1, not {self.batch_size}.")
        if not 0 <= self.port < 65_536:
            raise KeepADError(f"a port is a number from 0 to 65535, not {self.port}.")
        if self.token is not None and (len(self.token) < LEAST_TOKEN or not self.token.isascii()):
            raise KeepADError(f"a token needs at least {LEAST_TOKEN} characters, all of them ASCII.")
        if self.token is not None and not self.token.isprintable():
            raise KeepADError("a token cannot hold line breaks or other control characters.")
        if self.token is None and not is_loopback(self.host):
            raise KeepADError(
                f"other machines can reach {self.host}, so the service needs a secret there: write one of "
                f"{LEAST_TOKEN} characters or more to a file and give --token-file, or leave --host out."
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; a name other than localhost may be anything."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """The secret in a file, without white space around it.

    Raises:
        KeepADError: The file cannot be read, or is empty.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise KeepADError(f"the token file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise KeepADError(f"the token file {path} holds other than ASCII characters; write a new secret.") from None
    if not token:
        raise KeepADError(f"the token file {path} is empty; write a secret of {LEAST_TOKEN} characters or more to it.")
    return token
