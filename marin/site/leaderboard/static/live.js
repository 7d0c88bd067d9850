// Charts that were drawn while the site was built, made live: their points are focusable, say what they are, and open their entry.
// The drawing is parsed as XML, and of it only shapes, text and plain attributes are taken: nothing in it can run.
const SHAPES = new Set(["svg", "g", "path", "rect", "line", "text", "tspan", "circle", "defs", "clipPath", "linearGradient", "stop", "title"]);
const UNSAFE = /^(on|style$|href$|xlink:|xmlns|src$|id$)/i;

const plain = (element) => {
  const name = element.localName;
  if (!SHAPES.has(name)) return null;
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const { name: key, value } of element.attributes) if (!UNSAFE.test(key) && !/url\(/i.test(value)) made.setAttribute(key, value);
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) made.append(child.data);
    else if (child.nodeType === Node.ELEMENT_NODE) made.append(plain(child) ?? "");
  }
  return made;
};

class LiveChart {
  constructor(figure) {
    this.keys = figure.dataset.keys.split(" "); // a point has the number of its entry among these
    this.picture = figure.querySelector("picture");
    this.image = this.picture.querySelector("img");
    this.place = this.picture.parentElement;
    this.place.classList.add("drawn");
    this.tip = marin.make("div", { class: "tip", hidden: true });
    this.image.addEventListener("load", () => this.draw());
    if (this.image.complete && this.image.naturalWidth) this.draw();
  }

  // Again whenever the picture has chosen another file, for another width or colour scheme.
  async draw() {
    const source = this.image.currentSrc;
    if (!source || source === this.source) return;
    this.source = source;
    const answer = await fetch(source);
    if (!answer.ok || source !== this.image.currentSrc) return;
    const parsed = new DOMParser().parseFromString(await answer.text(), "image/svg+xml").documentElement;
    if (parsed.localName !== "svg") return;
    const svg = plain(parsed);
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", this.image.alt);
    for (const point of svg.querySelectorAll("[aria-label*='|']")) this.enliven(point);
    this.svg?.remove();
    this.svg = svg;
    this.picture.classList.add("replaced");
    this.image.setAttribute("aria-hidden", "true");
    this.place.append(svg, this.tip);
  }

  enliven(point) {
    const [number, name, text] = point.getAttribute("aria-label").split("|");
    point.setAttribute("aria-label", `${name}: ${text}`);
    point.setAttribute("role", "link");
    point.setAttribute("tabindex", "0");
    const open = () => { location.href = `${marin.root}entries/${encodeURIComponent(this.keys[number])}.html`; };
    const show = () => {
      this.tip.replaceChildren(marin.make("b", {}, name), text);
      this.tip.hidden = false;
      const [at, around] = [point.getBoundingClientRect(), this.place.getBoundingClientRect()];
      const left = at.right - around.left + 8;
      this.tip.style.left = `${left + this.tip.offsetWidth > around.width ? Math.max(0, at.left - around.left - this.tip.offsetWidth - 8) : left}px`;
      this.tip.style.top = `${Math.max(0, at.top - around.top - this.tip.offsetHeight - 6)}px`;
    };
    const hide = () => { this.tip.hidden = true; };
    for (const [event, act] of [["pointerenter", show], ["focus", show], ["pointerleave", hide], ["blur", hide], ["click", open]]) point.addEventListener(event, act);
    point.addEventListener("keydown", (event) => {
      if (event.key === "Enter") open();
      else if (event.key === "Escape") hide();
    });
  }
}

// Pictures further down wait for what is in sight, not for somebody to come to them: a page that is printed has them all.
addEventListener("load", () => {
  for (const image of document.querySelectorAll('img[loading="lazy"]')) image.loading = "eager";
});

// A page that is opened from disk may not read other files: there the pictures stay pictures.
if (location.protocol !== "file:") for (const figure of document.querySelectorAll("figure.live")) new LiveChart(figure);
