// The way of a packet, drawn: frontend → verdict → pool → endpoints. Everything in it is also in the
// tables below it, which is where a screen reader finds it.

import { count, many, svg } from "./dom.js";

const LETTER = 7.25;
const GAP = 46;
const TOP = 34;
const ENDPOINT = { height: 40, gap: 8 };
const POOL = { height: 62, gap: 26 };
const MOST_ENDPOINTS = 8;
const LONGEST = 46;

export function drawPath(port, label) {
  const fronts = port.frontends;
  const most = Math.max(...fronts.map((front) => verdictLines(front).length));
  const row = { height: most > 3 ? 80 : 62, gap: 14 };
  const pools = usedPools(port);
  const targets = shownEndpoints(port, pools);
  const frontWidth = widthOf(fronts.map(place), 170);
  const endWidth = targets.length ? widthOf(targets.map((each) => each.text), 170) : 0;
  const x = { front: 1, verdict: frontWidth + GAP, pool: 0, end: 0 };
  x.pool = x.verdict + 232 + GAP;
  x.end = x.pool + 178 + GAP;
  const width = (pools.length ? x.end + endWidth : x.verdict + 232) + 2;
  const height = TOP + Math.max(heightOf(fronts.length, row), heightOf(pools.length, POOL), heightOf(targets.length, ENDPOINT)) + 4;
  const frontY = column(fronts.length, row, height);
  const poolY = column(pools.length, POOL, height);
  const endY = column(targets.length, ENDPOINT, height);
  const edges = [];
  fronts.forEach((front, index) => {
    const y = frontY(index) + row.height / 2;
    edges.push(line(x.front + frontWidth, y, x.verdict, y, front.verdict));
    for (const [pool, kind] of ways(front)) {
      const to = pools.indexOf(pool);
      if (to >= 0) edges.push(line(x.verdict + 232, y, x.pool, poolY(to) + POOL.height / 2, kind));
    }
  });
  targets.forEach((target, index) => {
    for (const pool of target.pools) {
      const from = pools.indexOf(pool);
      edges.push(line(x.pool + 178, poolY(from) + POOL.height / 2, x.end, endY(index) + ENDPOINT.height / 2, "forward"));
    }
  });
  const headings = [["Arrives at", x.front], ["Verdict", x.verdict],
    ...(pools.length ? [["Pool", x.pool], ["Endpoints", x.end]] : [])];
  return svg("svg", { class: "path", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": inWords(port, label) },
    headings.map(([text, left]) => svg("text", { x: left, y: 14, class: "heading" }, text)),
    edges,
    fronts.map((front, index) => frontBox(front, x.front, frontY(index), frontWidth, row.height)),
    fronts.map((front, index) => verdictBox(front, x.verdict, frontY(index), row.height)),
    pools.map((pool, index) => poolBox(port, pool, x.pool, poolY(index))),
    targets.map((target, index) => endpointBox(target, x.end, endY(index), endWidth)));
}

function usedPools(port) {
  const used = new Set(port.frontends.flatMap((front) => ways(front).map(([pool]) => pool)));
  return ["cluster", "local"].filter((pool) => used.has(pool));
}

/** The pools to which a frontend leads, and as which line. */
function ways(front) {
  const found = front.verdict === "forward" ? [[front.pool, "forward"]] : [];
  return front.shortCircuit && front.pool !== "cluster" ? [...found, ["cluster", "circuit"]] : found;
}

function shownEndpoints(port, pools) {
  const used = port.endpoints.map((each) => ({ ...each, pools: each.pools.filter((pool) => pools.includes(pool)) }))
    .filter((each) => each.pools.length);
  const shown = used.slice(0, used.length > MOST_ENDPOINTS + 1 ? MOST_ENDPOINTS : used.length)
    .map((each) => ({ pools: each.pools, text: each.at, note: each.local ? "on this node" : each.node ? `on ${each.node}` : "", local: each.local }));
  const rest = used.length - shown.length;
  if (rest > 0) {
    const all = new Set(used.slice(shown.length).flatMap((each) => each.pools));
    shown.push({ pools: [...all], text: `+ ${count(rest)} more`, note: "in the table below", isRest: true });
  }
  return shown;
}

function place(front) {
  const [first = "", ...others] = front.at;
  return others.length ? `${first} +${others.length}` : first;
}

function widthOf(texts, least) {
  const longest = Math.max(0, ...texts.map((text) => Math.min(text.length, LONGEST)));
  return Math.max(least, Math.ceil(longest * LETTER) + 28);
}

function heightOf(number, { height, gap }) {
  return number * (height + gap) - (number ? gap : 0);
}

/** Where the boxes of a column begin, so that each column is centred. */
function column(number, size, height) {
  const start = TOP + (height - TOP - 4 - heightOf(number, size)) / 2;
  return (index) => start + index * (size.height + size.gap);
}

function line(x1, y1, x2, y2, kind) {
  const middle = (x1 + x2) / 2;
  const path = `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2 - 7} ${y2}`;
  return svg("g", { class: `edge ${kind}` },
    svg("path", { d: path }),
    svg("path", { class: "tip", d: `M${x2 - 8} ${y2 - 4}L${x2} ${y2}L${x2 - 8} ${y2 + 4}Z` }));
}

function box(kind, x, y, width, height, lines, whole) {
  return svg("g", { class: `box ${kind}` },
    svg("title", {}, whole ?? lines.map(([text]) => text).join("\n")),
    svg("rect", { x: x + 0.5, y: y + 0.5, width: width - 1, height: height - 1, rx: 7 }),
    lines.map(([text, style], index) => svg("text", {
      x: x + 14, y: y + height / 2 + (index - (lines.length - 1) / 2) * 17 + 4.5, class: style,
    }, short(text, Math.floor((width - 24) / (style === "mono" ? LETTER : 6.1))))));
}

function short(text, most) {
  if (text.length <= most) return text;
  const half = Math.floor((most - 1) / 2);
  return `${text.slice(0, half)}…${text.slice(text.length - half)}`;
}

function frontBox(front, x, y, width, height) {
  return box("front", x, y, width, height, [[front.kind, "small"], [place(front), "mono"]],
    `${front.kind} ${front.at.join(", ")}`);
}

function verdictBox(front, x, y, height) {
  return box(`verdict ${front.verdict}`, x, y, 232, height, verdictLines(front),
    [front.verdict, front.reason, masqueraded(front.masquerade), ...front.sourceRanges].join("\n"));
}

function verdictLines(front) {
  return [
    [front.verdict, "strong"],
    [front.verdict === "forward" ? masqueraded(front.masquerade) : front.reason, "small"],
    ...(front.sourceRanges.length ? [[`only from ${front.sourceRanges.join(", ")}`, "small"]] : []),
    ...(front.shortCircuit ? [["this node's pods: cluster pool", "small"]] : []),
  ];
}

function masqueraded(who) {
  if (who === "never") return "no masquerading";
  return who === "always" ? "masqueraded" : `masqueraded: ${who}`;
}

function poolBox(port, pool, x, y) {
  const { endpoints, reason } = port.pools[pool];
  return box("pool", x, y, 178, POOL.height, [
    [`${pool} pool`, "strong"], [many(endpoints.length, "endpoint"), "small"], [reason || "empty", "small"]]);
}

function endpointBox(target, x, y, width) {
  const kind = target.isRest ? "rest" : target.local ? "endpoint here" : "endpoint";
  return box(kind, x, y, width, ENDPOINT.height,
    [[target.text, target.isRest ? "strong" : "mono"], ...(target.note ? [[target.note, "small"]] : [])]);
}

function inWords(port, label) {
  const fronts = port.frontends.map((front) => {
    const pool = port.pools[front.pool].endpoints.length;
    const fate = front.verdict === "forward" ? `forward to ${many(pool, "endpoint")}` : front.verdict;
    return `${front.kind} ${front.at.join(", ")}: ${fate}`;
  });
  return `Packet path of ${label}. ${fronts.join(". ")}.`;
}
