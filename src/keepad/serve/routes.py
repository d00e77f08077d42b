"""The service's own routes: predictions, profiles, jobs, the feed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import JSONResponse, Response

from keepad.errors import KeepADError
from keepad.framing import SQUASHED
from keepad.images import InputImage
from keepad.presets import operating_point
from keepad.references.calibrating import Promise
from keepad.references.teaching import ROTATIONS
from keepad.serve import lessons
from keepad.serve.answers import PICTURES, Wanted, png
from keepad.serve.errors import RefusedError
from keepad.serve.lessons import Lesson
from keepad.serve.profiles import check_name, probe, read_uploaded, with_profile
from keepad.serve.schemas import (
    ERRORS,
    FILE_BODY,
    IMAGES_BODY,
    BasketAnswer,
    JobAnswer,
    PredictAnswer,
    ProfileAnswer,
    ProfilesAnswer,
)
from keepad.serve.service import Asked, Result, Service
from keepad.serve.uploads import images_of
from keepad.version import __version__

Name = Annotated[str, Path(description="Name of a profile.", max_length=70)]
Id = Annotated[str, Path(max_length=64)]
Picture = Literal["image", "map", "heat", "survivors", "overlay", "panels"]


def routes(service: Service) -> APIRouter:
    """All routes but the page and the Open Inference Protocol."""
    router = APIRouter(responses={status: ERRORS[status] for status in (400, 401, 403, 421)})
    _predictions(router, service)
    _profiles(router, service)
    _changes(router, service)
    _watching(router, service)
    return router


def _predictions(router: APIRouter, service: Service) -> None:
    @router.post(
        "/predict",
        tags=["Predictions"],
        response_class=Response,
        responses={
            200: {"model": PredictAnswer, "content": {"image/png": {}}},
            **{status: ERRORS[status] for status in (404, 408, 413, 415, 422, 429, 503)},
        },
        openapi_extra=IMAGES_BODY,
    )
    async def predict(
        request: Request,
        profile: Annotated[
            str | None, Query(max_length=70, description="Name of a profile; keepad is the model without one.")
        ] = None,
        point: Annotated[str | None, Query(max_length=70, description="Operating point, such as prune50.")] = None,
        threshold: Annotated[float | None, Query(ge=0, le=1, description="From which something is anomalous.")] = None,
        include: Annotated[list[Picture] | None, Query(description="Pictures to put into the JSON.")] = None,
        output: Annotated[
            Literal["json"] | Picture, Query(description="json, or one picture of one image as a PNG.")
        ] = "json",
        regions: Annotated[bool, Query(description="Whether regions are listed.")] = True,
        min_area: Annotated[int, Query(ge=1, le=10**9, description="Pixels of the smallest region listed.")] = 1,
        name: Annotated[str | None, Query(max_length=300, description="What an image sent as it is is called.")] = None,
    ) -> Response:
        """Score images and locate their anomalies: a multipart form with files, or the bytes of one image."""
        wanted = Wanted(threshold, tuple(dict.fromkeys(include or ())), regions, min_area)
        asked = Asked(profile or None, point or None, wanted)
        service.chosen(asked)  # what is wrong with these is said before the body is read
        async with service.admitted(request) as (ticket, body):
            uploads, _ = await images_of(request, body, service.settings.limits)
            ticket.hold(len(uploads))
            if output != "json" and len(uploads) != 1:
                raise RefusedError(400, f"output={output} gives one picture, but there are {len(uploads)} images.")
            results = await service.predict(uploads, asked)
            if output != "json":
                return await _picture(service, results[0], output)
        errors = [result for result in results if result.error is not None]
        described = [result.described for result in results]
        answer = {"model": service.detector.name, "errors": len(errors), "results": described}
        if len(errors) == len(results):  # nothing came out, so that a client who looks at the status only knows
            return JSONResponse({"error": str(errors[0].error), **answer}, 422)
        return JSONResponse(answer)


async def _picture(service: Service, result: Result, output: str) -> Response:
    """One picture of a result as a PNG, its score in a header."""
    prediction = result.prediction
    if prediction is None:
        raise RefusedError(422, str(result.error))
    picture = await service.in_thread(lambda: png(PICTURES[output](prediction)))
    return Response(picture, media_type="image/png", headers={"X-KeepAD-Score": repr(prediction.pred_score)})


def _profiles(router: APIRouter, service: Service) -> None:
    missing: dict[int | str, dict[str, Any]] = {404: ERRORS[404]}

    @router.get("/profiles", tags=["Profiles"], response_model=ProfilesAnswer)
    def list_profiles() -> dict[str, Any]:
        """All profiles."""
        return {"default": service.default, "profiles": [product.summary() for product in service.profiles.all()]}

    @router.get("/profiles/{name}", tags=["Profiles"], response_model=ProfileAnswer, responses=missing)
    def get_profile(name: Name) -> dict[str, Any]:
        """One profile."""
        return service.profiles.get(name).summary()

    @router.get(
        "/profiles/{name}/file",
        tags=["Profiles"],
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}, **missing},
    )
    def get_file(name: Name) -> Response:
        """The profile as a file for keepad predict --profile."""
        content = service.profiles.get(name).profile.to_bytes()
        disposition = f'attachment; filename="{name}.keepad"'
        return Response(content, media_type="application/octet-stream", headers={"Content-Disposition": disposition})

    @router.put(
        "/profiles/{name}",
        tags=["Profiles"],
        status_code=201,
        response_model=ProfileAnswer,
        responses={status: ERRORS[status] for status in (408, 409, 413, 415, 422, 429, 503, 507)},
        openapi_extra=FILE_BODY,
    )
    async def put_profile(request: Request, name: Name) -> dict[str, Any]:
        """Add a profile that keepad teach made."""
        service.profiles.room_for(name)
        async with service.admitted(request) as (_, body):
            profile = await service.in_thread(lambda: read_uploaded(body))
            detector = with_profile(service.detector, profile)
            await service.on_worker(lambda: probe(detector))
            service.profiles.room_for(name)  # somebody may have been faster
            product = await service.in_thread(lambda: service.profiles.put(name, profile))
        return product.summary()

    @router.delete("/profiles/{name}", tags=["Profiles"], responses={**missing, 507: ERRORS[507]})
    def delete_profile(name: Name) -> dict[str, str]:
        """Forget a profile; its file is renamed, not removed."""
        service.forget(name)
        return {"deleted": name}


def _changes(router: APIRouter, service: Service) -> None:
    started: dict[str, Any] = {
        "tags": ["Teaching"],
        "status_code": 202,
        "response_model": JobAnswer,
        "responses": {status: ERRORS[status] for status in (404, 409, 429, 503)},
    }

    @router.post(
        "/baskets",
        tags=["Teaching"],
        status_code=201,
        response_model=BasketAnswer,
        responses={status: ERRORS[status] for status in (404, 408, 409, 413, 415, 429, 503)},
        openapi_extra=IMAGES_BODY,
    )
    async def fill_basket(
        request: Request,
        basket: Annotated[str | None, Query(max_length=64, description="One to add to; a new one if left out.")] = None,
        profile: Annotated[
            str | None, Query(max_length=70, description="Profile that the images are for, if there is one already.")
        ] = None,
    ) -> dict[str, Any]:
        """Send images to teach from, at most `limits.images` at a time. They stay in memory, for 15 minutes."""
        known = None if basket is None else service.baskets.get(basket)
        detector = service.detector if profile is None else service.profiles.get(profile).detector
        if known is not None and known.framing.description() != detector.framing.description():
            raise RefusedError(409, "the basket was filled for another profile; begin a new one.")
        async with service.admitted(request) as (ticket, body):
            uploads, _ = await images_of(request, body, service.settings.limits)
            ticket.hold(len(uploads))
            service.baskets.check_room(len(uploads))
            read = [await service.read(upload, detector) for upload in uploads]
            filled = known or service.baskets.new(detector.framing)
            service.baskets.add(filled, [image for image in read if isinstance(image, InputImage)])
        pairs = zip(uploads, read, strict=True)
        errors = [{"name": upload.name, "error": str(own)} for upload, own in pairs if isinstance(own, KeepADError)]
        return {"basket": filled.id, "images": len(filled.images), "errors": errors}

    @router.delete("/baskets/{id}", tags=["Teaching"])
    def drop_basket(id: Id) -> dict[str, str]:
        """Forget the images of a basket."""
        service.baskets.drop(id)
        return {"deleted": id}

    @router.post("/profiles/{name}/teach", **started)
    async def teach(
        name: Name,
        basket: Annotated[str, Query(max_length=64, description="Basket of good images.")],
        point: Annotated[str | None, Query(max_length=70, description="Operating point; the service's own.")] = None,
        rotate: Annotated[str, Query(description=f"Rotated copies: {', '.join(ROTATIONS)}.")] = "auto",
    ) -> dict[str, Any]:
        """Make a profile from good images."""
        service.profiles.room_for(name)
        chosen = service.detector.point if point is None else operating_point(point)
        if rotate not in ROTATIONS:
            raise RefusedError(400, f"rotations are {', '.join(ROTATIONS)}.")
        images = service.baskets.take(basket)
        return lessons.teach(service, Lesson(name, chosen, rotate), images).describe()

    @router.post("/profiles/{name}/add", **started)
    async def add(name: Name, basket: Annotated[str, Query(max_length=64)]) -> dict[str, Any]:
        """Add normal images, such as false alarms."""
        framing = service.profiles.get(name).detector.framing
        return lessons.add_images(service, name, service.baskets.take(basket, framing)).describe()

    @router.post("/profiles/{name}/calibrate", **started)
    async def calibrate(
        name: Name,
        basket: Annotated[str, Query(max_length=64, description="Basket of good images that are no references.")],
        false_alarms: Annotated[
            float, Query(gt=0, lt=1, description="Promised share of good images called defect.")
        ] = 0.01,
        confidence: Annotated[float | None, Query(gt=0, lt=1, description="Promise it at this confidence.")] = None,
        review: Annotated[float | None, Query(gt=0, lt=1, description="Share called review or defect.")] = None,
    ) -> dict[str, Any]:
        """Calibrate verdicts; a profile that is not there yet will hold the calibration alone."""
        check_name(name)
        promise = Promise(false_alarms, confidence, review)
        promise.require(len(service.baskets.get(basket).images))
        framing = service.profiles.get(name).detector.framing if name in service.profiles.names() else SQUASHED
        return lessons.calibrate(service, name, service.baskets.take(basket, framing), promise).describe()

    @router.post("/profiles/{name}/undo", **started)
    async def undo(name: Name) -> dict[str, Any]:
        """Take back the image that was added last."""
        return lessons.undo(service, name).describe()

    @router.get("/jobs/{id}", tags=["Teaching"], response_model=JobAnswer, responses={404: ERRORS[404]})
    def get_job(id: Id) -> dict[str, Any]:
        """Where a job stands."""
        return service.jobs.get(id).describe()

    @router.delete("/jobs/{id}", tags=["Teaching"], response_model=JobAnswer, responses={404: ERRORS[404]})
    def stop_job(id: Id) -> dict[str, Any]:
        """Stop a job before its next step."""
        return service.jobs.stop(id).describe()


def _watching(router: APIRouter, service: Service) -> None:
    @router.get("/info", tags=["Service"])
    def info() -> dict[str, Any]:
        """Model, operating points and limits of the service."""
        return {"version": __version__, **service.describe()}

    @router.get("/feed", tags=["Service"], responses={404: ERRORS[404]})
    async def feed(
        profile: Annotated[str | None, Query(max_length=70)] = None,
        after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    ) -> dict[str, Any]:
        """Counters, histogram and drift of a profile, and the results behind number `after`, 500 at most."""
        stream, _, _ = service.chosen(Asked(profile or None))
        return service.feed.describe(stream, after)

    @router.post("/drift", tags=["Service"], responses={404: ERRORS[404], 409: ERRORS[409]})
    async def watch(
        profile: Annotated[str | None, Query(max_length=70)] = None,
        images: Annotated[int, Query(ge=1, le=10**6, description="How many of the last images are normal.")] = 50,
    ) -> dict[str, Any]:
        """Watch for drift away from the last images, which somebody looked at and found normal."""
        stream, _, _ = service.chosen(Asked(profile or None))
        return service.feed.watch(stream, images).drift()

    @router.get("/metrics", tags=["Service"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.render(), media_type=service.metrics.content_type)


def health(service: Service) -> APIRouter:
    """What anybody may ask: whether the service runs, and whether it takes requests."""
    router = APIRouter(tags=["Health"])

    @router.get("/healthz")
    def healthz() -> dict[str, str]:
        """Whether the service runs."""
        return {"status": "ok"}

    @router.get("/v2/health/live")
    def live() -> dict[str, bool]:
        """Whether the server runs."""
        return {"live": True}

    @router.get("/v2/health/ready", responses={503: ERRORS[503]})
    def ready() -> Response:
        """Whether the server takes requests."""
        return JSONResponse({"ready": not service.stopping}, 503 if service.stopping else 200)

    return router
