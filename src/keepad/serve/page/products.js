// The view "Products": teach a product from good images, calibrate it, correct it, take corrections back.

import { ask, fillBasket, follow, post, query, remove } from "./api.js";
import { byId, choosesFiles, decimals, make, notice, pointOptions, speak, sure, takesFiles } from "./dom.js";

const ACTIONS = {
  teach: (line) => `taught from ${line.images} images`,
  add: (line) => `added ${line.image}`,
  undo: (line) => `took back ${line.image}`,
  calibrate: (line) => `calibrated with ${line.images} images`,
  choose: () => "operating point chosen",
};
const LEVELS = [[0.01, 99], [0.05, 19], [0.1, 9], [0.2, 4]]; // promised false alarms, and the good images that takes
let app;
let good = [];
let busy = null; // name of the product that a job works on

export function startProducts(theApp) {
  app = theApp;
  byId("teach-point").replaceChildren(...pointOptions(app.info.points, app.info.point));
  byId("teach-kept").textContent = app.info.keeps_profiles
    ? "The product is kept in the folder of this service."
    : "This service was started without --profiles: the product is lost when it stops, unless you save its file.";
  choosesFiles(byId("teach-choose"), byId("teach-files"), addGood);
  takesFiles(byId("teach-drop"), addGood);
  byId("teach").addEventListener("submit", teach);
  app.onChange(showProducts);
  showProducts();
}

function addGood(files) {
  good.push(...files.filter((file) => !good.some((other) => other.name === file.name && other.size === file.size)));
  showGood();
}

function showGood() {
  const node = byId("teach-count");
  if (!good.length) {
    node.textContent = "No images yet";
    return;
  }
  const reset = make("button", { type: "button", className: "link", on: { click: () => { good = []; showGood(); byId("teach-choose").focus(); } } }, "remove");
  const first = good.slice(0, 3).map((file) => file.name).join(", ");
  node.replaceChildren(`${good.length} ${good.length === 1 ? "image" : "images"}: ${first}${good.length > 3 ? " …" : ""} `, reset);
}

async function teach(event) {
  event.preventDefault();
  if (!good.length) {
    notice("Drop at least one good image first.");
    byId("teach-choose").focus();
    return;
  }
  const name = byId("teach-name").value.trim();
  const asked = { point: byId("teach-point").value, rotate: byId("teach-rotate").value };
  const done = await run(name, byId("teach"), "Teaching", async (show) => {
    const { basket, errors } = await fillBasket(good, app.info.limits, () => show({ text: "Sending images …" }));
    if (errors.length) show({ line: errors[0].error });
    return post(`/profiles/${name}/teach?${query({ basket, ...asked })}`);
  });
  if (!done) return;
  good = [];
  showGood();
  byId("teach-name").value = "";
  await app.reload(name);
  speak(`${name} was taught`);
}

// Runs a job with a progress bar below `node`; whether it was done.
async function run(name, node, title, begin) {
  if (busy) {
    notice(`Something is under way for ${busy}; wait for it or stop it.`);
    return false;
  }
  busy = name;
  notice("");
  const bar = make("progress", { "aria-label": title });
  const text = make("p", { className: "soft small", role: "status" }, `${title} …`);
  const lines = make("ul", { className: "plain lines" });
  const stop = make("button", { type: "button", className: "link" }, "stop");
  node.querySelector(".job")?.remove();
  const box = make("div", { className: "job" }, bar, make("div", { className: "row" }, text, stop), lines);
  node.append(box);
  const show = (state) => {
    if (state.text) text.textContent = state.text;
    if (state.line) lines.append(make("li", {}, state.line));
  };
  try {
    const job = await begin(show);
    stop.addEventListener("click", () => remove(`/jobs/${job.id}`).catch(() => {}));
    const end = await follow(job, (state) => {
      if (state.total) {
        bar.max = state.total;
        bar.value = state.done;
        text.textContent = state.done < state.total ? `${title}: ${state.done} of ${state.total} images` : "Finishing …";
      }
      lines.replaceChildren(...state.lines.map((line) => make("li", {}, line)));
    });
    bar.remove();
    stop.remove();
    text.textContent = { done: "Done.", stopped: "Stopped; nothing was changed." }[end.state] ?? "";
    if (end.error) lines.append(make("li", { className: "bad", role: "alert" }, end.error));
    return end.state === "done";
  } catch (error) {
    box.remove();
    notice(error.message);
    return false;
  } finally {
    busy = null;
  }
}

let drawnProducts = "";

function showProducts() {
  const state = JSON.stringify([app.products, app.profile]);
  if (busy || state === drawnProducts) return;
  drawnProducts = state;
  const box = byId("products");
  if (!app.products.length) {
    box.replaceChildren(make("div", { className: "card empty" }, make("h2", {}, "No products yet"),
      make("p", { className: "soft" }, "Without one, images are compared with what a detector learned on other products. Good images of your own make it surer and faster.")));
    return;
  }
  box.replaceChildren(...app.products.map(card));
}

function card(product) {
  const node = make("article", { className: "card stack product", "aria-label": product.name });
  const chosen = app.profile === product.name;
  const use = () => { byId("profile").value = product.name; byId("profile").dispatchEvent(new Event("change")); app.openTab("inspect", true); };
  const images = product.images.length ? `${product.images.length} good images, ${product.tokens.toLocaleString("en")} tokens` : "no references";
  node.append(
    make("div", { className: "row" }, make("h2", {}, product.name), chosen ? make("span", { className: "badge ok" }, "in use") : null, product.saved ? null : make("span", { className: "badge unknown" }, "not kept")),
    make("p", { className: "soft" }, `${product.point} · ${images} · ${promise(product)}`),
    make("details", {}, make("summary", {}, "History"), make("ol", { className: "plain small" }, ...[...product.history].reverse().slice(0, 30).map((line) =>
      make("li", {}, `${new Date(line.when).toLocaleString()}: ${(ACTIONS[line.action] ?? (() => line.action))(line)}`)))),
    buttons(product, node, use),
  );
  return node;
}

function promise(product) {
  if (product.calibration) return product.calibration.promise;
  return product.image_threshold === null ? "no threshold" : `defect from ${decimals(product.image_threshold)}, not calibrated`;
}

function buttons(product, node, use) {
  const { name } = product;
  const input = make("input", { type: "file", multiple: true, accept: "image/*,.tif,.tiff,.bmp", className: "hidden", tabIndex: -1, "aria-label": `Images for ${name}` });
  const row = make("div", { className: "buttons" });
  const button = (text, action, more = {}) => row.append(make("button", { type: "button", on: { click: action }, ...more }, text));
  let take = null;
  input.addEventListener("change", () => { take([...input.files]); input.value = ""; });
  const choose = (then) => () => { take = then; input.click(); };
  button("Use", use, { className: "primary" });
  button("Calibrate …", () => toggleCalibration(product, node));
  if (product.images.length) button("Add good images …", choose((files) => addImages(name, node, files)));
  if (product.undo) button("Undo the last", () => undo(name, node));
  button("Save file", () => saveFile(name));
  button("Delete", () => forget(name));
  return make("div", {}, row, input);
}

const changing = async (name, node, title, begin) => {
  if (await run(name, node, title, begin)) {
    await app.reload();
    speak(`${title} ${name}: done`);
  }
};

const addImages = (name, node, files) =>
  changing(name, node, "Adding", async () => post(`/profiles/${name}/add?${query({ basket: (await fillBasket(files, app.info.limits, () => {}, name)).basket })}`));

// A form in the card: the promise, and the images that it takes.
function toggleCalibration({ name }, node) {
  const open = node.querySelector(".calibration");
  if (open) {
    open.remove();
    return;
  }
  const level = make("select", { id: `level-${name}` }, ...LEVELS.map(([rate, needed]) => make("option", { value: String(rate) }, `${100 * rate} % (${needed} images or more)`)));
  const input = make("input", { type: "file", multiple: true, accept: "image/*,.tif,.tiff,.bmp", className: "hidden", tabIndex: -1, "aria-label": `Good images to calibrate ${name}` });
  const button = make("button", { type: "button", className: "primary" }, "Choose good images");
  const start = (files) => {
    const [, needed] = LEVELS.find(([rate]) => String(rate) === level.value);
    if (files.length < needed) notice(`${files.length} images cannot promise ${100 * level.value} %; that takes ${needed} good images that are no references.`);
    else calibrate(name, node, files, level.value);
  };
  const form = make("div", { className: "calibration stack" },
    make("p", { className: "soft" }, "Good images that are no references give verdicts with a promise: at most this share of good images is called a defect."),
    make("div", { className: "row" }, make("label", { for: level.id }, "False alarms"), level, button, input));
  choosesFiles(button, input, start);
  takesFiles(form, start);
  node.append(form);
  level.focus();
}

async function calibrate(name, node, files, level) {
  node.querySelector(".calibration")?.remove();
  await changing(name, node, "Calibrating", async (show) => {
    let sent = 0;
    const { basket } = await fillBasket(files, app.info.limits, (count) => {
      sent += count;
      show({ text: `Sending ${sent} of ${files.length} images …` });
    }, name);
    return post(`/profiles/${name}/calibrate?${query({ basket, false_alarms: level })}`);
  });
}

const undo = (name, node) => changing(name, node, "Undoing", () => post(`/profiles/${name}/undo`));

async function saveFile(name) {
  try {
    const url = URL.createObjectURL(await ask(`/profiles/${name}/file`, { raw: true }));
    make("a", { href: url, download: `${name}.keepad` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  } catch (error) {
    notice(error.message);
  }
}

async function forget(name) {
  if (!(await sure(`Delete ${name}?`, "The service forgets this product. Its file, if there is one, is renamed and stays on the disk of the service.", "Delete"))) return;
  try {
    await remove(`/profiles/${name}`);
    await app.reload();
  } catch (error) {
    notice(error.message);
  }
}
