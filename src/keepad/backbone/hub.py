"""timm's weights on the hub: from the hub's own cache, or downloaded if the hub answers within seconds."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import timm
from huggingface_hub import hf_hub_url, try_to_load_from_cache
from torch import Tensor

from keepad.backbone.registry import BackboneSpec

ANSWER_SECONDS = 4.0  # a hub that cannot be reached must not cost five
_FILE = "model.safetensors"
_RETRIED = (429, 500, 502, 503, 504)  # the hub's client repeats these for half a minute


def cached_weights(spec: BackboneSpec) -> str | None:
    """Path of a backbone's weights in the hub's own cache, or None."""
    repository = _config(spec).hf_hub_id
    path = try_to_load_from_cache(repository, _FILE) if repository else None
    return path if isinstance(path, str) else None


def read_weights(spec: BackboneSpec, file: str | None = None) -> dict[str, Tensor]:
    """State dict of timm's weights: from a file of the hub, or downloaded. Raises whatever the hub's client raises."""
    overlay = {"file": file} if file else None
    with _quiet_client():
        vit = timm.create_model(
            f"{spec.architecture}.{spec.tag}", pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay
        )
    return {name: tensor.contiguous() for name, tensor in vit.state_dict().items()}


def why_unreachable(spec: BackboneSpec) -> str | None:
    """Why the hub cannot be asked for a backbone, known within ANSWER_SECONDS; None if it answers.

    The hub's client repeats failed requests for half a minute. So one request is made without it.
    """
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    config = _config(spec)
    url = hf_hub_url(config.hf_hub_id, _FILE) if config.hf_hub_id else config.url
    # In a thread, because the timeout of a socket does not cover the name lookup; a daemon does not delay the exit.
    threading.Thread(target=lambda: answers.put(_request(url)), daemon=True).start()
    try:
        return answers.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        return f"no answer within {ANSWER_SECONDS:g} s"


def _request(url: str) -> str | None:
    """Why a request for the head of a file fails; None if it does not."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=ANSWER_SECONDS):
            return None
    except urllib.error.HTTPError as error:  # other refusals are for the client, which may send a token
        return f"status {error.code}" if error.code in _RETRIED else None
    except Exception as error:  # of sockets, TLS, proxies and redirects
        reason = getattr(error, "reason", None) or error
        return str(getattr(reason, "strerror", None) or reason or type(error).__name__)


def _config(spec: BackboneSpec) -> Any:
    """timm's record of pretrained weights: repository on the hub, or the address of a file."""
    return timm.get_pretrained_cfg(f"{spec.architecture}.{spec.tag}")


@contextlib.contextmanager
def _quiet_client() -> Iterator[None]:
    """Silence what the hub's client logs; one line of `load_weights` reports the outcome."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
