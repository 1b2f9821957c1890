// Moments and durations as dots: time to the right, duration upwards in powers of ten, because a
// round takes a millisecond or ten seconds.

import { duration, el, empty, svg } from "./dom.js";

const HEIGHT = 220;
const LEFT = 62;
const BOTTOM = 26;
const EDGE = 12;
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Draw points ({at, seconds, family, full, error}) under a title that tells what they are. */
export function chart(title, points, now, nothing) {
  if (!points.length) return empty(nothing);
  const width = Math.max(540, Math.min(1240, document.documentElement.clientWidth - 80));
  const [low, high] = decades(points);
  const [start, end] = span(points, now);
  const x = (at) => LEFT + EDGE + ((at - start) / (end - start)) * (width - LEFT - 2 * EDGE);
  const y = (seconds) => {
    const share = (Math.log10(Math.max(seconds, 10 ** low)) - low) / (high - low);
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - 12);
  };
  const worst = points.reduce((a, b) => (a.seconds > b.seconds ? a : b));
  const words = `${title}: ${points.length} values, the longest ${duration(worst.seconds)}, the last ${duration(points.at(-1).seconds)}.`;
  return el("figure", { class: "chart" },
    el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": title },
      svg("svg", { width, height: HEIGHT, role: "img", "aria-label": words },
        steps(low, high).map((power) => level(y(10 ** power), duration(10 ** power), width)),
        [0, 0.25, 0.5, 0.75, 1].map((share) => tick(x, start + share * (end - start), share)),
        points.map((point) => dot(x(point.at), y(point.seconds), point)))),
    el("figcaption", { class: "legend" },
      [...new Set(points.map((point) => point.family))].sort().map((family) =>
        el("span", { class: `key ${family}` }, family)),
      points.some((point) => point.full) ? el("span", { class: "key full" }, "full sync") : null,
      points.some((point) => point.error) ? el("span", { class: "key error" }, "failed") : null));
}

function decades(points) {
  const powers = points.map((point) => Math.log10(Math.max(point.seconds, 1e-5)));
  const low = Math.floor(Math.min(...powers));
  return [low, Math.max(low + 1, Math.ceil(Math.max(...powers)))];
}

function steps(low, high) {
  return Array.from({ length: high - low + 1 }, (_, index) => low + index);
}

/** The time that is shown: from the first point to now, and never less than a minute. */
function span(points, now) {
  const end = Math.max(now, points.at(-1).at);
  return [Math.min(points[0].at, end - 60), end];
}

function level(y, text, width) {
  return svg("g", { class: "level" },
    svg("line", { x1: LEFT, x2: width, y1: y, y2: y }),
    svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, text));
}

function tick(x, at, share) {
  const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
  return svg("text", { class: "tick", x: x(at), y: HEIGHT - 6, "text-anchor": anchor },
    CLOCK.format(new Date(at * 1000)));
}

function dot(cx, cy, point) {
  const kind = [point.family, point.full ? "full" : "", point.error ? "error" : ""].join(" ");
  return svg("circle", { class: `dot ${kind}`, cx: cx.toFixed(1), cy: cy.toFixed(1), r: point.full ? 5 : 3.5 },
    svg("title", {}, `${CLOCK.format(new Date(point.at * 1000))} ${point.family}: ${duration(point.seconds)}${point.error ? `, ${point.error}` : ""}`));
}
