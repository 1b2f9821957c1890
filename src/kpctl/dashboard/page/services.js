// The list of Services: searched as one types, and drawn only where one looks, so that 10,000 of
// them are as quick as ten. The grid keeps the focus and names the row that it is on, because the
// elements of rows are used again for other rows while one scrolls.

import { STATES, MEANING, ago, badge, count, el, many } from "./dom.js";
import { ask, keyOf, linkTo } from "./model.js";

const SPARE_ROWS = 6;
const ADDRESS = /^[0-9a-f.:[\]]+$/i;
const COLUMNS = ["Service", "Address", "Endpoints", "State", "Last change"];

export function servicesView(model, query, announce) {
  return new Services(model, query, announce);
}

class Services {
  title = "Services";

  constructor(model, query, announce) {
    this.model = model;
    this.announce = announce;
    this.found = [];
    this.pool = [];
    this.active = 0;
    this.also = new Set();
    this.state = query.get("state") ?? "";
    this.input = el("input", {
      id: "search", type: "search", autocomplete: "off", spellcheck: "false",
      placeholder: "name, namespace, address, port", "aria-describedby": "search-help",
      oninput: () => this.changedQuery(), onkeydown: (event) => this.fromSearch(event),
    });
    this.input.value = query.get("q") ?? "";
    this.filter = el("select", { id: "state", onchange: () => this.changedState() });
    this.summary = el("p", { class: "muted", id: "found" });
    this.spacer = el("div", { class: "spacer", role: "rowgroup" });
    this.none = el("p", { class: "empty" });
    this.grid = el("div", {
      class: "rows", role: "grid", tabindex: "0", "aria-label": "Services",
      "aria-colcount": COLUMNS.length, onscroll: () => this.draw(),
      onkeydown: (event) => this.move(event), onfocus: () => this.draw(), onblur: () => this.draw(),
      onclick: (event) => this.open(event),
    }, this.spacer);
    this.node = el("div", { class: "services" },
      el("h2", { tabindex: "-1" }, "Services"),
      el("search", { class: "filters" },
        el("div", { class: "field grow" }, el("label", { for: "search" }, "Search"), this.input,
          el("span", { class: "unseen", id: "search-help" },
            "Press the down arrow to go to the list. The slash key leads here from anywhere.")),
        el("div", { class: "field" }, el("label", { for: "state" }, "State"), this.filter)),
      this.summary,
      el("div", { class: "listbox" },
        el("div", { class: "rows-head", "aria-hidden": "true" }, COLUMNS.map((name) => el("span", {}, name))),
        this.grid, this.none));
    this.resizes = new ResizeObserver(() => this.draw());
  }

  shown() {
    this.resizes.observe(this.grid);
    this.update(null);
  }

  update() {
    this.showStates();
    this.find();
  }

  showStates() {
    const counts = this.model.counts();
    const options = [["", `All (${count(this.model.sorted.length)})`],
      ...Object.keys(STATES).filter((state) => counts[state] || state === this.state)
        .map((state) => [state, `${STATES[state]} (${count(counts[state])})`])];
    const text = JSON.stringify(options);
    if (text === this.options) return;
    this.options = text;
    this.filter.replaceChildren(...options.map(([value, label]) =>
      el("option", { value, title: MEANING[value] }, label)));
    this.filter.value = this.state;
  }

  changedState() {
    this.state = this.filter.value;
    this.restart();
  }

  changedQuery() {
    this.also = new Set();
    clearTimeout(this.later);
    const address = this.input.value.trim().replaceAll(/[[\]]/g, "");
    if (address.length > 2 && ADDRESS.test(address)) {
      this.later = setTimeout(() => this.findEndpoint(address), 150);
    }
    this.restart();
  }

  /** Services are found by the addresses of their endpoints too, which the rows do not hold. */
  async findEndpoint(address) {
    const names = await ask(`data/endpoints?${new URLSearchParams({ address })}`).catch(() => []);
    if (this.input.value.trim().replaceAll(/[[\]]/g, "") !== address) return;
    this.also = new Set(names.map(([namespace, name]) => keyOf(namespace, name)));
    this.find();
  }

  restart() {
    this.active = 0;
    this.grid.scrollTop = 0;
    this.find();
    clearTimeout(this.telling);
    this.telling = setTimeout(() => this.announce(`${many(this.found.length, "Service")} found`), 600);
    const parts = new URLSearchParams();
    if (this.input.value) parts.set("q", this.input.value);
    if (this.state) parts.set("state", this.state);
    history.replaceState(null, "", `#/services${parts.size ? `?${parts}` : ""}`);
  }

  find() {
    const { model, input, state, also } = this;
    this.found = model.search(input.value, state, also);
    this.active = Math.max(0, Math.min(this.active, this.found.length - 1));
    this.summary.textContent = this.found.length === model.sorted.length
      ? many(model.sorted.length, "Service")
      : `${count(this.found.length)} of ${many(model.sorted.length, "Service")}`;
    this.none.hidden = this.found.length > 0;
    this.none.textContent = model.sorted.length
      ? "No Service matches. Try fewer words, or another state."
      : "The proxy knows no Service yet.";
    this.grid.hidden = !this.found.length;
    this.grid.setAttribute("aria-rowcount", this.found.length);
    this.draw();
  }

  get height() {
    return parseFloat(getComputedStyle(this.grid).getPropertyValue("--row")) || 44;
  }

  draw() {
    const height = this.height;
    this.spacer.style.height = `${this.found.length * height}px`;
    const first = Math.max(0, Math.floor(this.grid.scrollTop / height) - SPARE_ROWS);
    const last = Math.min(this.found.length,
      Math.ceil((this.grid.scrollTop + this.grid.clientHeight) / height) + SPARE_ROWS);
    while (this.pool.length < last - first) this.pool.push(this.spacer.appendChild(emptyRow()));
    this.pool.forEach((element, slot) => {
      const index = first + slot;
      element.hidden = index >= last;
      if (index < last) this.fill(element, index, index * height);
    });
    const isFocused = document.activeElement === this.grid;
    if (isFocused && this.found.length) this.grid.setAttribute("aria-activedescendant", `row-${this.active}`);
    else this.grid.removeAttribute("aria-activedescendant");
  }

  fill(element, index, top) {
    const row = this.found[index];
    element.id = `row-${index}`;
    element.style.transform = `translateY(${top}px)`;
    element.setAttribute("aria-rowindex", index + 1);
    element.dataset.index = index;
    element.classList.toggle("active", index === this.active && document.activeElement === this.grid);
    const changed = row.changedAt ? ago(row.changedAt, this.model.now) : "";
    if (element.row === row && element.changed === changed) return;
    element.row = row;
    element.changed = changed;
    const [name, address, endpoints, state, last] = element.children;
    name.replaceChildren(el("a", { href: linkTo(row), tabindex: "-1", "aria-label": row.key },
      el("span", { class: "muted" }, row.namespace), el("span", { class: "muted" }, "/"), el("span", {}, row.name)));
    name.title = row.key;
    const more = row.addresses.length - 1;
    address.replaceChildren(el("span", { class: "mono" }, row.addresses[0] ?? "–"),
      more > 0 ? el("span", { class: "muted" }, ` +${more}`) : "");
    address.title = row.addresses.join("\n");
    endpoints.textContent = `${count(row.used)} of ${count(row.endpoints)}`;
    state.replaceChildren(badge(row.state));
    last.textContent = changed;
  }

  fromSearch(event) {
    if (event.key === "Escape" && this.input.value) {
      event.preventDefault();
      this.input.value = "";
      this.changedQuery();
    }
    if (event.key !== "ArrowDown" && event.key !== "Enter") return;
    event.preventDefault();
    if (!this.found.length) return;
    if (event.key === "Enter" && this.found.length === 1) location.hash = linkTo(this.found[0]);
    else this.grid.focus();
  }

  move(event) {
    const page = Math.max(1, Math.floor(this.grid.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === "Enter") {
      location.hash = linkTo(this.found[this.active]);
      return;
    }
    if (!(event.key in steps)) return;
    event.preventDefault();
    const wanted = this.active + steps[event.key];
    this.active = Math.max(0, Math.min(this.found.length - 1, wanted));
    const top = this.active * this.height;
    const bottom = top + this.height - this.grid.clientHeight;
    if (this.grid.scrollTop > top) this.grid.scrollTop = top;
    if (this.grid.scrollTop < bottom) this.grid.scrollTop = bottom;
    this.draw();
  }

  open(event) {
    const element = event.target.closest("[role=row]");
    if (!element || event.target.closest("a")) return;
    location.hash = linkTo(this.found[Number(element.dataset.index)]);
  }
}

function emptyRow() {
  return el("div", { role: "row", class: "row" }, COLUMNS.map((name, column) =>
    el("div", { role: "gridcell", "aria-colindex": column + 1, "data-label": name })));
}
