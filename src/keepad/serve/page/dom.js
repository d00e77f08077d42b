// Small helpers around the document. Text always goes in as text, never as HTML.

export const byId = (id) => document.getElementById(id);

export function make(tag, options = {}, ...children) {
  const { on = {}, data = {}, ...rest } = options;
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(rest)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "className") node.className = value;
    else if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  Object.assign(node.dataset, data);
  for (const [event, handler] of Object.entries(on)) node.addEventListener(event, handler);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function makeSvg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const VERDICTS = {
  ok: ["✓", "OK"],
  review: ["!", "Review"],
  defect: ["✕", "Defect"],
  unknown: ["–", "No threshold"],
  error: ["?", "Unreadable"],
};

export function badge(verdict) {
  const [sign, word] = VERDICTS[verdict] ?? VERDICTS.unknown;
  return make("span", { className: `badge ${verdict}` }, make("span", { "aria-hidden": "true" }, sign), word);
}

export function verdictOf(result) {
  if (result.error) return "error";
  if (result.verdict) return result.verdict;
  if (result.pred_label === null || result.pred_label === undefined) return "unknown";
  return result.pred_label ? "defect" : "ok";
}

export const decimals = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

export function shownP(value) {
  if (value === null || value === undefined) return "–";
  return value < 0.001 ? "< 0.001" : value.toPrecision(2);
}

export function notice(text) {
  const node = byId("notice");
  node.textContent = text ?? "";
  node.hidden = !text;
}

export function speak(text) {
  byId("spoken").textContent = text;
}

// Asks before something that cannot be taken back on this page.
export function sure(title, text, yes) {
  const dialog = byId("sure");
  byId("sure-title").textContent = title;
  byId("sure-text").textContent = text;
  byId("sure-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
}

// Lets a node take dropped files, and shows while they hover.
export function takesFiles(node, take) {
  let depth = 0;
  const holdsFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  node.addEventListener("dragenter", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    depth += 1;
    node.classList.add("over");
  });
  node.addEventListener("dragover", (event) => holdsFiles(event) && event.preventDefault());
  node.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (!depth) node.classList.remove("over");
  });
  // On its way down: a node within this one may take the files, and then the event never comes back up.
  node.addEventListener("drop", () => {
    depth = 0;
    node.classList.remove("over");
  }, true);
  node.addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    take([...event.dataTransfer.files]);
  });
}

export function choosesFiles(button, input, take) {
  button.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    take([...input.files]);
    input.value = "";
  });
}

const POINTS = { dense: "none (dense)", prune30: "30 %", prune50: "50 %", prune70: "70 %" };

export function pointOptions(points, chosen) {
  return points
    .filter((point) => point in POINTS || point === chosen)
    .map((point) => make("option", { value: point, selected: point === chosen }, POINTS[point] ?? point));
}
