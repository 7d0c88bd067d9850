// Up to eight entries side by side: figures, curves, and the settings in which they differ.
const { make, draw } = marin;
const place = document.getElementById("compare");

class Compare {
  constructor(element) {
    this.element = element;
    this.most = Number(element.dataset.most);
    this.keys = [...new Set((marin.readState().get("runs") ?? "").split(",").filter((key) => /^[a-z0-9-]+$/.test(key)))].slice(0, this.most);
    this.documents = new Map();
    this.loading = 0;
    this.show();
  }

  async show() {
    marin.writeState(new URLSearchParams(this.keys.length ? { runs: this.keys.join(",") } : {}));
    const failed = [];
    const asked = this.keys;
    await Promise.all(asked.map(async (key) => {
      if (this.documents.has(key)) return;
      try {
        const answer = await fetch(`data/entries/${key}.json`);
        if (!answer.ok) throw new Error(String(answer.status));
        this.documents.set(key, await answer.json());
      } catch {
        failed.push(key);
      }
    }));
    if (this.keys !== asked) return; // an entry came or went meanwhile: what was asked for after it shows both
    this.keys = asked.filter((key) => !failed.includes(key));
    const parts = [this.adder()];
    if (failed.length) {
      const why = location.protocol === "file:" ? "A page from disk may not read other files: run `marin leaderboard serve`, or put the site on any static host." : `There is no entry ${failed.join(", ")}.`;
      parts.push(make("p", { class: "note", role: "alert" }, why));
    }
    const found = this.keys.map((key) => this.documents.get(key));
    if (!found.length && !failed.length) parts.push(make("section", { class: "empty" }, make("h2", {}, "Nothing chosen yet"), make("p", {}, "Search above, or choose entries in the table of a track.")));
    if (found.length) parts.push(this.figures(found), ...this.curves(found), this.settings(found));
    this.element.replaceChildren(...parts);
  }

  // --- adding and removing ----------------------------------------------------------------------------------------

  adder() {
    const input = make("input", { type: "search", placeholder: "Add an entry by name or author …", "aria-label": "Add an entry", autocomplete: "off", spellcheck: "false" });
    const list = make("ul", { class: "found" });
    const said = make("span", { class: "none", role: "status" });
    const search = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const hits = [];
      for (const rows of Object.values(marin.tracks)) {
        for (let k = 0; words.length && k < rows.key.length && hits.length < 12; k += 1) {
          const text = `${rows.name[k]} ${rows.author[k]}`.toLowerCase();
          if (!this.keys.includes(rows.key[k]) && !hits.some((hit) => hit.key === rows.key[k]) && words.every((word) => text.includes(word))) hits.push({ key: rows.key[k], name: rows.name[k], author: rows.author[k] });
        }
      }
      list.replaceChildren(...hits.map((hit) => make("li", {}, make("button", { type: "button", onclick: () => this.add(hit.key) }, make("bdi", {}, hit.name), " ", make("span", {}, hit.author)))));
      const isWaiting = this.loading > 0; // for the names, which come when somebody wants to search
      said.textContent = !words.length || isWaiting || hits.length ? "" : "No other entry has these words in its name or author.";
    };
    this.search = search;
    input.addEventListener("focus", () => this.load());
    input.addEventListener("input", search);
    input.disabled = this.keys.length >= this.most;
    return make("div", { class: "adder" }, input, make("span", { class: "none" }, `${this.keys.length} of up to ${this.most}`), list, said);
  }

  load() {
    if (this.loaded) return;
    this.loaded = true;
    const addresses = this.element.dataset.rows.split(" ").filter(Boolean);
    this.loading = addresses.length;
    const loaded = () => {
      this.loading -= 1;
      this.search();
    };
    for (const address of addresses) document.head.append(make("script", { src: address, onload: loaded, onerror: loaded }));
  }

  add(key) {
    if (this.keys.length < this.most && !this.keys.includes(key)) this.keys = [...this.keys, key];
    this.showAndFocus();
  }

  remove(key) {
    this.keys = this.keys.filter((other) => other !== key);
    this.showAndFocus();
  }

  // The button that was pressed is gone: keys go on where entries are added, or where one can be removed if there is no room.
  async showAndFocus() {
    await this.show();
    (this.element.querySelector(".adder input:enabled") ?? this.element.querySelector(".remove"))?.focus();
  }

  // --- parts ------------------------------------------------------------------------------------------------------

  head(found) {
    return make("thead", {}, make("tr", {}, make("th", { scope: "col" }, ""), ...found.map(({ entry }) => {
      return make("th", { scope: "col" }, this.swatch(this.keys.indexOf(entry.key)), make("a", { href: entry.page }, ...marin.breakable(marin.clean(entry.name, 160))),
        make("button", { type: "button", class: "remove", "aria-label": `Remove ${marin.clean(entry.name, 160)}`, onclick: () => this.remove(entry.key) }, "×"));
    })));
  }

  table(title, found, lines) {
    return make("section", {}, make("h2", {}, title), make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": title },
      make("table", { class: "compare-table" }, make("caption", {}, title), this.head(found), make("tbody", {}, ...lines))));
  }

  figures(found) {
    const lines = [];
    const tracks = new Set(found.map(({ entry }) => entry.track));
    // A track may leave the text open on which bits per byte are, and CORE has two versions; what a row does not state says nothing.
    const stated = (read) => new Set(found.map(({ runs }) => read(runs[0]?.run_info ?? {})).filter((value) => value != null)).size;
    const sets = stated((info) => info.evaluation?.name);
    const kinds = { bits_per_byte: sets, loss: sets, core: stated((info) => (info.core_metric == null ? null : info.core_version)) };
    for (const measure of Object.values(marin.measures)) {
      const values = found.map(({ entry }) => (measure.key === "model_size" ? entry.model_size : entry.values[measure.key]) ?? null);
      const known = values.filter((value) => value !== null);
      if (!known.length) continue;
      // What was scored on different texts has no best, and what is held is none.
      const ranked = values.filter((value, k) => value !== null && !["held", "withdrawn"].includes(found[k].entry.state));
      const best = measure.key === "model_size" || ranked.length < 2 || (measure.key in kinds && (tracks.size > 1 || kinds[measure.key] > 1)) ? null : measure.higher ? Math.max(...ranked) : Math.min(...ranked);
      lines.push(make("tr", {}, make("th", { scope: "row" }, measure.title), ...values.map((value, k) => {
        const { spread, track } = found[k].entry;
        const margin = spread && spread.high !== null && value === spread.mean && track ? ` ±${marin.write.margin(spread.high - spread.mean)}` : "";
        return make("td", { class: value !== null && value === best ? "best" : "" }, value === null ? "—" : measure.text(value) + margin);
      })));
    }
    const texts = [["Author", "author"], ["Date", "date"], ["Hardware", "hardware"], ["Optimizer", "optimizer"], ["Track", "track"], ["Rank", "rank"], ["State", "state"], ["Verified", "reached"]];
    for (const [title, key] of texts) lines.push(make("tr", {}, make("th", { scope: "row" }, title), ...found.map(({ entry }) => {
      const text = key === "reached" ? marin.reached(entry.rung ?? "none", entry.open_rungs) : key === "track" ? this.titleOf(entry.track) : entry[key];
      return make("td", {}, text === null ? "—" : marin.clean(String(text), 200));
    })));
    lines.push(make("tr", {}, make("th", { scope: "row" }, "Runs"), ...found.map(({ entry }) => make("td", {}, entry.spread ? String(entry.spread.n) : "—"))));
    const figures = this.table("Figures", found, lines);
    if (tracks.size > 1) figures.querySelector("h2").after(make("p", { class: "note" }, "These entries are of different tracks, which score different texts by rules of their own: compare costs, not quality."));
    return figures;
  }

  // The menu has the titles of all but the tracks of other runs.
  titleOf(track) {
    return document.querySelector(`.bar nav a[href$="tracks/${track}.html"]`)?.textContent ?? track;
  }

  curves(found) {
    const titles = [...new Set(found.flatMap((document) => document.curves.map((curve) => curve.title)))];
    return titles.map((title) => {
      const lines = found.map((document, k) => ({ k, name: document.entry.name, curve: document.curves.find((curve) => curve.title === title) })).filter(({ curve }) => curve);
      const place = make("div", { class: "curves-together" });
      // As wide as its place, so that its text is as large as the page's.
      new ResizeObserver(() => place.clientWidth && place.replaceChildren(this.picture(title, lines, place.clientWidth))).observe(place);
      const names = lines.map(({ k, name }) => make("span", {}, this.swatch(k), ...marin.breakable(marin.clean(name, 160))));
      return make("section", {}, make("h2", {}, title), make("figure", {}, place, make("figcaption", {}, ...names)));
    });
  }

  swatch(k) {
    const made = make("span", { class: "swatch", "aria-hidden": "true" });
    made.style.background = `var(--family-${k})`;
    return made;
  }

  picture(title, lines, width) {
    const [height, floor] = [320, 292];
    const steps = lines.flatMap(({ curve }) => curve.steps);
    const values = lines.flatMap(({ curve }) => curve.values);
    const [first, last, low, high] = [Math.min(...steps), Math.max(...steps), Math.min(...values), Math.max(...values)];
    const levels = high > low ? marin.ticks({ low, high, isLog: false }, "plain", 6) : [];
    const left = 14 + 7.5 * Math.max(...levels.map(([, text]) => text.length), 2);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} of ${lines.length} ${lines.length === 1 ? "entry" : "entries"}` });
    const x = (step) => left + ((step - first) / (last - first || 1)) * (width - left - 12);
    const y = (value) => 10 + ((high - value) / (high - low || 1)) * (floor - 10);
    for (const [value, text] of levels) svg.append(draw("line", { class: "grid", x1: left, x2: width - 12, y1: y(value), y2: y(value) }), draw("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, text));
    const middle = Math.round((first + last) / 2);
    for (const step of new Set([first, middle, last])) svg.append(draw("text", { class: "tick", x: x(step), y: height - 8, "text-anchor": step === first ? "start" : step === last ? "end" : "middle" }, `step ${marin.whole(step)}`));
    for (const { k, curve } of lines) {
      const line = draw("polyline", { class: "curve", points: curve.steps.map((step, at) => `${x(step).toFixed(1)},${y(curve.values[at]).toFixed(1)}`).join(" ") });
      line.style.stroke = `var(--family-${k})`;
      svg.append(line);
    }
    return svg;
  }

  settings(found) {
    const stated = found.map((document) => {
      const settings = new Map();
      const walk = (prefix, value) => {
        if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) for (const key of Object.keys(value).sort()) walk(`${prefix}.${key}`, value[key]);
        else if (value !== null && value !== undefined && settings.size < 600) settings.set(prefix, typeof value === "string" ? value : JSON.stringify(value));
      };
      const info = document.runs[0]?.run_info ?? {};
      for (const section of ["model_config", "train_config", "resources", "tokenized_dataset", "device_name", "num_chips", "git_commit", "seed"]) walk(section, info[section]);
      return settings;
    });
    // A row of a list states none: that is no difference to those that do.
    const telling = found.filter((_, k) => stated[k].size);
    const flat = stated.filter((settings) => settings.size);
    const silent = found.length - telling.length;
    const silence = silent ? ` ${silent === 1 ? "One of them states" : `${silent} of them state`} no settings.` : "";
    if (!flat.length) return make("p", { class: "note" }, "None of them states its settings.");
    if (silent && flat.length === 1) return make("p", { class: "note" }, `No two of them have settings to compare.${silence}`);
    const names = [...new Set(flat.flatMap((settings) => [...settings.keys()]))].sort();
    const differing = names.filter((name) => new Set(flat.map((settings) => settings.get(name))).size > 1);
    if (!differing.length) return make("p", { class: "note" }, `No setting differs.${silence}`);
    const lines = differing.map((name) => make("tr", {}, make("th", { scope: "row" }, make("code", {}, ...marin.clean(name, 160).split(/(?<=[._])/).flatMap((part) => [part, make("wbr")]))), ...flat.map((settings) => make("td", {}, settings.has(name) ? marin.clean(settings.get(name), 200) : "—"))));
    const made = this.table(`Settings that differ (${differing.length} of ${names.length})`, telling, lines);
    if (silent) made.append(make("p", { class: "note" }, silence.trim()));
    return made;
  }
}

if (place) new Compare(place);
