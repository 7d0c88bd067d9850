// A track's page where scripts run: sorting, searching, filtering, paging, choosing entries to compare, and the chart with it.
// Without scripts the page is the same table in the order of the ranks, in pages of their own.
// What an action asks for is looked up at once (see lookup.js); of the rows, those that fit the window are put in with it, and the
// rest of the page's in the frames after, since making and laying out a hundred of them is most of what an action costs.
const { make } = marin;
const FACETS = [["author", "Author"], ["family", "Family"], ["optimizer", "Optimizer"], ["hardware", "Hardware"], ["rung", "Rung passed"]];
const SIZES = [["", "any"], ["0-3e7", "up to 30 M"], ["3e7-1e8", "30 M to 100 M"], ["1e8-3e8", "100 M to 300 M"], ["3e8-1e9", "300 M to 1 B"], ["1e9-1e99", "1 B and more"]];
const EXAMPLES = { flops: "1e19", count: "10B", seconds: "30 min", hours: "2 h" }; // of a budget
const LOWEST_ROW = 36; // pixels: no row is lower
const FEWEST_ROWS = 12;
const ROWS_A_FRAME = 24;
const MOST_CHOICES = 400; // of a filter: a list of more is slow to open, and nobody reads it

class Table {
  constructor(table, rows) {
    this.table = table;
    this.body = table.tBodies[0];
    this.rows = rows;
    this.count = rows.key.length;
    this.quality = table.dataset.quality;
    this.main = table.dataset.main;
    if ("hours" in table.dataset) marin.useHours();
    this.pageSize = Number(table.dataset.pageSize);
    this.columns = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.column);
    this.state = marin.readState();
    this.lookup = new marin.Lookup(rows, this.quality);
    this.places = new Map(rows.key.map((key, index) => [key, index]));
    this.chosen = (this.state.get("pick") ?? "").split(",").filter((key) => this.places.has(key)).slice(0, 8);
    this.built = [];
    this.builtPage = Number(/\.page-(\d+)\.html$/.exec(location.pathname)?.[1] ?? 1);
    table.classList.add("choosing"); // a place for the boxes, which no entry has without scripts
    this.makeTools();
    this.makeHeads();
    this.makeChart();
    this.body.addEventListener("pointerover", (event) => this.hover(event.target.closest("tr")));
    this.body.addEventListener("pointerleave", () => this.hover(null));
    this.body.addEventListener("focusin", (event) => this.hover(event.target.closest("tr")));
    this.body.addEventListener("change", (event) => this.choose(event.target));
    this.apply(true);
    this.prepare();
  }

  // Works out what sorting and searching need while nobody waits for it.
  prepare() {
    const later = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
    later(() => {
      if (this.lookup.prepare(this.columns)) this.prepare();
      else this.table.dataset.ready = "";
    });
  }

  // --- what is shown ----------------------------------------------------------------------------------------------

  apply(first = false) {
    const started = performance.now();
    const [column, direction] = (this.state.get("sort") ?? "rank.up").split(".");
    const mask = this.lookup.matching(this.state);
    this.shown = this.lookup.sorted(this.columns.includes(column) ? column : "rank", direction === "down", mask);
    const isPlain = ["q", "sort", "size", "from", "to", "frontier", "page", ...FACETS.map(([facet]) => facet)].every((name) => !this.state.get(name));
    this.page = Math.min(Math.max(1, Number(this.state.get("page")) || (isPlain ? this.builtPage : 1)), Math.max(1, Math.ceil(this.shown.length / this.pageSize)));
    // At first the page already shows what it should, unless its address asks for something else.
    if (!(first && isPlain)) this.fill();
    else this.adopt();
    this.pager(isPlain && first);
    this.counted.textContent = `${this.shown.length === this.count ? "" : `${marin.whole(this.shown.length)} of `}${marin.whole(this.count)} ${this.count === 1 ? "entry" : "entries"}`;
    this.markHeads();
    this.keep();
    if (mask !== this.mask) {
      this.mask = mask;
      this.chart?.show(mask);
      this.refine?.();
    }
    this.table.dataset.took = (performance.now() - started).toFixed(1);
  }

  set(name, value, keepPage = false) {
    if (value) this.state.set(name, value);
    else this.state.delete(name);
    if (!keepPage && this.builtPage > 1) this.state.set("page", "1"); // without it this address is that of another page
    else if (!keepPage) this.state.delete("page");
    this.apply();
  }

  // Into the address, and into those of the other pages as they were built.
  keep() {
    marin.writeState(this.state);
    for (const link of document.querySelectorAll("#pages a")) link.search = String(this.state);
  }

  // --- rows -------------------------------------------------------------------------------------------------------

  adopt() {
    for (const row of this.body.rows) {
      const index = this.places.get(row.dataset.key);
      if (index !== undefined) this.addBox(row, index);
    }
  }

  addBox(row, index) {
    const { key, name } = this.rows;
    const box = make("input", { type: "checkbox", value: key[index], "aria-label": `Compare ${name[index]}` });
    box.checked = this.chosen.includes(key[index]);
    row.querySelector("th").prepend(make("span", { class: "pick" }, box));
  }

  fill() {
    cancelAnimationFrame(this.filling);
    const start = (this.page - 1) * this.pageSize;
    const left = Array.from(this.shown.subarray(start, start + this.pageSize));
    const chosen = new Set(this.chosen);
    const rowOf = (index) => {
      const row = (this.built[index] ??= this.row(index));
      row.querySelector("input").checked = chosen.has(this.rows.key[index]);
      return row;
    };
    if (left.length) this.body.replaceChildren(...left.splice(0, this.inSight()).map(rowOf));
    else this.body.replaceChildren(make("tr", { class: "nothing" }, make("td", { colspan: String(this.columns.length) }, "No entry fits these filters.")));
    const more = () => {
      this.body.append(...left.splice(0, ROWS_A_FRAME).map(rowOf));
      if (left.length) this.filling = requestAnimationFrame(more);
    };
    if (left.length) this.filling = requestAnimationFrame(more);
  }

  // How many rows reach to the lower edge of the window, so that nothing in sight waits and no scroll position is lost.
  inSight() {
    const reach = window.innerHeight - this.body.getBoundingClientRect().top;
    return Math.max(FEWEST_ROWS, Math.ceil(reach / LOWEST_ROW));
  }

  // The row that `row` of templates/parts.html.j2 makes.
  row(index) {
    const { rows } = this;
    const state = rows.state[index] === "ranked" ? "" : rows.state[index];
    this.makers ??= this.columns.map((column) => this.makerOf(column));
    const made = make("tr", { "data-key": rows.key[index], class: rows.frontier[index] ? "frontier" : state }, ...this.makers.map((maker) => maker(index, state)));
    this.addBox(made, index);
    return made;
  }

  // What makes a column's cells.
  makerOf(column) {
    const { rows } = this;
    const unknown = (title = "not stated") => make("span", { class: "none", title }, "—");
    const figures = (key, className) => {
      const values = rows.measures[key] ?? [];
      const { text } = marin.measures[key];
      return (index, extra = null) => make("td", { class: className }, (values[index] ?? null) === null ? unknown() : text(values[index]), extra);
    };
    if (column === "rank") {
      return (index) => {
        const rank = make("td", { class: "num c-rank" }, rows.rank[index] === null ? unknown("not ranked") : String(rows.rank[index]));
        if (rows.frontier[index]) rank.append(make("span", { class: "dot", title: "on the Pareto frontier" }), make("span", { class: "hidden" }, " on the Pareto frontier"));
        return rank;
      };
    }
    if (column === "name") {
      return (index, state) => make("th", { scope: "row", class: "c-name" },
        make("a", { href: `${marin.root}entries/${rows.key[index]}.html` }, ...marin.breakable(rows.name[index])),
        rows.record[index] ? make("span", { class: "mark record" }, "record") : null,
        state ? make("span", { class: `mark ${state}` }, state) : null,
        make("span", { class: "sub" }, make("bdi", {}, rows.author[index]), ...(rows.date[index] ? [" ", make("span", { class: "day" }, rows.date[index])] : [])),
        rows.why[index] ? make("span", { class: "why" }, rows.why[index]) : null);
    }
    if (column === "quality") {
      const figure = figures(this.quality, "num c-quality");
      return (index) => figure(index, rows.n[index] === null ? null
        : make("span", { class: "spread" }, `${rows.margin[index] === null ? "" : `±${marin.write.margin(rows.margin[index])} `}n\u00a0${rows.n[index]}`));
    }
    if (column === "rung") return (index) => make("td", { class: "c-rung" }, marin.ladder(rows.rung[index], rows.open[index]));
    if (column in marin.measures) {
      const figure = figures(column, `num c-${column}${column === this.main ? " on-phone" : ""}`);
      return (index) => figure(index);
    }
    const [texts, attributes] = [rows[column], { class: `c-${column}` }];
    return (index) => make("td", attributes, texts[index] ?? unknown());
  }

  // Where a key goes on after the button that was pressed is gone.
  focus() {
    this.table.parentElement.focus({ preventScroll: true });
  }

  // --- heads, pages -----------------------------------------------------------------------------------------------

  makeHeads() {
    for (const cell of this.table.tHead.rows[0].cells) {
      const button = make("button", { type: "button", onclick: () => this.sortBy(cell.dataset.column) }, cell.textContent);
      cell.replaceChildren(button);
    }
  }

  sortBy(column) {
    const [now, direction] = (this.state.get("sort") ?? "rank.up").split(".");
    this.sortFrom(column, now === column ? (direction === "up" ? "down" : "up") : this.startsOf(column));
  }

  // The end of a column that is asked for first: the newest, the best checked, the best.
  startsOf(column) {
    return column === "date" || column === "rung" || marin.measures[column === "quality" ? this.quality : column]?.higher ? "down" : "up";
  }

  sortFrom(column, direction) {
    this.set("sort", column === "rank" && direction === "up" ? "" : `${column}.${direction}`);
  }

  markHeads() {
    const [column, direction] = (this.state.get("sort") ?? "rank.up").split(".");
    for (const cell of this.table.tHead.rows[0].cells) {
      if (cell.dataset.column === column) cell.setAttribute("aria-sort", direction === "down" ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    if (this.sorter) this.sorter.value = this.columns.includes(column) ? column : "rank";
  }

  pager(asBuilt) {
    const last = Math.ceil(this.shown.length / this.pageSize);
    const place = document.getElementById("pages");
    if (asBuilt) return;
    if (last < 2) return place.replaceChildren();
    const near = [1, 2, last - 1, last, ...[-2, -1, 0, 1, 2].map((step) => this.page + step)].filter((page) => page >= 1 && page <= last);
    const items = [];
    let previous = 0;
    for (const page of [...new Set(near)].sort((a, b) => a - b)) {
      if (page - previous > 1) items.push(make("li", {}, make("span", { class: "gap" }, "…")));
      const go = () => {
        this.set("page", String(page), true);
        document.getElementById("entries").scrollIntoView();
        this.focus();
      };
      items.push(make("li", {}, page === this.page ? make("span", { "aria-current": "page" }, String(page)) : make("button", { type: "button", "aria-label": `page ${page}`, onclick: go }, String(page))));
      previous = page;
    }
    return place.replaceChildren(make("ul", {}, ...items));
  }

  // --- tools ------------------------------------------------------------------------------------------------------

  makeTools() {
    const place = document.getElementById("tools");
    this.counted = make("span", { class: "shown", role: "status" });
    const search = make("input", { type: "search", "aria-label": "Search entries", placeholder: "Search name, author, hardware, date …", autocomplete: "off", spellcheck: "false" });
    search.value = this.state.get("q") ?? "";
    search.addEventListener("input", () => this.set("q", search.value));
    const only = make("input", { type: "checkbox" });
    only.checked = Boolean(this.state.get("frontier"));
    only.addEventListener("change", () => this.set("frontier", only.checked ? "1" : ""));
    this.sorter = make("select", { "aria-label": "Sort by", onchange: () => this.sortFrom(this.sorter.value, this.startsOf(this.sorter.value)) }, ...this.columns.map((column, k) => make("option", { value: column }, this.table.tHead.rows[0].cells[k].textContent)));
    const fields = FACETS.map(([facet, title]) => {
      const found = facet === "rung" ? Object.keys(marin.levels).slice(1) : [...new Set(this.rows[facet].filter((value) => value !== null))].sort((a, b) => (a.toLowerCase() < b.toLowerCase() ? -1 : 1));
      const listed = found.slice(0, MOST_CHOICES);
      const note = found.length > listed.length ? `The first ${marin.whole(MOST_CHOICES)} of ${marin.whole(found.length)}: search finds the others.` : "";
      const chosen = this.state.get(facet); // by an address, which may name one of the others
      if (found.includes(chosen) && !listed.includes(chosen)) listed.push(chosen);
      return this.field(title, facet, [["", "any"], ...listed.map((value) => [value, value])], note);
    });
    const day = (title, name) => {
      const input = make("input", { type: "date", "aria-label": title });
      input.value = this.state.get(name) ?? "";
      input.addEventListener("change", () => this.set(name, input.value));
      return make("label", {}, title, input);
    };
    const clear = make("button", { type: "button", class: "plain", onclick: () => this.clear() }, "Clear filters");
    const filters = make("details", { class: "filters" }, make("summary", {}, "Filters"),
      make("div", { class: "fields" }, ...fields, this.field("Parameters", "size", SIZES), day("From", "from"), day("To", "to")), clear);
    filters.open = [...FACETS.map(([facet]) => facet), "size", "from", "to"].some((name) => this.state.get(name));
    place.replaceChildren(
      make("div", { class: "searching" }, search, make("label", { class: "check" }, only, "frontier only"), make("label", { class: "sort-by" }, "Sort by", this.sorter), this.counted), filters);
    place.hidden = false;
    this.basket?.remove();
    this.basket = make("div", { class: "basket", role: "status", hidden: true });
    document.getElementById("entries").append(this.basket);
    this.showBasket();
  }

  field(title, name, options, note = "") {
    const select = make("select", { "aria-label": title, onchange: () => this.set(name, select.value) }, ...options.map(([value, text]) => make("option", { value }, text)));
    select.value = this.state.get(name) ?? "";
    if (!note) return make("label", {}, title, select);
    select.setAttribute("aria-describedby", `of-${name}`);
    return make("label", {}, title, select, make("span", { id: `of-${name}` }, note));
  }

  clear() {
    for (const name of [...this.state.keys()]) if (!["x", "pick", "budget", "day"].includes(name)) this.state.delete(name);
    this.makeTools();
    document.querySelector("#tools details").open = true;
    this.set("q", "");
    document.querySelector("#tools input").focus();
  }

  // --- choosing ---------------------------------------------------------------------------------------------------

  choose(box) {
    if (box.type !== "checkbox") return;
    const rest = this.chosen.filter((key) => key !== box.value);
    if (box.checked && rest.length >= 8) box.checked = false;
    this.chosen = box.checked ? [...rest, box.value] : rest;
    if (this.chosen.length) this.state.set("pick", this.chosen.join(","));
    else this.state.delete("pick");
    this.keep();
    this.showBasket();
  }

  showBasket() {
    this.basket.hidden = !this.chosen.length;
    const clear = () => {
      this.chosen = [];
      this.state.delete("pick");
      for (const box of this.body.querySelectorAll(".pick input")) box.checked = false;
      this.keep();
      this.showBasket();
      this.focus();
    };
    this.basket.replaceChildren(`${this.chosen.length} of up to 8 chosen`, make("button", { type: "button", class: "plain", onclick: clear }, "Clear"),
      make("a", { class: "main-button", href: `${marin.root}compare.html?runs=${this.chosen.join(",")}` }, "Compare"));
  }

  // --- the chart --------------------------------------------------------------------------------------------------

  makeChart() {
    const figure = document.getElementById("pareto");
    if (!figure) return;
    const wanted = this.state.get("x");
    const axis = marin.costs.includes(wanted) && this.rows.measures[wanted] ? wanted : figure.dataset.cost;
    this.chart = new marin.Chart(figure, this.rows, this.quality, axis, (index) => this.lightRow(index));
    const { chart } = this;
    const x = make("select", { "aria-label": "Figure on the x axis" }, ...marin.costs.filter((key) => this.rows.measures[key]).map((key) => make("option", { value: key }, marin.measures[key].title)));
    x.value = axis;
    const budget = make("input", { type: "text", inputmode: "decimal", size: "9", value: this.state.get("budget") ?? "" });
    const said = make("p", { class: "best-under", role: "status" });
    const label = make("label", {}, "Best under", budget);
    const underBudget = () => {
      const limit = marin.readAmount(budget.value, chart.cost.unit);
      budget.placeholder = `e.g. ${EXAMPLES[chart.cost.unit]}`;
      chart.budget = limit;
      if (limit === null) said.textContent = budget.value.trim() ? `A budget is a number, such as ${EXAMPLES[chart.cost.unit]}.` : "";
      else {
        const best = chart.bestUnder(limit);
        if (best < 0) said.textContent = `No entry costs at most ${chart.cost.text(limit)} ${chart.cost.title.toLowerCase()}.`;
        else said.replaceChildren(`Best under ${chart.cost.text(limit)} (${chart.cost.title}): `, make("a", { href: `${marin.root}entries/${this.rows.key[best]}.html` }, make("bdi", {}, this.rows.name[best])),
          `, ${chart.quality.text(this.rows.measures[this.quality][best])} for ${chart.cost.text(this.rows.measures[chart.cost.key][best])}`);
      }
      chart.redraw();
    };
    this.refine = underBudget;
    budget.addEventListener("input", () => {
      if (budget.value.trim()) this.state.set("budget", budget.value.trim());
      else this.state.delete("budget");
      this.keep();
      underBudget();
    });
    x.addEventListener("change", () => {
      chart.cost = marin.measures[x.value];
      if (x.value === figure.dataset.cost) this.state.delete("x");
      else this.state.set("x", x.value);
      this.keep();
      underBudget();
    });
    const controls = make("div", { class: "controls" }, make("label", {}, "x axis", x));
    if (chart.days.length > 1) {
      const last = chart.days.length - 1;
      const slider = make("input", { type: "range", min: "0", max: String(last), step: "1", "aria-label": "The frontier as it was on a day" });
      const output = make("output", {});
      const asked = chart.days.indexOf(this.state.get("day"));
      slider.value = String(asked < 0 ? last : asked);
      const move = () => {
        const at = Number(slider.value);
        chart.day = at === last ? null : chart.days[at];
        output.textContent = at === last ? "today" : chart.days[at];
        slider.setAttribute("aria-valuetext", output.textContent);
        if (chart.day) this.state.set("day", chart.day);
        else this.state.delete("day");
        underBudget();
      };
      slider.addEventListener("input", () => {
        move();
        this.keep();
      });
      controls.append(make("label", {}, "as of", slider, output));
      move();
    }
    controls.append(label);
    figure.prepend(controls);
    figure.querySelector("figcaption").before(said);
    underBudget();
  }

  lightRow(index) {
    this.litRow?.classList.remove("lit");
    const row = index < 0 ? null : this.body.querySelector(`tr[data-key="${CSS.escape(this.rows.key[index])}"]`);
    row?.classList.add("lit");
    this.litRow = row;
  }

  hover(row) {
    if (!this.chart || this.chart.byKey) return;
    const index = this.places.get(row?.dataset.key) ?? -1;
    if (index !== this.chart.lit) {
      this.chart.light(index, false);
      this.lightRow(index);
    }
  }
}

const table = document.getElementById("board");
if (table) marin.waiting.push((rows) => {
  marin.table = new Table(table, rows);
});
