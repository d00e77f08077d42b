"""keepad models: every backbone and checkpoint, what it is, and whether it is on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keepad.backbone.registry import BackboneSpec


def models() -> None:
    """List backbones, checkpoints and profiles with size, licence, origin, and whether they are on this machine."""
    from keepad.backbone.registry import BACKBONES
    from keepad.checkpoint import bundled_checkpoints
    from keepad.console import stdout
    from keepad.files import cache_folder
    from keepad.references.profile import SUFFIX

    _print_table("Backbones", ((spec.name, _here(spec), _describe(spec)) for spec in BACKBONES.values()))
    stdout.print(
        "Sources in this order: cache, installed package, hub, package registry.",
        "Any other timm ViT or Eva can be named as well.",
        f"Cache: {cache_folder()}",
        sep="\n",
        soft_wrap=True,
        highlight=False,
    )
    checkpoints = bundled_checkpoints().items()
    _print_table("\nCheckpoints", ((name, "bundled", _describe_checkpoint(path)) for name, path in checkpoints))

    profiles = sorted(Path().glob(f"*{SUFFIX}"))
    if profiles:
        _print_table("\nProfiles in this folder", ((path.name, "yes", _describe_profile(path)) for path in profiles))


def _describe_profile(path: Path) -> str:
    from keepad.errors import KeepADError
    from keepad.references.profile import read_profile

    try:
        profile = read_profile(path)
    except KeepADError as error:
        return str(error)
    owner = profile.owner
    return "\n".join(
        [
            *profile.holds,
            f"for {owner.name} at {owner.point}, {owner.precision}",
            f"{path.stat().st_size / 1e6:.1f} MB, begun {profile.history[0]['when']}",
        ]
    )


def _print_table(title: str, rows: Iterable[tuple[str, str, str]]) -> None:
    """Three columns, the last one of several lines: every field as a column of its own needs 200 characters."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from keepad.console import stdout

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_lines=True)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("on this machine", max_width=9)
    table.add_column("what it is, licences, where it comes from", overflow="fold")
    for row in rows:
        table.add_row(*row)
    stdout.print(table, highlight=False)


def _here(spec: BackboneSpec) -> str:
    from keepad.backbone.locations import cached_file, installed_file

    if cached_file(spec).is_file():
        return "cached"
    return "installed" if spec.carrier and installed_file(spec.carrier) else "no"


def _describe(spec: BackboneSpec) -> str:
    lines = [spec.what, f"weights: {spec.megabytes} MB, {spec.licence}"]
    if spec.tag:
        lines.append(f"timm hub: {spec.architecture}.{spec.tag}")
    if spec.carrier:
        carrier = spec.carrier
        lines.append(f"{carrier.source}: {carrier.wheel_bytes / 1e6:.0f} MB, package licence: {carrier.licence}")
    return "\n".join(lines)


def _describe_checkpoint(path: Path) -> str:
    from keepad.checkpoint import read_info

    info = read_info(path)
    trained_on = f" (trained on {info.backbone_source})" if info.backbone_source else ""
    lines = [
        str(info.provenance.get("what", "")),
        f"backbone: {info.backbone}{trained_on}",
        f"{path.stat().st_size / 1e6:.1f} MB, {info.provenance.get('licence', '')}",
    ]
    return "\n".join(lines)
