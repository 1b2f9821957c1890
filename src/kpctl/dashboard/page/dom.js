// Elements from values. Text only ever becomes text nodes: names come from the cluster and may hold
// anything, so that nothing here, or anywhere on this page, makes markup out of a string.

const SVG = "http://www.w3.org/2000/svg";

/** Make an HTML element: attributes, `on…` listeners, then children (elements, texts, nothing). */
export function el(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** Make an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A table with a caption for those who do not see it. Cells are elements or texts. */
export function table(caption, headings, rows, attributes = {}) {
  return el("div", { class: "scroll", role: "region", "aria-label": caption },
    el("table", attributes,
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, headings.map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, column) =>
        el("td", { "data-label": headings[column] }, cell)))))));
}

/** A card with a heading. */
export function card(title, ...content) {
  return el("section", { class: "card" }, el("h3", {}, title), ...content);
}

/** A line for a place where there is nothing to show. */
export function empty(text) {
  return el("p", { class: "empty" }, text);
}

export const STATES = {
  forward: "Forwards",
  partial: "In part",
  drop: "Drops",
  reject: "No endpoints",
  noService: "No Service",
  refused: "Refused",
};

/** What the states mean, for a tooltip and for the help beside them. */
export const MEANING = {
  forward: "every port of it has endpoints",
  partial: "some of its ports have no endpoints",
  drop: "a traffic policy is Local, and no endpoint is on this node",
  reject: "no endpoint serves it: clients are refused at once",
  noService: "EndpointSlices name a Service that is not served here",
  refused: "the kernel did not take it",
};

export function badge(state) {
  return el("span", { class: `badge ${state}`, title: MEANING[state] }, STATES[state] ?? state);
}

const NUMBER = new Intl.NumberFormat("en");
export const count = (value) => NUMBER.format(value ?? 0);

/** "1 Service", "2 Services". */
export function many(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function ago(at, now) {
  if (!at) return "–";
  const seconds = Math.max(0, now - at);
  return seconds < 2 ? "just now" : `${duration(seconds < 60 ? Math.floor(seconds) : seconds)} ago`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** A moment: the time of day, and on another day the date too. */
export function moment(at) {
  const date = new Date(at * 1000);
  const today = new Date().toDateString() === date.toDateString();
  const text = today ? CLOCK.format(date) : `${DAY.format(date)}, ${CLOCK.format(date)}`;
  return el("time", { datetime: date.toISOString() }, text);
}
