// Which entries a track's table shows, and in which order. What a column or a word says of each row is worked out once and kept as
// numbers, so that a sort is a walk along an order and a filter a product of masks, however many rows there are.
const TEXTS = ["name", "description", "hardware", "optimizer", "author", "date", "git_commit"];
const MOST_WORDS = 32;

marin.Lookup = class {
  constructor(rows, quality) {
    this.rows = rows;
    this.quality = quality;
    this.count = rows.key.length;
    this.orders = new Map();
    this.columns = new Map();
    this.words = new Map();
    this.asked = "";
    this.mask = null;
  }

  values(column) {
    const { rows } = this;
    if (column === "quality") return rows.measures[this.quality];
    if (column === "rung") return rows.rung.map((rung) => marin.levels[rung]);
    if (column === "rank" || TEXTS.includes(column)) return rows[column];
    return rows.measures[column];
  }

  // --- orders -----------------------------------------------------------------------------------------------------

  // The entries in ascending order of a column, and those of which it is unknown.
  order(column) {
    if (this.orders.has(column)) return this.orders.get(column);
    const values = this.values(column) ?? new Array(this.count).fill(null);
    const known = [];
    const unknown = [];
    for (let index = 0; index < this.count; index += 1) (values[index] === null ? unknown : known).push(index);
    if (typeof values[known[0]] === "string") {
      const folded = values.map((value) => (value === null ? null : value.toLowerCase()));
      known.sort((a, b) => (folded[a] < folded[b] ? -1 : folded[a] > folded[b] ? 1 : a - b));
    } else {
      // A native sort of numbers alone is several times faster than one with a comparison of its own.
      const places = new Map();
      for (const index of known) {
        const list = places.get(values[index]);
        if (list) list.push(index);
        else places.set(values[index], [index]);
      }
      const sorted = Float64Array.from(places.keys()).sort();
      known.length = 0;
      for (const value of sorted) for (const index of places.get(value)) known.push(index);
    }
    const made = { known: Int32Array.from(known), unknown: Int32Array.from(unknown) };
    this.orders.set(column, made);
    return made;
  }

  // The entries that a mask keeps (all where it is null), in the order of a column, unknown ones last either way.
  sorted(column, isDown, mask) {
    const { known, unknown } = this.order(column);
    const kept = new Int32Array(this.count);
    let size = 0;
    const take = (index) => {
      kept[size] = index;
      size += mask === null ? 1 : mask[index];
    };
    if (isDown) for (let k = known.length - 1; k >= 0; k -= 1) take(known[k]);
    else for (let k = 0; k < known.length; k += 1) take(known[k]);
    for (let k = 0; k < unknown.length; k += 1) take(unknown[k]);
    return kept.subarray(0, size);
  }

  // --- filters ----------------------------------------------------------------------------------------------------

  // All that is searched, a line an entry, and where each line begins: one search finds a word in every row.
  text() {
    if (this.lines) return this.lines;
    const { rows } = this;
    const starts = new Int32Array(this.count + 1);
    const lines = rows.key.map((_, k) => {
      const line = [...TEXTS.map((text) => rows[text]?.[k]), rows.rung[k], rows.state[k]].filter(Boolean).join(" ").toLowerCase();
      starts[k + 1] = starts[k] + line.length + 1;
      return line;
    });
    this.lines = { whole: lines.join("\n"), starts };
    return this.lines;
  }

  // For each row whether a word, which has no white space, stands in it.
  having(word) {
    const found = this.words.get(word);
    if (found) return found;
    const { whole, starts } = this.text();
    const made = new Uint8Array(this.count);
    let row = 0;
    for (let at = whole.indexOf(word); at >= 0; at = row < this.count ? whole.indexOf(word, starts[row]) : -1) {
      while (starts[row + 1] <= at) row += 1;
      made[row] = 1;
      row += 1;
    }
    if (this.words.size >= MOST_WORDS) this.words.clear();
    this.words.set(word, made);
    return made;
  }

  // A column of texts or of small numbers as its different values and, for each row, which of them it has.
  coded(column) {
    if (this.columns.has(column)) return this.columns.get(column);
    const places = new Map();
    const codes = Int32Array.from(this.rows[column], (value) => {
      if (!places.has(value)) places.set(value, places.size);
      return places.get(value);
    });
    const made = { codes, distinct: [...places.keys()] };
    this.columns.set(column, made);
    return made;
  }

  // The rows that a state of the page asks for: 1 or 0 a row, or null for all. The same array until the question changes.
  matching(state) {
    const asked = JSON.stringify(["q", "author", "family", "optimizer", "hardware", "rung", "size", "from", "to", "frontier"].map((name) => state.get(name) || ""));
    if (asked === this.asked) return this.mask;
    this.asked = asked;
    const [q, author, family, optimizer, hardware, rung, size, from, to, frontier] = JSON.parse(asked);
    let mask = null;
    const kept = () => (mask ??= new Uint8Array(this.count).fill(1));
    const also = (test) => {
      const all = kept();
      for (let k = 0; k < all.length; k += 1) all[k] &= test(k);
    };
    const where = (column, holds) => {
      const { codes, distinct } = this.coded(column);
      const held = Uint8Array.from(distinct, (value) => (value !== null && holds(value) ? 1 : 0));
      also((k) => held[codes[k]]);
    };
    for (const word of q.toLowerCase().split(/\s+/).filter(Boolean)) {
      const found = this.having(word);
      also((k) => found[k]);
    }
    for (const [column, wanted] of Object.entries({ author, family, optimizer, hardware })) if (wanted) where(column, (value) => value === wanted);
    if (rung) {
      where("rung", (value) => marin.levels[value] >= marin.levels[rung]);
      also((k) => (this.rows.open[k].includes(rung) ? 0 : 1)); // a rung below the highest may be open
    }
    const [low, high, ...more] = size.split("-").map(Number);
    if (high !== undefined && !more.length) {
      const sizes = this.rows.measures.model_size ?? [];
      also((k) => (sizes[k] != null && sizes[k] >= low && sizes[k] < high ? 1 : 0));
    }
    if (from) where("date", (day) => day >= from);
    if (to) where("date", (day) => day <= to);
    if (frontier) where("frontier", Boolean);
    this.mask = mask;
    return mask;
  }

  // What is left to be worked out beforehand, one piece a call; false when nothing is left.
  prepare(columns) {
    const left = columns.find((column) => !this.orders.has(column));
    if (left !== undefined) this.order(left);
    else if (!this.lines) this.text();
    else return false;
    return true;
  }
};
