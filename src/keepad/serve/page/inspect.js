// The view "Inspect": images that were dropped, their results, and the layers over them.

import { ask, fillBasket, follow, post, query } from "./api.js";
import {
  badge, byId, choosesFiles, decimals, make, makeSvg, notice, percent, shownP, speak, sure, takesFiles, verdictOf, VERDICTS,
} from "./dom.js";

const SENDERS = 4; // requests at a time, so that the service can fill its batches
const MOST = 300; // images that the page holds
const LEGENDS = {
  heat: "Yellow is most anomalous. The scale is the same for all images.",
  survivors: "Clear patches survived both routers; blue ones were dropped by the deep router, dark ones before it.",
  none: "",
};

let app;
let items = [];
let shown = null;
let senders = 0;

export function startInspect(theApp) {
  app = theApp;
  choosesFiles(byId("choose"), byId("files"), add);
  byId("more").addEventListener("click", () => byId("files").click());
  byId("clear").addEventListener("click", clear);
  takesFiles(document.body, (files) => {
    if (!byId("view-inspect").hidden) add(files);
  });
  byId("opacity").addEventListener("input", showLayers);
  byId("regions").addEventListener("change", showLayers);
  for (const radio of document.querySelectorAll("input[name=layer]")) radio.addEventListener("change", showLayers);
  byId("strip").addEventListener("keydown", moveBetween);
  byId("picture").addEventListener("error", () => shown && showServersPicture(shown));
  byId("again-all").addEventListener("click", () => inspectAgain(items.filter(differs)));
  app.onChange(() => {
    if (shown) showDetails(shown);
    showAgainAll();
  });
  showLayers();
}

function add(files) {
  const room = MOST - items.length;
  if (files.length > room) notice(`This page holds ${MOST} images; ${files.length - room} were left out. Clear it to go on.`);
  for (const file of files.slice(0, Math.max(0, room))) {
    const item = { file, url: URL.createObjectURL(file), state: "waiting", result: null, node: null };
    item.node = make(
      "li", {},
      make("button", { type: "button", className: "thumb", on: { click: () => show(item) } },
        make("img", { src: item.url, alt: "", loading: "lazy" }), make("span", { className: "mark" }), make("span", { className: "caption" }, file.name)),
    );
    item.node.querySelector("img").addEventListener("error", (event) => { event.target.hidden = true; }, { once: true });
    items.push(item);
    byId("strip").append(item.node);
    showThumb(item);
  }
  if (!items.length) return;
  byId("results").hidden = false;
  byId("drop").classList.add("slim");
  if (!shown) show(items[0]);
  startSenders();
}

function startSenders() {
  while (senders < SENDERS && items.some((item) => item.state === "waiting")) send();
}

async function send() {
  senders += 1;
  for (let item = next(); item; item = next()) await inspect(item);
  senders -= 1;
}

const next = () => items.find((item) => item.state === "waiting");

async function inspect(item) {
  item.state = "busy";
  showThumb(item);
  const asked = { profile: app.profile, point: app.product ? null : app.point, name: item.file.name, include: ["heat", "survivors"] };
  try {
    const answer = await post(`/predict?${query(asked)}`, { body: item.file });
    item.result = answer.results[0];
    item.state = "done";
    speak(`${item.file.name}: ${VERDICTS[verdictOf(item.result)][1]}, score ${decimals(item.result.pred_score, 2)}`);
  } catch (error) {
    item.result = { name: item.file.name, error: error.message };
    item.state = "done";
    speak(error.message);
  }
  if (!items.includes(item)) return;
  showThumb(item);
  if (shown === item) show(item);
}

function showThumb(item) {
  const mark = item.node.querySelector(".mark");
  const button = item.node.querySelector("button");
  const verdict = item.state === "done" ? verdictOf(item.result) : "busy";
  mark.className = `mark ${verdict}`;
  const score = item.result?.pred_score;
  mark.textContent = item.state !== "done" ? "…" : `${VERDICTS[verdict][0]} ${score === undefined ? "" : decimals(score, 2)}`;
  const word = item.state === "done" ? VERDICTS[verdict][1] : "waiting";
  button.setAttribute("aria-label", `${item.file.name}, ${word}${score === undefined ? "" : `, score ${decimals(score, 2)}`}`);
  button.setAttribute("aria-pressed", String(item === shown));
  byId("strip-title").textContent = `${items.length} ${items.length === 1 ? "image" : "images"}`;
  showAgainAll();
}

function show(item) {
  const before = shown;
  shown = item;
  if (before && before !== item && items.includes(before)) showThumb(before);
  showThumb(item);
  const { result } = item;
  const picture = byId("picture");
  if (picture.getAttribute("src") !== (item.serversUrl ?? item.url)) picture.src = item.serversUrl ?? item.url;
  picture.alt = item.file.name;
  const pictures = result?.pictures ?? {};
  for (const layer of ["heat", "survivors"]) {
    if (pictures[layer]) byId(layer).src = `data:image/png;base64,${pictures[layer]}`;
    else byId(layer).removeAttribute("src");
  }
  const size = result?.image_size;
  if (size) setRatio(size[1], size[0]);
  else if (picture.complete && picture.naturalWidth) setRatio(picture.naturalWidth, picture.naturalHeight);
  else picture.addEventListener("load", () => shown === item && setRatio(picture.naturalWidth, picture.naturalHeight), { once: true });
  drawOutlines(result);
  showLayers();
  showDetails(item);
}

const setRatio = (width, height) => byId("stage").style.setProperty("--ratio", String(width / height));

// Browsers show no TIFF and the like; the service sends what the network saw.
async function showServersPicture(item) {
  if (item.serversUrl || !item.result || item.result.error) {
    byId("nothing").textContent = item.result?.error ?? "";
    byId("stage").hidden = Boolean(item.result?.error);
    byId("nothing").hidden = !item.result?.error;
    return;
  }
  try {
    item.serversUrl = URL.createObjectURL(await post("/predict?output=image&regions=false", { body: item.file, raw: true }));
    if (shown === item) byId("picture").src = item.serversUrl;
  } catch (error) {
    notice(error.message);
  }
}

function drawOutlines(result) {
  const svg = byId("outlines");
  const [height, width] = result?.image_size ?? [1, 1];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const line = (ring) => `M${ring.map((point) => point.join(" ")).join("L")}Z`;
  const drawn = (result?.regions ?? []).map((region, number) => {
    const [x0, y0, x1, y1] = region.box;
    const rings = region.polygon ? [region.polygon, ...region.holes] : [[[x0, y0], [x1, y0], [x1, y1], [x0, y1]]];
    const path = rings.map(line).join("");
    const group = makeSvg("g", { "data-region": number });
    group.append(makeSvg("path", { d: path, class: "under" }), makeSvg("path", { d: path, class: "line" }));
    return group;
  });
  svg.replaceChildren(...drawn);
}

function showLayers() {
  const layer = document.querySelector("input[name=layer]:checked").value;
  const opacity = byId("opacity").value;
  byId("opacity-value").textContent = `${opacity} %`;
  for (const name of ["heat", "survivors"]) {
    const node = byId(name);
    node.hidden = name !== layer || !node.getAttribute("src");
    node.style.opacity = String(opacity / 100);
  }
  byId("outlines").classList.toggle("off", !byId("regions").checked);
  byId("legend").textContent = LEGENDS[layer];
  byId("opacity").disabled = layer === "none";
}

function showDetails(item) {
  const { result } = item;
  const failed = Boolean(result?.error);
  byId("stage").hidden = failed;
  byId("nothing").hidden = !failed;
  byId("nothing").textContent = failed ? "There is nothing to show of this file." : "";
  const heading = make("h2", { className: "name", title: item.file.name }, item.file.name);
  if (!result) {
    byId("details").replaceChildren(heading, make("p", { className: "soft waiting" }, "Waiting for the service …"));
    return;
  }
  if (failed) {
    byId("details").replaceChildren(heading, badge("error"), make("p", {}, result.error), again(item));
    return;
  }
  byId("details").replaceChildren(make("div", { className: "row" }, heading, badge(verdictOf(result))), scoreBar(result), facts(result), regionsOf(result), actions(item));
}

function scoreBar(result) {
  const limits = [["review", result.review_threshold], ["defect", result.threshold]].filter(([, value]) => value !== null);
  const limit = limits.map(([what, value]) => `${what} from ${decimals(value)}`).join(", ") || "no threshold";
  const bar = makeSvg("svg", { viewBox: "0 0 200 16", class: "score", preserveAspectRatio: "none", "aria-hidden": "true" });
  bar.append(makeSvg("rect", { x: 0, y: 4, width: 200, height: 8, class: "track" }));
  bar.append(makeSvg("rect", { x: 0, y: 4, width: 200 * Math.min(1, result.pred_score), height: 8, class: `fill ${verdictOf(result)}` }));
  for (const [kind, value] of limits) bar.append(makeSvg("line", { x1: 200 * Math.min(1, value), x2: 200 * Math.min(1, value), y1: 0, y2: 16, class: `mark ${kind}` }));
  return make("div", { className: "scorebox" },
    make("p", { className: "number" }, make("strong", {}, decimals(result.pred_score)), make("span", {}, "score")), bar,
    make("p", { className: "soft small" }, limit));
}

function facts(result) {
  const kept = [result.keep_pixels, result.keep_shallow, result.keep_final];
  const rows = [
    ["p-value", shownP(result.p_value), result.p_value === null ? "calibrate a product to get one" : "share of good images that score as high"],
    ["Tokens kept", kept.map((share) => percent(share)).join(" → "), "after pixels, shallow and deep router"],
    ["Network", `${Math.round(1000 * result.seconds)} ms`, result.point],
    ["Image", `${result.image_size[1]} × ${result.image_size[0]}`, "pixels"],
  ];
  if (result.nearest_reference) {
    rows.push(["Worst match", decimals(result.nearest_reference.distance, 2), `from ${result.nearest_reference.name}`]);
  }
  return make("dl", { className: "facts" },
    ...rows.map(([term, value, hint]) => make("div", {}, make("dt", {}, term), make("dd", {}, value, make("small", {}, hint)))));
}

function regionsOf(result) {
  if (!result.regions) return null;
  if (!result.regions.length) return make("p", { className: "soft" }, "No region reaches the threshold of pixels.");
  const rows = result.regions.slice(0, 8).map((region, number) => {
    const mark = (on) => byId("outlines").querySelector(`[data-region="${number}"]`)?.classList.toggle("strong", on);
    return make("li", { on: { mouseenter: () => mark(true), mouseleave: () => mark(false) } },
      make("span", {}, `${number + 1}`), make("span", {}, `peak ${decimals(region.peak, 2)}`), make("span", { className: "soft" }, `${region.area.toLocaleString("en")} px`));
  });
  const more = result.regions_total - rows.length;
  return make("div", {}, make("h3", {}, `${result.regions_total} ${result.regions_total === 1 ? "region" : "regions"}`),
    make("ol", { className: "regions" }, ...rows), more > 0 ? make("p", { className: "soft small" }, `and ${more} more`) : null);
}

function actions(item) {
  const row = make("div", { className: "buttons" });
  if (app.product && app.product.images.length && ["defect", "review"].includes(verdictOf(item.result))) {
    row.append(make("button", { type: "button", id: "false-alarm", on: { click: () => falseAlarm(item) } }, "False alarm"));
  }
  row.append(make("button", { type: "button", on: { click: () => save(item) } }, "Save overlay"));
  const other = again(item);
  if (other) row.append(other);
  return row;
}

function again(item) {
  if (!differs(item)) return null;
  const text = item.result.error ? "Try again" : app.product ? `Again as ${app.product.name}` : "Again as chosen above";
  return make("button", { type: "button", on: { click: () => inspectAgain([item]) } }, text);
}

// Whether a result is not what the choices above would give now.
function differs({ state, result }) {
  if (state !== "done") return false;
  return Boolean(result.error) || (result.profile ?? "keepad") !== app.profile || (!app.product && result.point !== app.point);
}

function inspectAgain(again) {
  for (const item of again) {
    item.state = "waiting";
    item.result = null;
    showThumb(item);
  }
  if (again.includes(shown)) show(shown);
  startSenders();
}

function showAgainAll() {
  const others = items.filter((item) => differs(item) && !item.result.error);
  byId("again-all").hidden = others.length < 2;
  byId("again-all").textContent = `Inspect ${others.length} again`;
}

async function falseAlarm(item) {
  const { name } = app.product;
  const text = `${item.file.name} joins the good images of ${name}, and what looks like it is normal from now on. It can be undone under Products.`;
  if (!(await sure("Is this image good?", text, "It is good"))) return;
  const button = byId("false-alarm");
  button.disabled = true;
  button.textContent = "Adding …";
  try {
    const { basket } = await fillBasket([item.file], app.info.limits, () => {}, name);
    const job = await follow(await post(`/profiles/${name}/add?${query({ basket })}`), () => {});
    if (job.state !== "done") throw new Error(job.error ?? "This was stopped.");
    await app.reload();
    speak(`${item.file.name} was added to ${name}`);
    inspectAgain([item]);
  } catch (error) {
    notice(error.message);
    showDetails(item);
  }
}

async function save(item) {
  const asked = { output: "panels", profile: item.result.profile ?? "keepad", point: item.result.profile ? null : item.result.point, name: item.file.name };
  try {
    const url = URL.createObjectURL(await ask(`/predict?${query(asked)}`, { method: "POST", body: item.file, raw: true }));
    make("a", { href: url, download: `${item.file.name.replace(/\.[^.]*$/, "")}.overlay.png` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  } catch (error) {
    notice(error.message);
  }
}

function moveBetween(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || !shown) return;
  event.preventDefault();
  const item = items[Math.min(items.length - 1, Math.max(0, items.indexOf(shown) + step))];
  show(item);
  item.node.querySelector("button").focus();
}

function clear() {
  for (const item of items) {
    URL.revokeObjectURL(item.url);
    if (item.serversUrl) URL.revokeObjectURL(item.serversUrl);
  }
  items = [];
  shown = null;
  byId("strip").replaceChildren();
  byId("results").hidden = true;
  byId("drop").classList.remove("slim");
  notice("");
  byId("choose").focus();
}
