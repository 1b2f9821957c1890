// Rounds and latency over time, and repairs.

import { card, count, duration, el, empty, many, moment, table } from "./dom.js";
import { chart } from "./chart.js";

const SHOWN = 50;
const NO_PAST = "Manifests have no past: only a running proxy, or its bundle, has rounds.";

/** A view that is drawn again when what it shows has changed. */
class Redrawn {
  constructor(model, title, lead) {
    this.model = model;
    this.title = title;
    this.body = el("div", { class: "stack" });
    this.node = el("article", {}, el("h2", { tabindex: "-1" }, title), el("p", { class: "muted" }, lead), this.body);
    this.update();
  }

  update() {
    const mark = this.model.historyMark;
    if (mark === this.mark && this.body.childElementCount) return;
    this.mark = mark;
    this.body.replaceChildren(...this.content(this.model));
  }
}

export class Rounds extends Redrawn {
  content(model) {
    if (!model.status.startedAt) return [empty(NO_PAST)];
    const { rounds } = model.history;
    return [
      card("Duration of rounds", durations(model)),
      card("Programming latency", el("p", { class: "muted" },
        "From the change of an endpoint in the API to the end of the round that programmed it; the worst of each round."),
      latencies(model)),
      card("Last rounds", rounds.length ? table("Last rounds",
        ["When", "Family", "Took", "Services", "Changes", "Sent", "Latency", "Outcome"],
        rounds.slice(-SHOWN).reverse().map((round) => [
          moment(round.at), round.family, duration(round.seconds), count(round.services), count(round.changes),
          bytes(round.bytes), round.latencies ? duration(round.latency) : "–",
          round.error || (round.full ? "done, full sync" : "done")])) : empty("No round yet.")),
    ];
  }
}

class Repairs extends Redrawn {
  content(model) {
    if (!model.status.startedAt) return [empty(NO_PAST)];
    const repairs = [...model.history.repairs].reverse();
    if (!repairs.length) return [empty("Nothing had to be repaired: no one else changed what the proxy wrote.")];
    return repairs.map((repair) => el("section", { class: "card repair" },
      el("h3", {}, moment(repair.at), ` · ${repair.family} · ${many(repair.items, "item")}`),
      el("p", {}, repair.cause || "found by reading the kernel"),
      repair.lines.length ? el("pre", { tabindex: "0", "aria-label": "What was put right" }, repair.lines.join("\n")) : null));
  }
}

export function durations(model) {
  return chart("Duration of rounds", model.history.rounds, model.now, "No round yet.");
}

function latencies(model) {
  const points = model.history.rounds.filter((round) => round.latencies)
    .map((round) => ({ ...round, seconds: round.latency }));
  return chart("Programming latency", points, model.now, "No change with a known time yet.");
}

function bytes(value) {
  if (value < 1024) return `${value} B`;
  return value < 1048576 ? `${(value / 1024).toFixed(1)} KiB` : `${(value / 1048576).toFixed(1)} MiB`;
}

export function roundsView(model) {
  return new Rounds(model, "Rounds", "Each round takes the changes of one IP family and hands them to the kernel.");
}

export function repairsView(model) {
  return new Repairs(model, "Repairs", "What another process changed behind the proxy's back, and the proxy put right.");
}
