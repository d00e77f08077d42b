"""keepad models: every backbone and checkpoint, what it is, and whether it is on this machine."""

from __future__ import annotations


def models() -> None:
    """List backbones and checkpoints with size, licence, origin, and whether they are on this machine."""
    from rich.table import Table

    from keepad.backbone.locations import cached_file, installed_file
    from keepad.backbone.registry import BACKBONES, BackboneSpec
    from keepad.checkpoint import bundled_checkpoints, read_info
    from keepad.console import stdout
    from keepad.files import cache_folder

    def origin(spec: BackboneSpec) -> str:
        places = [f"timm hub {spec.architecture}.{spec.tag}"] if spec.tag else []
        if spec.carrier:
            places.append(f"package {spec.carrier.package} {spec.carrier.version}")
        return ", ".join(places)

    def here(spec: BackboneSpec) -> str:
        if cached_file(spec).is_file():
            return "yes, cached"
        return "yes, installed" if spec.carrier and installed_file(spec.carrier) else "no"

    table = Table(title="Backbones", title_justify="left")
    for column in ("name", "what it is", "size", "licence", "comes from", "on this machine"):
        table.add_column(column, overflow="fold")
    for spec in BACKBONES.values():
        table.add_row(spec.name, spec.what, f"{spec.megabytes} MB", spec.licence, origin(spec), here(spec))
    stdout.print(table)
    stdout.print(
        "Any other timm ViT or Eva can be named as well.",
        f"Cache: {cache_folder()}",
        sep="\n",
        soft_wrap=True,
        highlight=False,
    )

    table = Table(title="\nCheckpoints", title_justify="left")
    for column in ("name", "what it is", "backbone", "size", "licence", "comes from", "on this machine"):
        table.add_column(column, overflow="fold")
    for name, path in bundled_checkpoints().items():
        info = read_info(path)
        provenance = info.provenance
        table.add_row(
            name,
            str(provenance.get("what", "")),
            info.backbone,
            f"{path.stat().st_size / 1e6:.1f} MB",
            str(provenance.get("licence", "")),
            "bundled with the package",
            "yes",
        )
    stdout.print(table)
