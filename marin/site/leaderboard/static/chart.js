// The frontier chart where scripts run: any cost on the x axis, any day, a budget, and what the table shows.
// Points are on a canvas, so that ten thousand of them follow a filter at once; axes and names are SVG on top of it.
const TIMES = [[1, "1 s"], [10, "10 s"], [30, "30 s"], [60, "1 min"], [120, "2 min"], [300, "5 min"], [600, "10 min"], [1200, "20 min"],
  [1800, "30 min"], [3600, "1 h"], [7200, "2 h"], [14400, "4 h"], [28800, "8 h"], [57600, "16 h"], [86400, "1 d"], [172800, "2 d"],
  [345600, "4 d"], [691200, "8 d"], [1382400, "16 d"], [2764800, "32 d"]];

const linearTicks = (low, high, most) => {
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = [1, 2, 5, 10, 20].map((factor) => factor * power).find((size) => (high - low) / size <= most);
  const first = Math.ceil(low / step); // so large, where a stranger's figures differ in their last digit alone, that 1 more is the same
  const ticks = Array.from({ length: most + 1 }, (_, k) => (first + k) * step).filter((value) => value <= high);
  return [...new Set(ticks.map((value) => Number(value.toPrecision(10))))];
};

const scaleOf = (values, isLog, pixels, pad) => {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || (isLog && !(value > 0))) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  const to = isLog ? Math.log : (value) => value;
  const from = isLog ? Math.exp : (value) => value;
  const margin = Math.max(pad * (to(high) - to(low)), isLog ? 0.06 : Math.abs(high) * 0.01 || 1);
  const [start, end] = [to(low) - margin, to(high) + margin];
  return { low: from(start), high: from(end), isLog, at: (value) => ((to(value) - start) / (end - start)) * pixels, back: (pixel) => from(start + (pixel / pixels) * (end - start)) };
};

// How far those without a rank may lie from the others, of which these are the values: no refuted figure may flatten the chart.
const reachOf = (values, isLog) => {
  const known = values.filter((value) => value != null && (!isLog || value > 0));
  if (!known.length) return (value) => value;
  const [low, high] = known.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  const room = isLog ? Math.exp(Math.max(Math.log(high / low) / 4, 0.1)) : Math.max((high - low) / 4, 0.05 * Math.abs(high));
  const [start, end] = isLog ? [low / room, high * room] : [low - room, high + room];
  return (value) => (isLog && !(value > 0) ? value : Math.min(Math.max(value, start), end));
};

// Large numbers as powers of ten, which have room beside an axis.
const plainly = (value) => (Math.abs(value) < 1e6 ? String(value) : value.toExponential().replace("+", ""));

marin.ticks = (scale, unit, most) => {
  if (unit === "seconds" || unit === "hours") {
    const inside = TIMES.filter(([value]) => value >= scale.low && value <= scale.high);
    if (inside.length > 2) return inside.filter((_, k) => k % Math.ceil(inside.length / most) === 0);
    const [size, name] = unit === "hours" || scale.high >= 7200 ? [3600, "h"] : scale.high >= 120 ? [60, "min"] : [1, "s"];
    return linearTicks(scale.low / size, scale.high / size, most).map((value) => [value * size, `${value} ${name}`]);
  }
  if (!scale.isLog || scale.high / scale.low < 4) {
    return linearTicks(scale.low, scale.high, most).map((value) => [value, unit === "plain" ? plainly(value) : marin.write[unit](value)]);
  }
  const decades = Math.log10(scale.high / scale.low);
  const factors = decades > 2.5 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5];
  const stride = Math.max(1, Math.ceil((decades * factors.length) / most));
  const ticks = [];
  for (let exponent = Math.floor(Math.log10(scale.low)); exponent <= Math.ceil(Math.log10(scale.high)); exponent += stride) {
    for (const factor of factors) {
      const value = Number(`${factor}e${exponent}`);
      if (value < scale.low || value > scale.high) continue;
      ticks.push([value, unit === "plain" ? plainly(value) : unit === "count" ? marin.write.count(value) : `${factor > 1 ? `${factor}×` : ""}10${marin.raised(exponent)}`]);
    }
  }
  return ticks;
};

marin.Chart = class {
  constructor(figure, rows, quality, cost, onPoint) {
    Object.assign(this, { figure, rows, quality: marin.measures[quality], cost: marin.measures[cost], onPoint });
    this.gate = figure.dataset.gate ? Number(figure.dataset.gate) : null; // what an entry must reach
    this.isVisible = new Uint8Array(rows.key.length).fill(1);
    this.drawn = [];
    this.lit = -1;
    this.budget = null;
    this.day = null;
    this.days = [...new Set(rows.date.filter((date) => date !== null))].sort();
    this.canvas = marin.make("canvas", { "aria-hidden": "true" });
    this.under = marin.draw("svg", { "aria-hidden": "true" });
    this.svg = marin.draw("svg", { "aria-hidden": "true" });
    this.tip = marin.make("div", { class: "tip", hidden: true });
    this.said = marin.make("span", { class: "hidden", role: "status" });
    this.plot = marin.make("div", {
      class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart", id: "plot",
    }, this.under, this.canvas, this.svg, this.tip, this.said);
    figure.querySelector(".static").replaceWith(this.plot);
    figure.querySelector(".key.earlier")?.remove(); // here a slider shows the earlier days
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    // A finger that is lifted has left the chart; what it tapped is shown on, and a second tap on it opens its entry.
    let tapped = -1;
    this.plot.addEventListener("pointerdown", () => { tapped = this.lit; });
    this.plot.addEventListener("pointerleave", (event) => this.byKey || event.pointerType === "touch" || this.light(-1, true));
    this.plot.addEventListener("click", (event) => {
      const index = this.nearest(event);
      if (event.pointerType === "touch" && index !== tapped) {
        this.byKey = false;
        this.light(index, true);
      } else if (index >= 0) location.href = `${marin.root}entries/${rows.key[index]}.html`;
    });
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => {
      this.byKey = false;
      this.light(-1, true);
    });
    new ResizeObserver(() => this.redraw()).observe(this.plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  // The next frame draws, however often something changes before it.
  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.render();
    });
  }

  // The entries that a mask keeps, all where it is null.
  show(mask) {
    if (mask) this.isVisible.set(mask);
    else this.isVisible.fill(1);
    this.redraw();
  }

  isHeld(index) {
    return this.rows.state[index] === "held" || this.rows.state[index] === "withdrawn";
  }

  counts(index) {
    const { date } = this.rows;
    return !this.isHeld(index) && (this.day === null || (date[index] !== null && date[index] <= this.day));
  }

  coordinates() {
    const xs = this.rows.measures[this.cost.key] ?? [];
    const ys = this.rows.measures[this.quality.key] ?? [];
    return [xs, ys];
  }

  // Those that no other beats, by cost, on the axis and of the day that are shown.
  frontier() {
    const [xs, ys] = this.coordinates();
    const sign = this.quality.higher ? -1 : 1;
    const kept = [];
    let best = Infinity;
    for (const index of this.byCost) {
      const isTwin = sign * ys[index] === best && xs[index] === xs[kept.at(-1)]; // equal points share the fate
      if (!this.isVisible[index] || !(sign * ys[index] < best || isTwin) || !this.counts(index)) continue;
      best = sign * ys[index];
      kept.push(index);
    }
    return kept;
  }

  // Scales, axes and the place of every point: the same until the axis or the size is another one. False where nothing can be drawn.
  arrange() {
    const width = this.plot.clientWidth;
    const made = `${this.cost.key} ${width}`;
    if (made === this.made) return this.fits;
    const [costs, qualities] = this.coordinates();
    const counted = (values) => values.filter((_, index) => !this.isHeld(index));
    const [nearX, nearY] = [reachOf(counted(costs), true), reachOf(counted(qualities), this.quality.log)];
    const placed = (values, near) => values.map((value, index) => (value != null && this.isHeld(index) ? near(value) : value));
    const [xs, ys] = [placed(costs, nearX), placed(qualities, nearY)];
    const narrow = width < 560;
    const height = narrow ? 320 : 430;
    this.plot.style.height = `${height}px`;
    this.plot.style.setProperty("--shape", `${width} / ${height}`); // on paper
    const everything = this.rows.key.map((_, index) => index).filter((index) => xs[index] > 0 && ys[index] != null);
    const box = { left: 0, right: 14, top: 12, bottom: 46 };
    const tall = height - box.top - box.bottom;
    this.y = scaleOf([...everything.map((index) => ys[index]), this.gate], this.quality.log, tall, 0.08);
    const levels = this.y ? marin.ticks(this.y, "plain", narrow ? 6 : 8) : [];
    box.left = 30 + 7 * Math.max(...levels.map(([, text]) => text.length), 2); // the axis's title stands left of the longest
    const inner = width - box.left - box.right;
    this.x = scaleOf(everything.map((index) => xs[index]), true, inner, 0.04);
    this.under.replaceChildren();
    this.made = made;
    this.fits = Boolean(this.x && this.y && inner >= 50);
    if (!this.fits) return false;
    Object.assign(this, { box, height, tall, everything });
    const sign = this.quality.higher ? -1 : 1;
    this.byCost = [...everything].sort((a, b) => xs[a] - xs[b] || sign * (ys[a] - ys[b]));
    this.px = new Float64Array(xs.length);
    this.py = new Float64Array(xs.length);
    for (const index of everything) {
      this.px[index] = box.left + this.x.at(xs[index]);
      this.py[index] = box.top + tall - this.y.at(ys[index]);
    }
    const { draw } = marin;
    for (const layer of [this.under, this.svg]) layer.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const [value, text] of levels) {
      const at = box.top + tall - this.y.at(value);
      this.under.append(draw("line", { class: "grid", x1: box.left, x2: width - box.right, y1: at, y2: at }), draw("text", { x: box.left - 8, y: at + 4, "text-anchor": "end" }, text));
    }
    for (const [value, text] of marin.ticks(this.x, this.cost.unit, narrow ? 4 : 10)) {
      const at = box.left + this.x.at(value);
      this.under.append(draw("line", { class: "grid", x1: at, x2: at, y1: box.top, y2: box.top + tall }), draw("text", { x: at, y: box.top + tall + 18, "text-anchor": "middle" }, text));
    }
    if (this.gate !== null) {
      const at = box.top + tall - this.y.at(this.gate);
      this.under.append(draw("line", { class: "gate", x1: box.left, x2: width - box.right, y1: at, y2: at }), draw("text", { x: width - box.right - 4, y: at - 5, "text-anchor": "end" }, `gate ${this.gate}`));
    }
    this.under.append(draw("text", { class: "title", x: box.left + inner / 2, y: height - 6, "text-anchor": "middle" }, `${this.cost.title} (log)`));
    const title = draw("text", { class: "title", x: 0, y: 0, "text-anchor": "middle", transform: `translate(11 ${box.top + tall / 2}) rotate(-90)` }, `${this.quality.title} (${this.quality.higher ? "higher" : "lower"} is better)`);
    this.under.append(title);
    return true;
  }

  render() {
    this.svg.replaceChildren();
    this.drawn = [];
    if (!this.arrange()) return this.describe(0, 0);
    const { draw } = marin;
    const { box, height, tall, everything } = this;
    const width = this.plot.clientWidth;
    const narrow = width < 560;
    const style = getComputedStyle(this.figure);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const px = (index) => this.px[index];
    const py = (index) => this.py[index];

    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const ink = this.canvas.getContext("2d");
    ink.scale(ratio, ratio);
    const frontier = this.frontier();
    const onFrontier = new Set(frontier);
    const radius = narrow ? 3 : 3.6;
    const many = everything.length > 2000;
    const paint = (indices, fill, alpha, size) => {
      ink.fillStyle = fill;
      ink.globalAlpha = alpha;
      for (const index of indices) {
        if (many) ink.fillRect(px(index) - 1.5, py(index) - 1.5, 3, 3);
        else {
          ink.beginPath();
          ink.arc(px(index), py(index), size, 0, 7);
          ink.fill();
        }
      }
    };
    const faint = [];
    const plain = [];
    const held = [];
    for (const index of everything) {
      if (onFrontier.has(index)) continue;
      if (this.day !== null && !(this.rows.date[index] !== null && this.rows.date[index] <= this.day)) continue;
      if (!this.isVisible[index]) faint.push(index);
      else (this.counts(index) ? plain : held).push(index);
    }
    paint(faint, colour("point"), 0.12, radius);
    paint(plain, colour("point"), many ? 0.35 : 0.5, radius);
    ink.strokeStyle = colour("held");
    ink.globalAlpha = 0.9;
    ink.lineWidth = 2;
    for (const index of held) {
      const [x, y] = [px(index), py(index)];
      ink.beginPath();
      ink.moveTo(x - 3.5, y - 3.5); ink.lineTo(x + 3.5, y + 3.5); ink.moveTo(x + 3.5, y - 3.5); ink.lineTo(x - 3.5, y + 3.5);
      ink.stroke();
    }
    const path = frontier.map((index, k) => (k ? `H${px(index).toFixed(1)}V${py(index).toFixed(1)}` : `M${px(index).toFixed(1)} ${py(index).toFixed(1)}`)).join("");
    ink.globalAlpha = 1;
    ink.strokeStyle = colour("accent");
    ink.lineWidth = 1.9;
    if (path) ink.stroke(new Path2D(path));
    for (const index of frontier) {
      ink.beginPath();
      ink.arc(px(index), py(index), radius + 1, 0, 7);
      ink.fillStyle = colour("accent");
      ink.fill();
      ink.strokeStyle = colour("surface");
      ink.lineWidth = 1.2;
      ink.stroke();
    }
    this.names(frontier, px, py, width, box.top + tall, [...frontier, ...plain].slice(0, 1500));
    if (this.budget !== null && this.budget >= this.x.low && this.budget <= this.x.high) {
      const at = box.left + this.x.at(this.budget);
      this.svg.append(draw("line", { class: "budget", x1: at, x2: at, y1: box.top, y2: box.top + tall }));
    }
    this.line = frontier;
    this.drawn = [...frontier, ...plain, ...held];
    this.isDrawn = new Uint8Array(this.isVisible.length);
    for (const index of this.drawn) this.isDrawn[index] = 1;
    this.describe(this.drawn.length, frontier.length);
    this.ring = draw("circle", { class: "ring", r: radius + 4, cx: -99, cy: -99 });
    this.svg.append(this.ring);
    this.light(this.lit, false);
  }

  // What the chart says of itself: as it was built, or what is shown in its place.
  describe(count, best) {
    const { figure, cost, quality } = this;
    const isAsBuilt = cost.key === figure.dataset.cost && this.day === null && !this.isVisible.includes(0);
    const text = isAsBuilt ? figure.dataset.text
      : `Scatter chart of ${cost.title.toLowerCase()} against ${quality.title.toLowerCase()} for ${count} ${count === 1 ? "entry" : "entries"}${this.day ? ` as of ${this.day}` : ""}. ${best} on the Pareto frontier.`;
    this.plot.setAttribute("aria-label", `${text} Left and right arrow keys go along the frontier, Enter opens an entry.`);
  }

  // Names of the frontier below and left of their points where they have room, the ends first.
  names(frontier, px, py, width, floor, points) {
    const taken = points.map((index) => [px(index) - 5, py(index) - 5, px(index) + 5, py(index) + 5]);
    frontier.forEach((index, k) => {
      const next = frontier[k + 1];
      if (next !== undefined) taken.push([px(index) + 6, py(index) - 1, px(next), py(index) + 1], [px(next) - 1, Math.min(py(index), py(next)), px(next) + 1, Math.max(py(index), py(next)) - 6]);
    });
    const order = [...new Set([frontier[frontier.length - 1], frontier[0], ...frontier.filter((_, k) => k % 4 === 2), ...frontier.filter((_, k) => k % 2 === 1), ...frontier])].filter((index) => index !== undefined);
    let room = width < 560 ? 3 : 24;
    for (const index of order) {
      if (!room) break;
      const name = this.rows.name[index];
      const parts = name.split("/");
      const tail = parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : name;
      const text = tail.length > 34 ? `…${tail.slice(-33)}` : tail;
      const wide = 6.8 * text.length;
      place: for (const far of [10, 18, 28]) {
        for (const [side, drop] of [[-1, 0.5], [1, 0.5], [-1, 1.1], [1, 1.1]]) {
          const x = px(index) + side * far;
          const y = py(index) + far * drop;
          const rectangle = [side < 0 ? x - wide - 4 : x - 4, y - 8, side < 0 ? x + 4 : x + wide + 4, y + 8]; // and a space to the next
          if (rectangle[0] < this.box.left - 6 || rectangle[2] > width - 8 || rectangle[3] > floor) continue;
          if (taken.some((other) => other[0] < rectangle[2] && rectangle[0] < other[2] && other[1] < rectangle[3] && rectangle[1] < other[3])) continue;
          taken.push(rectangle);
          this.svg.append(marin.draw("text", { class: "name", x, y: y + 4, "text-anchor": side < 0 ? "end" : "start" }, text));
          room -= 1;
          break place;
        }
      }
    }
  }

  nearest(event) {
    const { left, top } = this.plot.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    let best = -1;
    let least = 18 * 18;
    for (const index of this.drawn) {
      const distance = (this.px[index] - x) ** 2 + (this.py[index] - y) ** 2;
      if (distance < least) [best, least] = [index, distance];
    }
    return best;
  }

  point(event) {
    // A page that scrolls under a resting pointer asks for nothing.
    if (this.byKey && !event.movementX && !event.movementY) return;
    this.byKey = false;
    this.light(this.nearest(event), true);
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 };
    if (event.key in steps && this.line?.length) {
      this.byKey = true;
      const at = this.line.indexOf(this.lit);
      const next = at < 0 ? (steps[event.key] > 0 ? 0 : this.line.length - 1) : at + steps[event.key];
      this.light(this.line[Math.min(Math.max(next, 0), this.line.length - 1)], true);
      this.said.textContent = this.tip.textContent;
      event.preventDefault();
    } else if (event.key === "Enter" && this.lit >= 0) location.href = `${marin.root}entries/${this.rows.key[this.lit]}.html`;
    else if (event.key === "Escape") this.light(-1, true);
  }

  // Highlights an entry here and, where the pointer asked for it, in the table.
  light(index, tell) {
    this.lit = index;
    const found = index >= 0 && this.drawn.length && this.isDrawn[index] ? [this.px[index], this.py[index]] : null;
    this.plot.style.cursor = found ? "pointer" : "";
    this.tip.hidden = !found;
    if (this.ring) this.ring.setAttribute("cx", found ? found[0] : -99);
    if (this.ring) this.ring.setAttribute("cy", found ? found[1] : -99);
    if (found) {
      const [xs, ys] = this.coordinates();
      const { name, author, date } = this.rows;
      this.tip.replaceChildren(marin.make("b", {}, name[index]), `${this.quality.title} ${this.quality.text(ys[index])} · ${this.cost.text(xs[index])} `,
        marin.make("br"), marin.make("bdi", {}, author[index]), date[index] ? ` · ${date[index]}` : "");
      const wide = this.tip.offsetWidth;
      const left = found[0] + 14 + wide > this.plot.clientWidth ? Math.max(0, found[0] - wide - 14) : found[0] + 14;
      this.tip.style.left = `${left}px`;
      this.tip.style.top = `${Math.max(0, found[1] - this.tip.offsetHeight - 10)}px`;
    }
    if (tell) this.onPoint(index);
  }

  // The best entry that costs at most so much on the axis that is shown, of equal ones the cheapest.
  bestUnder(limit) {
    const [xs, ys] = this.coordinates();
    const sign = this.quality.higher ? -1 : 1;
    let best = -1;
    for (let index = 0; index < this.isVisible.length; index += 1) {
      if (!this.isVisible[index] || !this.counts(index) || !(xs[index] > 0) || xs[index] > limit || ys[index] == null) continue;
      if (best < 0 || sign * ys[index] < sign * ys[best] || (ys[index] === ys[best] && xs[index] < xs[best])) best = index;
    }
    return best;
  }
};
