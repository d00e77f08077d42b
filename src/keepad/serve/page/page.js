// The page: which product and operating point are chosen, which view is open, and whether the service answers.

import { ask } from "./api.js";
import { byId, make, notice, pointOptions } from "./dom.js";
import { startInspect } from "./inspect.js";
import { startLive } from "./live.js";
import { startProducts } from "./products.js";

const ZERO_SHOT = "keepad";

export const app = {
  info: null,
  products: [],
  listeners: [],
  get profile() {
    return byId("profile").value || ZERO_SHOT;
  },
  get point() {
    return byId("point").value;
  },
  get product() {
    return this.products.find((product) => product.name === this.profile) ?? null;
  },
  // Thresholds that hold for what is chosen now.
  get thresholds() {
    return this.product
      ? { image: this.product.image_threshold, pixel: this.product.pixel_threshold }
      : this.info.thresholds;
  },
  onChange(listener) {
    this.listeners.push(listener);
  },
  changed() {
    for (const listener of this.listeners) listener();
  },
  async reload(chosen = null) {
    const { profiles, default: usual } = await ask("/profiles");
    const before = chosen ?? (byId("profile").options.length ? this.profile : (usual ?? ZERO_SHOT));
    this.products = profiles;
    byId("profile").replaceChildren(
      make("option", { value: ZERO_SHOT }, "any (zero-shot)"),
      ...profiles.map((product) => make("option", { value: product.name }, product.name)),
    );
    byId("profile").value = [...profiles.map((product) => product.name)].includes(before) ? before : ZERO_SHOT;
    showPoint();
    this.changed();
  },
  openTab,
};

function showPoint() {
  const select = byId("point");
  const product = app.product;
  const own = product?.point ?? (select.disabled ? app.info.point : select.value || app.info.point);
  select.replaceChildren(...pointOptions(app.info.points, own));
  select.value = own;
  select.disabled = product !== null;
}

const tabs = ["inspect", "live", "products"];

function openTab(name, focus = false) {
  for (const tab of tabs) {
    const open = tab === name;
    byId(`tab-${tab}`).setAttribute("aria-selected", String(open));
    byId(`tab-${tab}`).tabIndex = open ? 0 : -1;
    byId(`view-${tab}`).hidden = !open;
  }
  if (focus) byId(`tab-${name}`).focus();
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
  app.changed();
}

function startTabs() {
  tabs.forEach((name, number) => {
    const tab = byId(`tab-${name}`);
    tab.addEventListener("click", () => openTab(name));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = { Home: 0, End: tabs.length - 1 }[event.key] ?? (step && (number + step + tabs.length) % tabs.length);
      if (to === undefined) return;
      event.preventDefault();
      openTab(tabs[to], true);
    });
  });
  const asked = location.hash.slice(1);
  openTab(tabs.includes(asked) ? asked : "inspect");
}

export function showConnection(answers) {
  const node = byId("connection");
  const text = answers ? `${app.info.model} on ${app.info.runs_on}` : "no answer";
  if (node.textContent !== text) node.textContent = text;
  node.classList.toggle("lost", !answers);
}

async function start() {
  try {
    app.info = await ask("/info");
    byId("profile").addEventListener("change", () => {
      showPoint();
      app.changed();
    });
    byId("point").addEventListener("change", () => app.changed());
    await app.reload();
    showConnection(true);
    startInspect(app);
    startProducts(app);
    startLive(app, showConnection);
    startTabs();
  } catch (error) {
    notice(error.message);
  }
}

start();
