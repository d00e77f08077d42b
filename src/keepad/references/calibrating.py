"""calibrate(): scores of good images, from which a profile gets a threshold that keeps its promise."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from keepad.console import Progress, Say, no_progress
from keepad.decisions import Calibrated, require_images, suspicious_images
from keepad.decisions import calibrate as calibrated_from
from keepad.decisions.fields import Fields
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.files import replace_text
from keepad.images import InputImage, read_image
from keepad.references.parts import framing_setting
from keepad.references.profile import Profile
from keepad.references.teaching import digest_of_file, now, owner_of
from keepad.sources import ImageSource

_NAMED = 5  # suspicious images that are named


@dataclass(frozen=True)
class Promise:
    """What a calibration is to promise.

    Attributes:
        false_alarms: Share of good images that may be called "defect".
        confidence: Share of all calibration sets for which that holds; None: on their average.
        review: Share of good images that may be called "review" or "defect"; five times `false_alarms` if None.
    """

    false_alarms: float = 0.01
    confidence: float | None = None
    review: float | None = None

    def require(self, images: int) -> None:
        """Raise a KeepADError unless this number of good images can promise it."""
        require_images(images, self.false_alarms, self.confidence)


@dataclass(frozen=True)
class Scored:
    """A good image that was scored.

    Attributes:
        score: Image score.
        highest: Highest value of its anomaly map.
        size: Height and width of the original.
    """

    score: float
    highest: float
    size: tuple[int, int]


class ScoreLog:
    """Scores of an unfinished calibration in a file, one line an image, so that an interrupted one goes on.

    Args:
        path: The file; scores of another detector or profile in it are dropped.
        detector: The detector that scores.
    """

    def __init__(self, path: Path, detector: Detector) -> None:
        self._path = path
        self._identity = _identity(detector)
        self.known = self._read()
        try:
            kept = "".join(_line(digest, scored) for digest, scored in self.known.items())
            replace_text(path, json.dumps(self._identity) + "\n" + kept)
        except OSError as error:
            raise self._failed(error) from error

    def add(self, digest: str, scored: Scored) -> None:
        """Keep one more score."""
        self.known[digest] = scored
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(digest, scored))
        except OSError as error:
            raise self._failed(error) from error

    def remove(self) -> None:
        """Delete the file of a calibration that is done."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> KeepADError:
        return KeepADError(f"{self._path} cannot be written: {error.strerror or error}; choose another --out.")

    def _read(self) -> dict[str, Scored]:
        """Scores of the same detector up to the first line that is no score, such as a torn one."""
        known: dict[str, Scored] = {}
        with suppress(OSError, ValueError, KeyError, KeepADError, RecursionError):
            lines = self._path.read_text(encoding="utf-8").splitlines()
            if not lines or json.loads(lines[0]) != self._identity:
                return {}
            for line in lines[1:]:
                read = Fields(json.loads(line), "a score", ["digest", *Scored.__dataclass_fields__])
                height, width = read.integers("size", low=1)
                known[read.text("digest")] = Scored(read.number("score"), read.number("highest"), (height, width))
        return known


def calibrate(
    detector: Detector,
    good: Iterable[ImageSource],
    promise: Promise,
    *,
    say: Say,
    on_error: Callable[[ImageSource, KeepADError], None] | None = None,
    progress: Progress = no_progress,
    log: ScoreLog | None = None,
) -> Profile:
    """The detector's profile, or a new one without references, with the calibration from good images.

    Args:
        detector: The detector, with its profile if it has one.
        good: Images without defects that are no references.
        promise: What is to be promised.
        say: Called with a line for everything the user should know.
        on_error: Called for every image that cannot be used; without it, the first such image raises.
        progress: Progress bar.
        log: Scores of an interrupted run, and where new ones go.

    Raises:
        KeepADError: Too few images for the promise, references among them, or an image that cannot be used.
    """
    images = distinct(good, say, on_error)
    refuse_references(detector.profile, images)
    promise.require(len(images))
    scored = _score_all(detector, images, on_error, progress, log)
    names = {digest: _name(source, number) for number, (digest, source) in enumerate(images.items())}
    calibrated = calibrated_of(scored, names, promise)
    for line in _remarks(calibrated, [each.size for each in scored.values()]):
        say(line)
    return profile_of(detector).with_calibration(calibrated, now())


def calibrated_of(scored: dict[str, Scored], names: dict[str, str], promise: Promise) -> Calibrated:
    """The calibration from scores by digest of the image, with the names of the images."""
    if len({names[digest] for digest in scored}) < len(scored):  # the same name in several folders
        names = {digest: f"{name} ({digest[:8]})" for digest, name in names.items()}
    return calibrated_from(
        [each.score for each in scored.values()],
        level=promise.false_alarms,
        review_level=promise.review,
        confidence=promise.confidence,
        map_maxima=[each.highest for each in scored.values()],
        images={names[digest]: digest for digest in scored},
    )


def profile_of(detector: Detector) -> Profile:
    """The detector's profile, or a new one that holds nothing yet."""
    if detector.profile is not None:
        return detector.profile
    settings = framing_setting(detector.framing)
    return Profile(None, owner_of(detector, detector.point), (), np.zeros(0, np.uint8), settings, ())


def refuse_references(profile: Profile | None, images: dict[str, ImageSource]) -> None:
    """Refuse images, by digest, that are references of the profile."""
    known = {} if profile is None else {image.digest: image.name for image in profile.images}
    same = [known[digest] for digest in images if digest in known]
    if same:
        raise KeepADError(
            f"{len(same)} of these images are references of the profile ({same[0]} is one), and their scores are too "
            "low to calibrate with; leave them out."
        )


def distinct(
    sources: Iterable[ImageSource],
    say: Say,
    on_error: Callable[[ImageSource, KeepADError], None] | None,
) -> dict[str, ImageSource]:
    """The images by digest, each once."""
    images: dict[str, ImageSource] = {}
    copies = []
    for number, source in enumerate(sources):
        try:
            digest = _digest_of(source)
        except KeepADError as error:
            if on_error is None:
                raise
            on_error(source, error)
            continue
        if digest in images:
            copies.append(_name(source, number))
        images.setdefault(digest, source)
    if copies:
        say(f"{len(copies)} of these images are copies of others and count once ({copies[0]} is one).")
    if not images:
        raise KeepADError("none of the given images can be used, so nothing was calibrated.")
    return images


def _digest_of(source: ImageSource) -> str:
    """SHA-256 of a file, or of the pixels of an image from memory."""
    if isinstance(source, InputImage):
        return source.digest or hashlib.sha256(source.pixels.tobytes()).hexdigest()
    if isinstance(source, str | Path):
        digest = digest_of_file(Path(source))
        if not digest:
            raise KeepADError(f"the image {source} cannot be opened; check its name and permissions.")
        return digest
    return hashlib.sha256(np.asarray(read_image(source)).tobytes()).hexdigest()


def _score_all(
    detector: Detector,
    images: dict[str, ImageSource],
    on_error: Callable[[ImageSource, KeepADError], None] | None,
    progress: Progress,
    log: ScoreLog | None,
) -> dict[str, Scored]:
    """Scores of the usable images, by digest."""
    known = {} if log is None else log.known
    left = {digest: source for digest, source in images.items() if digest not in known}
    scored = {digest: known[digest] for digest in images if digest in known}
    with progress("calibrate", len(images)) as advance:
        if scored:
            advance(len(scored))
        for digest, source in left.items():
            try:
                prediction = detector(source)
            except KeepADError as error:
                if on_error is None:
                    raise
                on_error(source, error)
            else:
                highest = float(prediction.anomaly_map.max())
                scored[digest] = Scored(prediction.pred_score, highest, prediction.image_size)
                if log is not None:
                    log.add(digest, scored[digest])
            advance()
    return {digest: scored[digest] for digest in images if digest in scored}


def _remarks(calibrated: Calibrated, sizes: Sequence[tuple[int, int]]) -> Iterator[str]:
    """What the user should look at before trusting the calibration."""
    odd = suspicious_images(calibrated.names, calibrated.scores)
    if odd:
        more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
        one = len(odd) == 1
        yield (
            f"{', '.join(odd[:_NAMED])}{more} score{'s' if one else ''} far above the others; look at "
            f"{'it' if one else 'them'}, and calibrate without {'it' if one else 'them'} if there is a defect, which "
            "would raise the threshold."
        )
    counts = Counter(sizes)
    if len(counts) > 1:
        (height, width), _ = counts.most_common(1)[0]
        others = len(sizes) - counts[height, width]
        yield (
            f"{others} of the {len(sizes)} images are not {width} x {height} pixels like the most; the promise holds "
            "for images that come as these did."
        )
    if len(set(calibrated.scores)) < len(calibrated.scores) / 2:
        yield "most of these images have the same score as another one; are they different images?"


def _name(source: ImageSource, number: int) -> str:
    if isinstance(source, InputImage) and source.name:
        return source.name
    return Path(source).name if isinstance(source, str | Path) else f"image {number + 1}"


def _identity(detector: Detector) -> dict[str, str]:
    """What scores depend on beside the image, as digests."""
    owner = json.dumps(asdict(owner_of(detector, detector.point)), sort_keys=True)
    references = [] if detector.profile is None else [image.digest for image in detector.profile.images]
    return {
        "owner": hashlib.sha256(owner.encode()).hexdigest(),
        "references": hashlib.sha256("\n".join(references).encode()).hexdigest(),
    }


def _line(digest: str, scored: Scored) -> str:
    return json.dumps({"digest": digest, **asdict(scored)}) + "\n"
