// What the server told, kept current: one full answer, then only what changed since its revision.

export class Model {
  constructor() {
    this.rows = new Map();
    this.sorted = [];
    this.status = null;
    this.history = { rounds: [], repairs: [] };
    this.revision = 0;
    this.historyMark = "";
    this.isLive = false;
    this.problem = "";
    this.skew = 0;
  }

  /** The proxy's time. Offline it is the moment at which the bundle was written. */
  get now() {
    return this.isLive ? Date.now() / 1000 + this.skew : this.status?.now ?? Date.now() / 1000;
  }

  /** Ask for what changed. Return the keys of changed Services, or null if all are new. */
  async refresh() {
    const query = new URLSearchParams({ since: this.revision, history: this.historyMark });
    return this.take(await ask(`data/changes?${query}`));
  }

  take(answer) {
    const changed = [];
    if (answer.isReset) this.rows.clear();
    for (const [namespace, name] of answer.removed) {
      this.rows.delete(keyOf(namespace, name));
      changed.push(keyOf(namespace, name));
    }
    for (const row of answer.rows) {
      row.key = keyOf(row.namespace, row.name);
      row.addresses ??= [];
      row.used ??= 0;
      row.endpoints ??= 0;
      row.text = `${row.key} ${row.addresses.join(" ")}`.toLowerCase();
      this.rows.set(row.key, row);
      changed.push(row.key);
    }
    if (changed.length || answer.isReset) this.sort();
    this.revision = answer.revision;
    this.status = answer.status;
    this.isLive = answer.isLive;
    this.problem = answer.problem;
    if (answer.status.now) this.skew = answer.status.now - Date.now() / 1000;
    if (answer.history) this.history = answer.history;
    this.historyMark = answer.historyMark;
    return answer.isReset ? null : changed;
  }

  sort() {
    this.sorted = [...this.rows.values()].sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0));
  }

  /** Services by state, for filters and for the overview. */
  counts() {
    const found = {};
    for (const row of this.sorted) found[row.state] = (found[row.state] ?? 0) + 1;
    return found;
  }

  /** The Services that hold every word of the query; those in `also` match in any case. */
  search(query, state, also = new Set()) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    return this.sorted.filter((row) =>
      (!state || row.state === state) &&
      (words.every((word) => row.text.includes(word)) || also.has(row.key)));
  }
}

export function keyOf(namespace, name) {
  return `${namespace}/${name}`;
}

export function linkTo(row) {
  return `#/service/${encodeURIComponent(row.namespace)}/${encodeURIComponent(row.name)}`;
}

/** Get an answer of the server. */
export async function ask(path) {
  const response = await fetch(path, { cache: "no-store" });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}
