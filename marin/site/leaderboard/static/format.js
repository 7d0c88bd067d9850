// Figures as marin/site/wording.py writes them; tests/site compares the two in a browser.
const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const raised = (exponent) => [...String(exponent)].map((digit) => SUPERSCRIPTS[digit]).join("");
const grouping = new Intl.NumberFormat("en-US"); // made once: `toLocaleString` looks its own up at every call
// Exact halves go to the even digit, as Python's do; `toFixed` and `toExponential` alone round them up, so that a figure would
// change where scripts run. With a hundred decimals a figure that people compare is written as it is, to its last digit.
const evenly = (exact, digits, rounded) => {
  const dot = exact.indexOf(".");
  const kept = exact.slice(0, digits ? dot + 1 + digits : dot);
  return dot > 0 && /[02468]$/.test(kept) && /^50*(e|$)/.test(exact.slice(dot + 1 + digits)) ? kept : rounded;
};
const fixed = (value, digits) => evenly(value.toFixed(100), digits, value.toFixed(digits));
const scientific = (value, digits) => {
  const [rounded, power] = value.toExponential(digits).split("e");
  return `${evenly(value.toExponential(100), digits, rounded)}e${power}`;
};
marin.whole = (value) => grouping.format(Number(fixed(value, 0)));
const exponential = (value, digits) => scientific(value, digits).replace(/e([+-])(\d)$/, "e$10$2");
// As Python's "#.3g" below a hundred.
const threeDigits = (value) => {
  if (Math.abs(value) >= 99.95) return marin.whole(value);
  const power = value === 0 ? 0 : Number(scientific(value, 2).split("e")[1]);
  return power < -4 ? exponential(value, 2) : fixed(value, 2 - power);
};

marin.write = {
  flops(value) {
    if (value === 0) return "0";
    const [mantissa, exponent] = scientific(value, 2).split("e");
    return `${mantissa}×10${raised(Number(exponent))}`;
  },
  seconds(value) {
    if (Math.abs(value) < 120) return `${threeDigits(value)} s`;
    return Math.abs(value) < 7200 ? `${threeDigits(value / 60)} min` : `${threeDigits(value / 3600)} h`;
  },
  hours: (value) => `${fixed(value / 3600, 2)} h`,
  count(value) {
    for (const [limit, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
      if (Math.abs(value) >= 0.9995 * limit) return `${threeDigits(value / limit)} ${unit}`;
    }
    return String(Number(value.toPrecision(6)));
  },
  percent: (value) => `${fixed(100 * value, 1)} %`,
  plain: (value) => (Math.abs(value) < 1e4 ? fixed(value, 4) : String(Number(scientific(value, 2)))),
  margin(value) {
    const digits = scientific(value, 1).startsWith("1") ? 1 : 0;
    const text = scientific(value, digits);
    return value !== 0 && Number(text.split("e")[1]) < -4 ? exponential(value, digits).replace(".0e", "e") : String(Number(text));
  },
};
marin.raised = raised;

// A figure that somebody typed, such as 1e19, 3.5B, 90 min or 1.5 h; null where it is none. A time without a unit is in the page's.
const FACTORS = { time: { s: 1, sec: 1, min: 60, m: 60, h: 3600, d: 86400 }, count: { k: 1e3, m: 1e6, b: 1e9, t: 1e12 } };
marin.readAmount = (text, unit) => {
  // A comma stands between thousands or nowhere: "1,5 h" would be ten times as much without it.
  const plain = text.toLowerCase().replace(/[\s_]/g, "").replace(/^\d{1,3}(,\d{3})+(?!\d)/, (whole) => whole.replaceAll(",", ""));
  const [, digits, name] = /^([\d.]+(?:e[+-]?\d+)?)([a-z]*)$/.exec(plain) ?? [];
  const factors = { "": unit === "hours" ? 3600 : 1, ...(unit === "seconds" || unit === "hours" ? FACTORS.time : FACTORS.count) };
  const value = Number(digits) * (factors[name] ?? NaN);
  return value > 0 && Number.isFinite(value) ? value : null;
};

// The figures that tables and charts show, as marin/site/leaderboard/measures.py has them.
const measure = (key, title, unit, more) => [key, { key, title, unit, higher: false, log: true, ...more, text: (value) => marin.write[unit](value) }];
marin.measures = Object.fromEntries([
  measure("bits_per_byte", "Bits per byte", "plain"),
  measure("core", "CORE", "plain", { higher: true, log: false }),
  measure("loss", "Validation loss", "plain", { log: false }),
  measure("training_hardware_flops", "Hardware FLOPs", "flops"),
  measure("model_flops", "Model FLOPs", "flops"),
  measure("training_time", "Training time", "seconds"),
  measure("total_tokens", "Tokens", "count"),
  measure("mfu", "MFU", "percent", { higher: true }),
  measure("model_size", "Parameters", "count"),
]);
// On the page of a track whose rules are in hours, all of its times are.
marin.useHours = () => Object.assign(marin.measures, Object.fromEntries([measure("training_time", "Training time", "hours")]));
marin.costs = ["training_hardware_flops", "model_flops", "training_time", "total_tokens"];
marin.levels = { none: 0, parsed: 1, arithmetic: 2, log: 3, "re-evaluated": 4, "re-run": 5 };

// Elements are only ever made this way: every text is a text node, whatever it says.
marin.make = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};
marin.draw = (name, attributes = {}, text = null) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
};

// A text of a stranger on one line, as `clean` of marin/site/wording.py: what is invisible or turns a line around is made visible.
marin.clean = (text, limit = 300) => {
  const line = text.slice(0, 4 * limit).trim().replace(/\s+/g, " ");
  const seen = line.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Cn}]/gu, "\ufffd");
  const characters = [...seen.replace(/(?<=[\p{Mn}\p{Me}]{4})[\p{Mn}\p{Me}]/gu, "\ufffd")];
  return characters.length > limit ? `${characters.slice(0, limit - 1).join("")}…` : characters.join("");
};
// A name that may break after a slash, and in long parts after a dash; its last part stands out.
marin.breakable = (name) => {
  const cut = name.lastIndexOf("/") + 1;
  const part = (text, className) => {
    const span = marin.make("span", { class: className });
    text.split(/(?<=\/)/).forEach((piece, index) => {
      if (index) span.append(marin.make("wbr"));
      const long = piece.replace(/\/$/, "").length > 10;
      (long ? piece.split(/(?<=[_-])(?=[^/])/) : [piece]).forEach((bit, number) => {
        if (number) span.append(marin.make("wbr"));
        span.append(bit);
      });
    });
    return span;
  };
  return cut ? [part(name.slice(0, cut), "group"), marin.make("wbr"), part(name.slice(cut), "leaf")] : [part(name, "leaf")];
};
marin.reached = (rung, open) => (open.length ? `${rung} with ${open.join(" and ")} open` : rung);
marin.ladder = (rung, open) => marin.make("span", { class: "rung" },
  marin.make("span", { class: [`ladder level-${marin.levels[rung] ?? 0}`, ...open.map((below) => `open-${marin.levels[below]}`)].join(" "), "aria-hidden": "true" }),
  marin.make("span", {}, rung, open.length ? marin.make("span", { class: "open-rungs" }, ` with ${open.join(" and ")} open`) : null));
marin.root = document.body.dataset.root;

// Each track's rows come in a script of their own, since a page that was opened from disk may not fetch.
marin.tracks = {};
marin.waiting = [];
marin.addRows = (rows) => {
  marin.tracks[rows.track] = rows;
  marin.waiting.forEach((ready) => ready(rows));
};

// The state of a page lives in its address, so that a link to what one sees is a link to what others see.
marin.readState = () => new URLSearchParams(location.search);
marin.writeState = (state) => {
  const text = String(state).replace(/%2C/g, ",");
  try {
    history.replaceState(null, "", (text ? `?${text}` : location.pathname) + location.hash);
  } catch {
    // Some browsers refuse this for pages from disk; the page works without.
  }
};
