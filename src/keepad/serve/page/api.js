// Requests to the service: the token, waiting where the queue is full, and errors as sentences.

import { byId } from "./dom.js";

const KEY = "keepad-token";
const PATIENCE = 8; // times that a full queue is waited for
let asking = null;

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

// The answer of the service as JSON, or as a Blob where `raw` is set; throws Refused.
export async function ask(path, { raw = false, ...options } = {}) {
  for (let attempt = 0; ; attempt += 1) {
    const token = sessionStorage.getItem(KEY);
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch {
      throw new Refused(0, "The service does not answer. Is it still running?");
    }
    if (answer.status === 401) {
      await askForToken(token);
      continue;
    }
    if (answer.status === 429 && attempt < PATIENCE) {
      await pause(Number(answer.headers.get("Retry-After")) || 1);
      continue;
    }
    if (answer.ok && raw) return answer.blob();
    const content = await answer.json().catch(() => ({}));
    if (answer.ok) return content;
    const sentence = content.error ?? `The service answered with status ${answer.status}.`;
    throw new Refused(answer.status, sentence);
  }
}

// One dialog for all requests that were refused meanwhile.
function askForToken(used) {
  if (sessionStorage.getItem(KEY) !== used) return Promise.resolve(); // another request has a newer one
  asking ??= new Promise((done) => {
    const dialog = byId("ask");
    const field = byId("token");
    byId("ask-wrong").hidden = !used;
    field.value = "";
    dialog.showModal();
    dialog.addEventListener(
      "close",
      () => {
        sessionStorage.setItem(KEY, field.value.trim());
        asking = null;
        done();
      },
      { once: true },
    );
  });
  return asking;
}

export const post = (path, options = {}) => ask(path, { method: "POST", ...options });
export const remove = (path) => ask(path, { method: "DELETE" });

export function query(values) {
  const pairs = Object.entries(values).flatMap(([key, value]) =>
    (Array.isArray(value) ? value : [value]).filter((one) => one !== null && one !== undefined && one !== "").map((one) => [key, one]),
  );
  return new URLSearchParams(pairs).toString();
}

export function formOf(files) {
  const form = new FormData();
  for (const file of files) form.append("images", file, file.name);
  return form;
}

// Sends good images, for a profile if there is one already, in parts that the service takes; gives the basket and what
// could not be used.
export async function fillBasket(files, limits, progress, profile = null) {
  let basket = null;
  const errors = [];
  for (const part of partsOf(files, limits)) {
    const answer = await post(`/baskets?${query({ basket, profile })}`, { body: formOf(part) });
    basket = answer.basket;
    errors.push(...answer.errors);
    progress(part.length);
  }
  return { basket, errors };
}

function partsOf(files, limits) {
  const parts = [];
  let part = [];
  let bytes = 0;
  for (const file of files) {
    if (part.length && (part.length >= Math.min(16, limits.images) || bytes + file.size > 0.8 * limits.bytes)) {
      parts.push(part);
      part = [];
      bytes = 0;
    }
    part.push(file);
    bytes += file.size;
  }
  if (part.length) parts.push(part);
  return parts;
}

// Waits for a job, calling `show` with every state of it.
export async function follow(job, show) {
  let state = job;
  show(state);
  while (state.state === "waiting" || state.state === "running") {
    await pause(0.4);
    state = await ask(`/jobs/${state.id}`);
    show(state);
  }
  return state;
}
