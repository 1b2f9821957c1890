// The page: which view is shown, and the loop that keeps it current.

import { el, many } from "./dom.js";
import { Model, keyOf } from "./model.js";
import { overviewView } from "./overview.js";
import { servicesView } from "./services.js";
import { serviceView } from "./service.js";
import { roundsView, repairsView } from "./rounds.js";
import { startTheme } from "./theme.js";

const PERIOD = 1000;
const RETRY = 3000;
const find = (id) => document.getElementById(id);

const model = new Model();
let view = null;

/** Say something to those who listen to the page instead of looking at it. */
function announce(text) {
  find("announcer").textContent = text;
}

function route() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const parts = path.split("/").slice(1).map(decode);
  if (parts[0] === "service" && parts.length === 3) {
    return ["services", () => serviceView(model, parts[1], parts[2], announce)];
  }
  if (parts[0] === "services") {
    return ["services", () => servicesView(model, new URLSearchParams(query), announce)];
  }
  if (parts[0] === "rounds") return ["rounds", () => roundsView(model)];
  if (parts[0] === "repairs") return ["repairs", () => repairsView(model)];
  return ["overview", () => overviewView(model)];
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show({ focus }) {
  const [section, make] = route();
  view = make();
  document.title = `${view.title} – kube-proxy`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.section === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  find("main").replaceChildren(view.node);
  view.shown?.();
  if (focus) {
    window.scrollTo(0, 0);
    (view.node.querySelector("h2") ?? find("main")).focus({ preventScroll: true });
  }
}

function showHead() {
  const { status, isLive, problem } = model;
  find("origin").textContent = `${status.node || "no node"} · ${status.mode} mode`;
  find("origin").title = status.origin;
  const live = find("live");
  live.textContent = isLive ? (problem ? "not answering" : "live") : "not live";
  live.className = `live ${isLive ? (problem ? "lost" : "on") : "off"}`;
  live.title = isLive ? "Follows the running proxy" : `Shows ${status.origin}`;
  complain(problem);
}

function complain(text) {
  const banner = find("problem");
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = !text;
}

async function step() {
  let changed;
  try {
    changed = await model.refresh();
  } catch {
    complain("The dashboard does not answer. What is shown is old. Start kpctl dashboard again, and open the address that it prints.");
    return RETRY;
  }
  showHead();
  if (view === null) show({ focus: false });
  else view.update?.(changed);
  if (changed?.length > 20) announce(`${many(changed.length, "Service")} changed`);
  return PERIOD;
}

/** Ask again and again, but not while nobody looks. */
async function follow() {
  for (;;) {
    const pause = await step();
    const isStill = model.status && !model.isLive;
    await new Promise((resume) => {
      if (!document.hidden && !isStill) setTimeout(resume, pause);
      else if (!isStill) document.addEventListener("visibilitychange", resume, { once: true });
    });
  }
}

startTheme(find("theme"));
find("skip").addEventListener("click", (event) => {
  event.preventDefault();
  find("main").focus();
});
window.addEventListener("hashchange", () => model.status && show({ focus: true }));
document.addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName);
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (!find("search")) location.hash = "#/services";
  setTimeout(() => find("search")?.focus());
});
find("main").append(el("p", { class: "empty" }, "Reading the proxy …"));
follow();
