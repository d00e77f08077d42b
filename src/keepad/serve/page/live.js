// The view "Live": what the service has seen from all clients, and whether its scores drift.

import { ask, post, query } from "./api.js";
import { badge, byId, decimals, make, makeSvg, notice, percent, shownP } from "./dom.js";

const ROWS = 100;
let app;
let after = 0;
let rows = [];
let timer = null;
let drawn = {}; // what is on the page, so that nothing is drawn anew, and loses its focus, without need

export function startLive(theApp, showConnection) {
  app = theApp;
  app.onChange(() => poll(showConnection));
  document.addEventListener("visibilitychange", () => poll(showConnection));
  poll(showConnection);
}

async function poll(showConnection) {
  clearTimeout(timer);
  if (document.hidden) return;
  const open = !byId("view-live").hidden;
  const asked = app.profile;
  try {
    const feed = await ask(`/feed?${query({ profile: asked, after })}`);
    if (feed.last < after) rows = []; // the service was started anew
    after = feed.last;
    rows = [...feed.results.reverse(), ...rows].slice(0, ROWS);
    showConnection(true);
    if (open && asked === app.profile) showFeed(feed);
  } catch (error) {
    showConnection(error.status !== 0);
  }
  clearTimeout(timer);
  timer = setTimeout(() => poll(showConnection), open ? 1500 : 5000);
}

function once(part, value, draw) {
  const text = JSON.stringify(value);
  if (drawn[part] === text) return;
  drawn = { ...drawn, [part]: text };
  draw();
}

function showFeed(feed) {
  const { stream } = feed;
  once("tiles", [stream.images, stream.verdicts, feed.errors, stream.name], () => showTiles(feed));
  once("histogram", [stream.histogram, app.thresholds], () => showHistogram(stream));
  once("drift", stream.drift, () => showDrift(stream.drift));
  once("feed", [feed.last, rows.length], showRows);
}

function showTiles({ stream, errors }) {
  const { verdicts } = stream;
  const tiles = [
    [stream.images, stream.name === "keepad" ? "images, zero-shot" : `images of ${stream.name}`, ""],
    [verdicts.ok ?? 0, "ok", "ok"],
    [verdicts.review ?? 0, "to review", "review"],
    [verdicts.defect ?? 0, "defect", "defect"],
    [errors, "unreadable, of all", ""],
  ];
  byId("tiles").replaceChildren(
    ...tiles.map(([value, words, kind]) => make("div", { className: `tile ${kind}` }, make("strong", {}, value.toLocaleString("en")), make("span", {}, words))),
  );
}

function showHistogram({ histogram, images }) {
  if (!images) {
    byId("histogram").replaceChildren(make("p", { className: "soft empty" }, "No images yet. POST some to /predict, or drop them under Inspect."));
    return;
  }
  const highest = Math.max(...histogram);
  const width = 400 / histogram.length;
  const svg = makeSvg("svg", { viewBox: "0 0 400 120", class: "bars", preserveAspectRatio: "none", role: "img" });
  const limit = app.thresholds.image;
  const spread = histogram.map((count, bin) => [count, bin]).filter(([count]) => count);
  const range = `${decimals(spread[0][1] / histogram.length, 2)} to ${decimals((spread.at(-1)[1] + 1) / histogram.length, 2)}`;
  svg.setAttribute("aria-label", `Histogram of ${images} scores, from ${range}${limit ? `, threshold ${decimals(limit, 2)}` : ""}`);
  histogram.forEach((count, bin) => {
    const height = count ? Math.max(2, (112 * count) / highest) : 0;
    const over = limit !== null && (bin + 0.5) / histogram.length >= limit;
    const bar = makeSvg("rect", { x: bin * width + 0.8, y: 120 - height, width: width - 1.6, height, class: over ? "over" : "" });
    bar.append(makeSvg("title", {}, `${count} from ${decimals(bin / histogram.length)} to ${decimals((bin + 1) / histogram.length)}`));
    svg.append(bar);
  });
  if (limit !== null) svg.append(makeSvg("line", { x1: 400 * limit, x2: 400 * limit, y1: 0, y2: 120, class: "limit" }));
  byId("histogram").replaceChildren(svg, make("div", { className: "axis" }, make("span", {}, "0"),
    make("span", {}, limit === null ? "no threshold" : `defect from ${decimals(limit)}`), make("span", {}, "1")));
}

function showDrift(drift) {
  const box = byId("drift");
  if (drift.state === "off") {
    const enough = drift.available >= drift.needed;
    const text = enough
      ? "Nobody said yet what is normal here. If the last images are, watch for scores that move away from them."
      : `Needs ${drift.needed} images that are normal; there are ${drift.available}.`;
    box.replaceChildren(make("p", { className: "state" }, make("span", { className: "dot" }), "Not watched"), make("p", { className: "soft" }, text),
      ...(enough ? [watchForm(drift.available)] : []));
    return;
  }
  const share = drift.statistic ? Math.max(0, Math.min(1, Math.log10(Math.max(1, drift.statistic)) / Math.log10(drift.limit))) : 0;
  const meter = makeSvg("svg", { viewBox: "0 0 200 10", class: "score", preserveAspectRatio: "none", "aria-hidden": "true" });
  meter.append(makeSvg("rect", { x: 0, y: 1, width: 200, height: 8, class: "track" }), makeSvg("rect", { x: 0, y: 1, width: 200 * share, height: 8, class: `fill ${drift.state === "drift" ? "defect" : "ok"}` }));
  const evidence = make("p", { className: "soft small" }, `Evidence ${Math.round(100 * share)} % of an alarm, ${drift.images} ${drift.images === 1 ? "image" : "images"} against ${drift.good} normal ones; at most ${percent(drift.false_alarms)} false alarms in 10,000 images.`);
  if (drift.state === "watching") {
    box.replaceChildren(make("p", { className: "state ok" }, make("span", { className: "dot" }), "No drift"), meter, evidence);
    return;
  }
  const changes = drift.changes.map((change) => make("li", {}, `${change.name}: ${decimals(change.before)} before, ${decimals(change.after)} since`));
  box.replaceChildren(
    make("p", { className: "state defect", role: "alert" }, make("span", { className: "dot" }), `Drift: ${drift.quantity} is ${drift.kind}`), meter,
    make("p", {}, `Since about image ${drift.since}, noticed at image ${drift.alarm}. Check camera, light and product; then watch anew.`),
    make("ul", { className: "plain" }, ...changes), watchForm(500),
  );
}

function watchForm(available) {
  const field = make("input", { type: "number", id: "watch-count", min: "20", max: String(available), value: String(Math.min(50, available)), required: true });
  const form = make("form", { className: "inline" }, make("label", { for: "watch-count" }, "The last"), field, make("span", {}, "images are normal"), make("button", { className: "primary" }, "Watch"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      showDrift(await post(`/drift?${query({ profile: app.profile, images: field.value })}`));
      notice("");
    } catch (error) {
      notice(error.message);
    }
  });
  return form;
}

function showRows() {
  if (!rows.length) {
    byId("feed").replaceChildren(make("p", { className: "soft empty" }, "Results of all clients appear here as they come."));
    return;
  }
  const head = ["Time", "Image", "Product", "Verdict", "Score", "p-value", "Kept", "Network"];
  const body = rows.map((row) => {
    const cells = row.error
      ? [make("td", { colSpan: 4, className: "soft wrap" }, row.error)]
      : [decimals(row.score), shownP(row.p_value), percent(row.keep), `${Math.round(row.ms)} ms`].map((text) => make("td", { className: "right" }, text));
    return make("tr", {}, make("td", {}, new Date(1000 * row.time).toLocaleTimeString()), make("td", { className: "file", title: row.name }, row.name),
      make("td", {}, row.profile === "keepad" ? "any" : row.profile), make("td", {}, badge(row.verdict)), ...cells);
  });
  byId("feed").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head.map((text, column) => make("th", { scope: "col", className: column > 3 ? "right" : "" }, text)))), make("tbody", {}, ...body)));
}
