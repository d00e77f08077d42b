"""The page in a real Chromium: results and layers, a product from good images to a false alarm, keyboard, token."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

import keepad
from serving import Process, picture, pixels

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def process(folders: dict[str, Path]) -> Iterator[Process]:
    running = Process("--model", str(folders["onnx"]))
    yield running
    assert "Traceback" not in running.close()


@pytest.fixture
def page(browser: Browser, process: Process) -> Iterator[Page]:
    """The page of the service; anything that it asks of another host, and any error of a script, fails the test."""
    from playwright.sync_api import expect

    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
    local = (process.address, "blob:", "data:")
    opened.on("request", lambda request: None if request.url.startswith(local) else wrong.append(request.url))
    opened.goto(process.address)
    expect(opened.locator("#connection")).to_contain_text("on the CPU")
    yield opened
    context.close()
    assert wrong == []


def files(*images: tuple[str, bytes]) -> list[Any]:
    return [{"name": name, "mimeType": "image/png", "buffer": data} for name, data in images]


def drop(page: Page, *images: tuple[str, bytes]) -> None:
    """Give images to the view Inspect, and wait for their results."""
    from playwright.sync_api import expect

    before = page.locator("#strip .thumb").count()
    page.set_input_files("#files", files(*images))
    expect(page.locator("#strip .thumb")).to_have_count(before + len(images))
    expect(page.locator("#strip .mark.busy")).to_have_count(0, timeout=30_000)


def colours_of(page: Page, selector: str) -> int:
    """Number of colours in what is drawn there."""
    shot = Image.open(io.BytesIO(page.locator(selector).screenshot()))
    return len(shot.convert("RGB").getcolors(2**24) or [])


def test_images_results_layers_and_the_keyboard(page: Page, folders: dict[str, Path]) -> None:
    from playwright.sync_api import expect

    tiff = io.BytesIO()
    Image.fromarray(pixels(1)).save(tiff, "TIFF")
    drop(page, ("red.png", picture(2)), ("plain.png", picture(0)), ("notes.png", b"x"), ("old.tif", tiff.getvalue()))
    details = page.locator("#details")
    expected = keepad.load(folders["onnx"], say=lambda line: None)(pixels(2))
    expect(details).to_contain_text("red.png")
    expect(details).to_contain_text(f"{expected.pred_score:.3f}")
    expect(details).to_contain_text(f"{expected.keep_final:.0%}".replace("%", " %"))

    expect(page.locator("#heat")).to_be_visible()
    page.get_by_role("radio", name="Survivors").check()
    expect(page.locator("#survivors")).to_be_visible()
    expect(page.locator("#heat")).to_be_hidden()
    with_survivors = colours_of(page, "#stage")
    page.get_by_label("Opacity").fill("0")
    assert colours_of(page, "#stage") != with_survivors
    expect(page.locator("#survivors")).to_have_css("opacity", "0")

    page.locator("#strip .thumb").first.focus()
    page.keyboard.press("ArrowRight")
    expect(details).to_contain_text("plain.png")
    page.keyboard.press("ArrowRight")
    expect(details).to_contain_text("notes.png is not an image that can be read")
    expect(page.locator("#stage")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    expect(details).to_contain_text("old.tif")  # no format of browsers; the service sends what the network saw
    expect(page.locator("#picture")).to_have_js_property("naturalWidth", 176)

    page.get_by_role("tab", name="Inspect").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Live")).to_be_visible()
    expect(page.get_by_role("img", name="Histogram of")).to_be_visible()
    expect(page.locator("#feed")).to_contain_text("notes.png is not an image")
    expect(page.locator("#drift")).to_have_text(re.compile(r"there are \d+\.$"))
    for control in page.locator("button:visible, input:visible, select:visible").all():
        assert control.evaluate("node => node.innerText || node.labels?.length || node.ariaLabel"), control


def test_a_product_from_good_images_to_a_false_alarm_and_back(page: Page) -> None:
    from playwright.sync_api import expect

    page.get_by_role("tab", name="Products").click()
    expect(page.locator("#products")).to_contain_text("No products yet")
    page.get_by_label("Name").fill("bolts")
    page.get_by_role("button", name="Teach").click()
    expect(page.get_by_role("alert")).to_contain_text("at least one good image")
    page.set_input_files("#teach-files", files(*[(f"good{n}.png", picture(3 * n)) for n in range(4)]))
    page.get_by_role("button", name="Teach").click()
    card = page.get_by_role("article", name="bolts")
    expect(card).to_contain_text("4 good images", timeout=30_000)
    expect(card).to_contain_text("not calibrated")
    expect(page.locator("#teach")).to_contain_text("taught 4 images")

    card.get_by_role("button", name="Calibrate").click()
    card.get_by_label("False alarms").select_option("0.1")
    calibration = [(f"more{n}.png", picture(3 * n)) for n in range(4, 16)]
    page.set_input_files(".calibration input", files(*calibration[:3]))
    expect(page.get_by_role("alert")).to_contain_text("3 images cannot promise 10 %")
    page.set_input_files(".calibration input", files(*calibration))
    expect(card).to_contain_text("at most 10 % false alarms on average, from 12 good images", timeout=30_000)

    card.get_by_role("button", name="Use").click()
    drop(page, ("red.png", picture(2)))
    details = page.locator("#details")
    expect(details).to_contain_text("Defect")
    expect(details).to_contain_text("0.077")  # 1 / 13
    details.get_by_role("button", name="False alarm").click()
    page.get_by_role("button", name="It is good").click()
    expect(details).to_contain_text("Worst match", timeout=30_000)
    expect(details).not_to_contain_text("0.077")  # other scores, so what was promised about them is gone

    page.get_by_role("tab", name="Products").click()
    expect(card).to_contain_text("5 good images")
    card.get_by_text("History").click()
    expect(card).to_contain_text("added red.png")
    card.get_by_role("button", name="Undo the last").click()
    expect(card).to_contain_text("4 good images", timeout=30_000)
    with page.expect_download() as download:
        card.get_by_role("button", name="Save file").click()
    assert download.value.suggested_filename == "bolts.keepad"
    card.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Cancel").click()
    expect(card).to_be_visible()
    card.get_by_role("button", name="Delete").click()
    page.locator("#sure-yes").click()
    expect(page.locator("#products")).to_contain_text("No products yet")


def test_files_that_hover_are_shown_until_they_are_dropped_or_gone(page: Page) -> None:
    from playwright.sync_api import expect

    page.get_by_role("tab", name="Products").click()
    box, body = page.locator("#teach-drop"), page.locator("body")
    files = page.evaluate_handle(
        "() => { const all = new DataTransfer(); all.items.add(new File(['x'], 'a.png')); return all; }"
    )
    for last in ("dragleave", "drop"):
        box.dispatch_event("dragenter", {"dataTransfer": files})
        expect(box).to_have_class(re.compile("over"))
        box.dispatch_event(last, {"dataTransfer": files})
        expect(box).not_to_have_class(re.compile("over"))
        expect(body).not_to_have_class(re.compile("over"))  # it hears of them, too
    expect(page.locator("#teach-count")).to_contain_text("1 image")


def test_the_token_is_asked_for_once(browser: Browser, folders: dict[str, Path]) -> None:
    from playwright.sync_api import expect

    process = Process("--model", str(folders["onnx"]), "--token", TOKEN)
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(process.address)
        for typed in ("wrong-wrong-wrong-wrong", TOKEN):
            page.get_by_role("textbox", name="Token").fill(typed)
            page.get_by_role("button", name="Continue").click()
        expect(page.locator("#connection")).to_contain_text("on the CPU")
        drop(page, ("a.png", picture(0)))
        expect(page.locator("#details")).to_contain_text("score")
        page.reload()
        expect(page.locator("#connection")).to_contain_text("on the CPU")
    finally:
        context.close()
        process.close()
