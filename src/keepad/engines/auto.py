"""engine="auto": OpenVINO instead of torch, where it is installed, agrees with torch, and is faster on this machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from keepad.arrays import Array
from keepad.console import Say
from keepad.demo import demo_images
from keepad.engines.export import exported, verify
from keepad.engines.network import EngineNetwork, open_network
from keepad.errors import KeepADError
from keepad.files import replace_text
from keepad.images import spread, to_input
from keepad.inference import AnyNetwork
from keepad.latency import interleaved
from keepad.network import Network
from keepad.presets import POINTS

_NEEDED = ("openvino", "onnxscript")
_IMAGES = 4
_POINTS = ("dense", "prune50", "prune70")
_TIMED_POINT, _ROUNDS = "prune50", 3


def choose_network(network: Network, *, say: Say) -> Network | EngineNetwork:
    """The network itself, or its OpenVINO export in fp32 where that is verified and faster; one line says which.

    The export, its verification and the measured times are kept in the user's cache, by machine and version.
    """
    if network.device.type != "cpu":
        say(f"engine: {network.runs_on}")
        return network
    missing = [package for package in _NEEDED if find_spec(package) is None]
    if missing:
        say(f"engine: {network.runs_on} ({', '.join(missing)} not installed)")
        return network
    try:
        folder = exported(network, "openvino", say=say)
        engine = open_network(folder)
        times = _measured(network, engine, folder, say)
    except (KeepADError, OSError) as error:
        say(f"engine: {network.runs_on}; OpenVINO was not used: {error}")
        return network
    faster = times["torch"] / times["openvino"]
    chosen: Network | EngineNetwork = engine if faster > 1 else network
    say(f"engine: {chosen.runs_on} (OpenVINO {faster:.2f}x as fast as torch at {_TIMED_POINT}, verified)")
    return chosen


def _measured(network: Network, engine: EngineNetwork, folder: Path, say: Say) -> dict[str, float]:
    """Milliseconds of both networks on this machine, measured after verification, or as measured before."""
    file, machine = folder / "auto.json", _machine()
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["machine"] == machine and all(float(known["ms"][name]) > 0 for name in ("torch", "openvino")):
            return {name: float(ms) for name, ms in known["ms"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # not measured yet
    say("verifying the OpenVINO export against torch and timing both, once")
    images = [demo.image for demo in spread(demo_images(), _IMAGES)]
    verify(network, engine, images, [POINTS[name] for name in _POINTS])
    times = _times({"torch": network, "openvino": engine}, [to_input(i, network.image_size)[None] for i in images])
    replace_text(file, json.dumps({"machine": machine, "ms": times}, indent=1))
    return times


def _times(networks: dict[str, AnyNetwork], batches: Sequence[Array]) -> dict[str, float]:
    """Median milliseconds per image of each network; they take turns, after one untimed pass each."""
    point = POINTS[_TIMED_POINT]

    def runner(network: AnyNetwork) -> Callable[[Array], object]:
        return lambda batch: network.infer(batch, [point])

    times = interleaved({name: runner(network) for name, network in networks.items()}, batches, _ROUNDS)
    return {name: float(np.median(ms)) for name, ms in times.items()}


def _machine() -> dict[str, str]:
    return {
        "processor": f"{platform.machine()} {platform.processor()} {platform.node()}",
        "torch": version("torch"),
        "openvino": version("openvino"),
    }
