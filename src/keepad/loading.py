"""load(): the one door to a detector, from a bundled name, a checkpoint file or an exported folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from keepad.checkpoint import bundled_checkpoints, read_info
from keepad.console import Say, say_on_stderr
from keepad.detector import Detector
from keepad.engines.folder import is_exported, read_description
from keepad.engines.network import open_network
from keepad.errors import KeepADError
from keepad.framing import MOST_PATCHES, Framing, framing_of, size_of
from keepad.latency import within_budget
from keepad.presets import ENGINES, OperatingPoint, operating_point
from keepad.references.parts import framing_from
from keepad.references.profile import Profile, read_profile

if TYPE_CHECKING:
    import torch

    from keepad.network import Network

DEFAULT_CHECKPOINT = "default"
DEFAULT_POINT = "prune50"


def load(
    what: str | Path | None = None,
    *,
    point: str | OperatingPoint | None = None,
    engine: str = "auto",
    device: str | None = None,
    weights: str | Path | None = None,
    profile: str | Path | Profile | None = None,
    budget_ms: float | None = None,
    image_size: str | int | tuple[int, int] | None = None,
    fit: str = "squash",
    tiles: str | int | None = None,
    overlap: int | None = None,
    roi: str | Path | None = None,
    ignore: str | Path | None = None,
    views: int = 1,
    say: Say = say_on_stderr,
) -> Detector:
    """A detector, ready to be called.

    Args:
        what: Name of a bundled checkpoint or of a backbone that has one, a checkpoint file, or a folder of
            `keepad export`; the bundled default if None.
        point: Operating point: dense, prune30, prune50, prune70, keep25 and the like, or an OperatingPoint; that of
            the profile, or prune50, if None.
        engine: "torch", "openvino" or "onnx", with a precision after a colon if not fp32 ("openvino:bf16"). A
            checkpoint is exported to the user's cache once. "auto" takes OpenVINO in fp32 on a CPU where it is
            installed, agrees with torch and is faster; else torch; or the engine that the profile was chosen for. A
            folder runs on the engine that it was exported for.
        device: Device of torch; a GPU if there is one, else the CPU.
        weights: Backbone weights to use instead of the cached or downloaded ones.
        profile: What is known of one product, or its file; see `Detector.teach` and `Detector.calibrate`. Without
            `what`, the bundled checkpoint that it belongs to is opened.
        budget_ms: Milliseconds per image, instead of a point: the most accurate operating point that keeps them on
            this machine in 95 % of the passes, for images that are taken whole.
        image_size: Height and width of the network's input, in whole patches; the checkpoint's own if None.
        fit: How an image of another shape becomes an input: "squash", "pad", "native" or "auto".
        tiles: Cut large images into tiles that share one budget: "auto", or pixels of the image along a tile's side.
        overlap: Pixels of the image that neighbouring tiles share at least.
        roi: File of where to look: a mask at the size of the images, or polygons as JSON.
        ignore: The same of where not to look.
        views: Views that are averaged: 1, 2 (mirrored too) or 4 (upside down and turned around too).
        say: Called with one line for every step.

    Raises:
        KeepADError: There is no such checkpoint, engine or device, something is not installed, the profile belongs
            to another detector, or no point is as fast as the budget.

    Example:
        >>> detector = keepad.load(point="prune70")
        >>> detector("part.jpg").pred_score
        0.31
    """
    framing = framing_of(fit, tiles, overlap, roi, ignore, views)
    size = None if image_size is None else size_of(image_size)
    if budget_ms is not None:
        if point is not None or profile is not None:
            other = "a profile has its operating point" if point is None else "an operating point was named"
            raise KeepADError(f"a budget chooses the operating point, but {other} already; give one of them.")
        detector = load(what, engine=engine, device=device, weights=weights, image_size=size, fit=fit, say=say)
        return Detector(detector.network, within_budget(detector.network, budget_ms, say), framing=framing)
    if profile is not None:
        profile = profile if isinstance(profile, Profile) else read_profile(profile)
        if what is None and profile.owner.name in bundled_checkpoints():
            what = profile.owner.name
        point = profile.owner.point if point is None else point
        if size is None and what == profile.owner.name:
            size = profile.owner.size
        chosen = profile.settings.get("engine")
        if engine == "auto" and isinstance(chosen, str) and not is_exported(what):
            engine = chosen  # that of `keepad choose`
        detector = load(
            what, point=point, engine=engine, device=device, weights=weights, image_size=size, fit=fit, say=say
        )
        if framing.plain:  # the profile's own, if it has one
            framing = framing_from(profile.settings.get("framing"))
        return Detector(detector.network, point, framing=framing).with_profile(profile)
    point = operating_point(DEFAULT_POINT if point is None else point)
    kind, precision = parse_engine(engine)
    if is_exported(what):
        folder = Path(str(what))
        exported_for = read_description(folder).engine
        if kind not in ("auto", exported_for):
            raise KeepADError(f"{folder} was exported for {exported_for}, not for {kind}; leave the engine out.")
        network = open_network(folder)
        if size not in (None, network.image_size):
            (height, width), (rows, columns) = size or (0, 0), network.image_size
            raise KeepADError(
                f"{folder} was exported for inputs of {rows}x{columns}, not {height}x{width}; export it again with "
                f"--image-size {height}x{width}."
            )
        refuse_shapes(framing, str(folder))
        say(f"engine: {network.runs_on}, as exported")
        return Detector(network, point, framing=framing)
    resolve_checkpoint(what)  # a wrong name is reported before anything heavy is imported
    on_cpu = kind in ENGINES[1:]
    if kind in ENGINES[1:]:
        refuse_shapes(framing, kind)
    torch_network = load_network(what, device="cpu" if on_cpu else device, weights=weights, image_size=size, say=say)
    if kind == "auto" and framing.any_shape:
        say(f"engine: {torch_network.runs_on}, which takes inputs of any shape")
    if kind == "torch" or (kind == "auto" and framing.any_shape):
        return Detector(torch_network, point, framing=framing)
    if kind == "auto":
        from keepad.engines.auto import choose_network

        return Detector(choose_network(torch_network, say=say), point, framing=framing)
    from keepad.engines.export import exported

    return Detector(open_network(exported(torch_network, kind, precision, say=say)), point, framing=framing)


def refuse_shapes(framing: Framing, name: str) -> None:
    """Refuse inputs of the image's own shape for a network whose graphs have one shape; `name` names it."""
    if framing.fit == "native":
        raise KeepADError(
            f"{name} takes inputs of one shape, so --fit native cannot be used; choose pad or squash, or --engine "
            "torch with a checkpoint."
        )


def parse_engine(engine: str) -> tuple[str, str]:
    """Engine and precision of "openvino:bf16" and the like, or a KeepADError."""
    kind, _, precision = engine.partition(":")
    if kind not in ("auto", *ENGINES):
        raise KeepADError(f"there is no engine called {kind!r}; choose one of auto, {', '.join(ENGINES)}.")
    if precision and kind in ("auto", "torch"):
        raise KeepADError(f"{kind} takes no precision; leave ':{precision}' out, or name openvino or onnx.")
    return kind, precision or "fp32"


def load_network(
    what: str | Path | None = None,
    *,
    device: str | torch.device | None = None,
    weights: str | Path | None = None,
    image_size: tuple[int, int] | None = None,
    say: Say = say_on_stderr,
) -> Network:
    """The torch network of a checkpoint, given by path, by its own name or by that of its backbone.

    Args:
        what: The checkpoint.
        device: Device of torch; a GPU if there is one, else the CPU.
        weights: Backbone weights to use instead of the cached or downloaded ones.
        image_size: Height and width of its input; the checkpoint's own if None. Positions are resampled.
        say: Called with one line for every step.
    """
    path = resolve_checkpoint(what)
    if find_spec("torch") is None or find_spec("timm") is None:
        raise KeepADError(
            f"{path.name} is a checkpoint, which needs torch: pip install 'keepad[torch]', or open a folder of "
            "keepad export instead."
        )
    from keepad.assembly import load_checkpoint

    network = load_checkpoint(path, device=device, weights=weights, say=say)
    if image_size is not None:
        set_input(network, image_size, say)
    return network


def set_input(network: Network, size: tuple[int, int], say: Say) -> None:
    """Let a network take inputs of another height and width; its positions are resampled.

    Raises:
        KeepADError: The size is not in whole patches, or has too many of them.
    """
    if size == network.image_size:
        return
    rows, columns = network.backbone.grid_of(*size)
    height, width = size
    if rows * columns > MOST_PATCHES:
        raise KeepADError(
            f"an input of {height}x{width} has {rows * columns} patches, more than the {MOST_PATCHES} that are run at "
            "once; choose a smaller size, or cut images with --tiles auto."
        )
    own = f"{network.image_size[0]}x{network.image_size[1]}"
    say(f"input: {height}x{width} instead of {own}, positions resampled to {rows}x{columns} patches")
    network.image_size = size


def resolve_checkpoint(what: str | Path | None) -> Path:
    """The file of a checkpoint given by path, by its own name, or by the name of its backbone."""
    from keepad.backbone.registry import BACKBONES

    bundled = bundled_checkpoints()
    name = DEFAULT_CHECKPOINT if what is None else str(what)
    if name in bundled:
        return bundled[name]
    for path in bundled.values():
        if read_info(path).backbone == name:
            return path
    if name in BACKBONES:
        raise KeepADError(f"no checkpoint for the backbone {name} comes with the package; give the path of one.")
    path = Path(name)
    if path.suffix != ".safetensors" and not path.exists():
        raise KeepADError(
            f"there is no checkpoint called {name!r}; choose one of {', '.join(bundled)}, or give a checkpoint file "
            "or a folder of keepad export."
        )
    return path
