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
from keepad.latency import within_budget
from keepad.presets import ENGINES, OperatingPoint, operating_point
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
            this machine in 95 % of the passes.
        say: Called with one line for every step.

    Raises:
        KeepADError: There is no such checkpoint, engine or device, something is not installed, the profile belongs
            to another detector, or no point is as fast as the budget.

    Example:
        >>> detector = keepad.load(point="prune70")
        >>> detector("part.jpg").pred_score
        0.31
    """
    if budget_ms is not None:
        if point is not None or profile is not None:
            other = "a profile has its operating point" if point is None else "an operating point was named"
            raise KeepADError(f"a budget chooses the operating point, but {other} already; give one of them.")
        detector = load(what, engine=engine, device=device, weights=weights, say=say)
        return Detector(detector.network, within_budget(detector.network, budget_ms, say))
    if profile is not None:
        profile = profile if isinstance(profile, Profile) else read_profile(profile)
        if what is None and profile.owner.name in bundled_checkpoints():
            what = profile.owner.name
        point = profile.owner.point if point is None else point
        chosen = profile.settings.get("engine")
        if engine == "auto" and isinstance(chosen, str) and not is_exported(what):
            engine = chosen  # that of `keepad choose`
        detector = load(what, point=point, engine=engine, device=device, weights=weights, say=say)
        return detector.with_profile(profile)
    point = operating_point(DEFAULT_POINT if point is None else point)
    kind, precision = parse_engine(engine)
    if is_exported(what):
        folder = Path(str(what))
        exported_for = read_description(folder).engine
        if kind not in ("auto", exported_for):
            raise KeepADError(f"{folder} was exported for {exported_for}, not for {kind}; leave the engine out.")
        network = open_network(folder)
        say(f"engine: {network.runs_on}, as exported")
        return Detector(network, point)
    resolve_checkpoint(what)  # a wrong name is reported before anything heavy is imported
    on_cpu = kind in ENGINES[1:]
    torch_network = load_network(what, device="cpu" if on_cpu else device, weights=weights, say=say)
    if kind == "torch":
        return Detector(torch_network, point)
    if kind == "auto":
        from keepad.engines.auto import choose_network

        return Detector(choose_network(torch_network, say=say), point)
    from keepad.engines.export import exported

    return Detector(open_network(exported(torch_network, kind, precision, say=say)), point)


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
    say: Say = say_on_stderr,
) -> Network:
    """The torch network of a checkpoint, given by path, by its own name or by that of its backbone."""
    path = resolve_checkpoint(what)
    if find_spec("torch") is None or find_spec("timm") is None:
        raise KeepADError(
            f"{path.name} is a checkpoint, which needs torch: pip install 'keepad[torch]', or open a folder of "
            "keepad export instead."
        )
    from keepad.assembly import load_checkpoint

    return load_checkpoint(path, device=device, weights=weights, say=say)


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
