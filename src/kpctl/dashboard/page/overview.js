// The proxy at a glance.

import { STATES, MEANING, ago, badge, card, count, duration, el, empty, many, moment, table } from "./dom.js";
import { linkTo } from "./model.js";
import { durations } from "./rounds.js";

const RECENT = 8;

export function overviewView(model) {
  return new Overview(model);
}

class Overview {
  title = "Overview";

  constructor(model) {
    this.model = model;
    this.tiles = el("dl", { class: "tiles" });
    this.states = el("div");
    this.families = el("div");
    this.changed = el("div");
    this.rounds = el("div");
    this.source = el("div");
    this.problems = el("div", { class: "stack" });
    const hasPast = model.status.startedAt !== undefined;
    this.node = el("article", {},
      el("h2", { tabindex: "-1" }, "Overview"),
      this.tiles, this.problems,
      el("div", { class: "columns" },
        card("Services by state", this.states),
        hasPast ? card("Changed last", this.changed) : null,
        card("IP families", this.families),
        card("Where objects come from", this.source)),
      hasPast ? card("Rounds", this.rounds) : null);
    this.update();
  }

  update() {
    const { model } = this;
    draw(this, "tiles", tiles(model));
    draw(this, "problems", problems(model));
    draw(this, "states", [states(model)]);
    draw(this, "families", [families(model)]);
    draw(this, "changed", [changed(model)]);
    draw(this, "source", [source(model)]);
    if (this.mark === model.historyMark && this.rounds.childElementCount) return;
    this.mark = model.historyMark;
    this.rounds.replaceChildren(durations(model));
  }
}

/** Put new content in place unless it looks the same: what has the focus should keep it. */
function draw(view, part, content) {
  const fresh = el("div", {}, content);
  const old = [...view[part].childNodes];
  const isSame = old.length === fresh.childNodes.length &&
    old.every((node, index) => node.isEqualNode(fresh.childNodes[index]));
  if (isSame) return;
  view[part].replaceChildren(...fresh.childNodes);
}

function tiles({ status, sorted, now, history }) {
  const ports = sum(status.families, "servicePorts");
  const running = status.startedAt !== undefined;
  const healthy = running && status.families.every((family) => family.healthy);
  const last = history.rounds.at(-1);
  return [
    tile("Services", count(sorted.length)),
    tile("Service ports", count(ports)),
    tile("Endpoints", count(sum(status.families, "endpoints"))),
    ...(running ? [
      tile("Health", healthy ? "healthy" : "failing", healthy ? "good" : "bad"),
      tile("Last round", last ? ago(last.at, now) : "–"),
      tile("Repairs", count(status.repairs), status.repairs ? "odd" : ""),
      tile("Running for", duration(now - status.startedAt)),
    ] : [tile("Rejected objects", count(status.rejected), status.rejected ? "odd" : "")]),
  ];
}

function tile(name, value, kind = "") {
  return el("div", { class: `tile ${kind}` }, el("dt", {}, name), el("dd", {}, value));
}

function sum(families, field) {
  return families.reduce((total, family) => total + (family[field] ?? 0), 0);
}

function states(model) {
  const counts = model.counts();
  const total = model.sorted.length;
  if (!total) return empty("The proxy knows no Service yet.");
  return el("ul", { class: "bars" }, Object.keys(STATES).filter((state) => counts[state]).map((state) => {
    return el("li", {},
      el("a", { href: `#/services?state=${state}`, title: MEANING[state] }, badge(state),
        el("meter", { min: 0, max: total, value: counts[state], class: state, "aria-label": STATES[state] }),
        el("span", { class: "number" }, count(counts[state]))),
      el("p", { class: "muted" }, MEANING[state]));
  }));
}

function families({ status, now }) {
  return table("IP families", ["Family", "Node address", "Services", "Endpoints", "Items", "Queued", "Last sync"],
    status.families.map((family) => [family.family, el("span", { class: "mono" }, family.nodeIP),
      count(family.services), count(family.endpoints), count(family.items),
      family.queued === undefined ? "–" : count(family.queued),
      family.lastSyncAt ? ago(family.lastSyncAt, now) : "–"]));
}

function changed({ sorted, now }) {
  const found = sorted.filter((row) => row.changedAt).sort((a, b) => b.changedAt - a.changedAt).slice(0, RECENT);
  if (!found.length) return empty("Nothing has changed since the proxy started.");
  return el("ul", { class: "plain" }, found.map((row) => el("li", {},
    el("a", { href: linkTo(row) }, row.key), badge(row.state), el("span", { class: "muted" }, ago(row.changedAt, now)))));
}

function source({ status }) {
  if (!status.collections) return el("p", {}, status.origin);
  return el("div", {}, el("p", { class: "wrap" }, status.source),
    el("ul", { class: "plain" }, status.collections.map((each) => el("li", {}, el("span", {}, each.name),
      el("span", { class: `badge ${each.state === "watching" ? "forward" : each.state === "failing" ? "reject" : ""}` }, each.state),
      each.problem ? el("span", { class: "muted" }, each.problem) : null))),
    el("p", { class: "muted" }, `kubeproxy ${status.version}, as kube-proxy ${status.kubernetes}; process ${status.process}`));
}

function problems({ status }) {
  const refused = status.families.flatMap((family) => family.refused ?? [])
    .map((each) => `${each.what}: ${each.reason}`);
  const objects = status.problems ?? [];
  return [
    refused.length ? el("section", { class: "note bad" }, el("h3", {}, "Refused by the kernel"),
      el("ul", {}, refused.map((text) => el("li", {}, text)))) : null,
    objects.length ? el("section", { class: "note warn" }, el("h3", {}, many(objects.length, "object") + " with a problem"),
      el("ul", {}, [...objects].reverse().slice(0, 10).map((each) =>
        el("li", {}, moment(each.at), ` ${each.kind} ${each.name}: ${each.reason}`)))) : null,
  ].filter(Boolean);
}
