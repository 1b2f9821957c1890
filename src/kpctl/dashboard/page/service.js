// One Service: the way of a packet, its endpoints with the reasons, and what changed lately.

import { ago, badge, card, count, el, empty, many, moment, table } from "./dom.js";
import { ask, keyOf } from "./model.js";
import { drawPath } from "./path.js";

const FIRST_ENDPOINTS = 50;

export function serviceView(model, namespace, name, announce) {
  return new Service(model, namespace, name, announce);
}

class Service {
  constructor(model, namespace, name, announce) {
    Object.assign(this, { model, namespace, name, announce });
    this.key = keyOf(namespace, name);
    this.title = this.key;
    this.unfolded = new Set();
    this.state = el("span", { class: "state" });
    this.since = el("p", { class: "muted" });
    this.body = el("div", { class: "stack" });
    this.node = el("article", { class: "service" },
      el("p", { class: "crumbs" }, el("a", { href: "#/services" }, "Services"), " / ", namespace),
      el("div", { class: "title" }, el("h2", { tabindex: "-1" }, name), this.state),
      this.since, this.body);
    this.load();
  }

  /** Load again if this Service is among those that changed. */
  update(changed) {
    this.showSince();
    if (changed === null || changed.includes(this.key)) this.load();
  }

  async load() {
    let document;
    try {
      document = await ask(`data/service?${new URLSearchParams({ namespace: this.namespace, name: this.name })}`);
    } catch {
      return; // the banner of the page tells that nothing answers
    }
    const text = JSON.stringify(document);
    if (text === this.text) return;
    if (this.text) this.announce(`${this.key} changed: ${this.inWords()}`);
    this.text = text;
    this.document = document;
    this.show();
  }

  inWords() {
    const row = this.model.rows.get(this.key);
    return row ? `${row.used} of ${many(row.endpoints, "endpoint")} in use` : "it is gone";
  }

  showSince() {
    const row = this.model.rows.get(this.key);
    this.state.replaceChildren(row ? badge(row.state) : "");
    const changed = (this.document ?? []).map((family) => family.changed).find(Boolean);
    const words = changed ? ` · changed ${ago(changed.at, this.model.now)}: ${changed.event}` : "";
    this.since.textContent = row ? `${this.inWords()}${words}` : "";
  }

  show() {
    this.showSince();
    const families = this.document;
    if (!families.length) {
      this.body.replaceChildren(empty("The proxy does not know this Service. It may have been removed, or may be headless."));
      return;
    }
    this.body.replaceChildren(
      ...this.complaints(families),
      ...families.flatMap((family) => family.ports.map((port) => this.port(port))),
      ...(this.model.status.startedAt ? [this.changes(families)] : []));
  }

  complaints(families) {
    const found = families.flatMap((family) => [
      ...family.refused.map((each) => `${each.what} is refused: ${each.reason}`),
      ...family.hints.map((hint) => `${family.ipFamily}: ${hint}.`),
    ]);
    return found.length ? [el("div", { class: "note warn" }, el("ul", {}, found.map((text) => el("li", {}, text))))] : [];
  }

  port(port) {
    const label = [port.port, port.protocol, port.ipFamily].filter(Boolean).join(" · ");
    const facts = [
      port.affinitySeconds ? `a client stays with its endpoint for ${port.affinitySeconds} s` : "",
      port.healthCheckNodePort ? `health is served at node port ${port.healthCheckNodePort}` : "",
      ...port.notes,
    ].filter(Boolean);
    const inUse = port.endpoints.filter((each) => each.pools.length).length;
    return card(label,
      facts.length ? el("p", { class: "muted" }, sentence(facts)) : null,
      el("div", { class: "scroll drawing", role: "region", tabindex: "0", "aria-label": `Packet path, ${label}` }, drawPath(port, label)),
      el("h4", {}, "Frontends"),
      this.frontends(port, label),
      el("h4", {}, port.endpoints.length ? `Endpoints: ${count(inUse)} of ${count(port.endpoints.length)} in use` : "Endpoints"),
      this.endpoints(port, label));
  }

  frontends(port, label) {
    return table(`Frontends, ${label}`, ["Kind", "At", "Verdict", "Source address is replaced for", "Why"],
      port.frontends.map((each) => [
        each.kind,
        el("span", { class: "mono" }, each.at.join(", ")),
        el("span", { class: `badge ${each.verdict}` }, each.verdict),
        masquerading(each.masquerade),
        [each.reason, ...conditions(each)].filter(Boolean).join("; "),
      ]), { class: "packed" });
  }

  endpoints(port, label) {
    if (!port.endpoints.length) return empty("No EndpointSlice has an endpoint for this port.");
    const isUnfolded = this.unfolded.has(label);
    const shown = isUnfolded ? port.endpoints : port.endpoints.slice(0, FIRST_ENDPOINTS);
    const rest = port.endpoints.length - shown.length;
    return el("div", {}, table(`Endpoints, ${label}`, ["Endpoint", "Node", "State", "Pools", "Why"],
      shown.map((each) => [
        el("span", { class: "mono" }, each.at),
        each.local ? `${each.node || "–"} (this node)` : each.node || "–",
        each.state,
        each.pools.length ? el("span", { class: "badge forward" }, each.pools.join(", ")) : el("span", { class: "badge" }, "none"),
        each.zones.length ? `${each.reason}; hint for ${each.zones.join(", ")}` : each.reason,
      ]), { class: "packed" }),
    rest > 0 ? el("button", { type: "button", onclick: () => this.unfold(label) },
      `Show all ${count(port.endpoints.length)} endpoints`) : null);
  }

  unfold(label) {
    this.unfolded.add(label);
    this.show();
    const region = [...this.body.querySelectorAll("[role=region]")]
      .find((each) => each.getAttribute("aria-label") === `Endpoints, ${label}`);
    region.tabIndex = -1;
    region.focus();
  }

  changes(families) {
    const found = families.flatMap((family) => family.endpointChanges).sort((a, b) => b.at - a.at);
    return card("Lately changed endpoints", found.length
      ? table("Lately changed endpoints", ["When", "Endpoint", "Before", "After"], found.map((each) => [
        moment(each.at), el("span", { class: "mono" }, each.endpoint), each.before || "absent", each.after || "gone"]))
      : empty("None since the proxy started, as far as it remembers."));
  }
}

function sentence(parts) {
  const text = parts.join("; ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

export function masquerading(who) {
  return who === "never" ? "no one" : who === "always" ? "everyone" : who;
}

export function conditions(frontend) {
  return [
    frontend.sourceRanges.length ? `only from ${frontend.sourceRanges.join(", ")}` : "",
    frontend.shortCircuit ? "from this node and its pods to the cluster pool" : "",
  ];
}
