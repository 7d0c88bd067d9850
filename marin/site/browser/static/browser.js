"use strict";
// Two things that need a script: parts of a page that follow a run, and reading a value off a curve. All else works without.

const PAUSE = 2000;
const SVG = "http://www.w3.org/2000/svg";

function readable(chart) {
  const points = JSON.parse(chart.dataset.points);
  if (!points.length) return;
  const height = chart.viewBox.baseVal.height;
  const line = chart.appendChild(document.createElementNS(SVG, "line"));
  const text = chart.appendChild(document.createElementNS(SVG, "text"));
  line.setAttribute("class", "cursor");
  text.setAttribute("class", "reading");
  const hide = () => { line.setAttribute("visibility", "hidden"); text.setAttribute("visibility", "hidden"); };
  hide();
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const width = chart.viewBox.baseVal.width;
    const x = (event.clientX - box.left) / box.width * width;
    let best = points[0];
    for (const point of points) if (Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
    line.setAttribute("x1", best[0]); line.setAttribute("x2", best[0]);
    line.setAttribute("y1", 10); line.setAttribute("y2", height - 30);
    const left = best[0] > width * 0.6;
    text.setAttribute("x", best[0] + (left ? -8 : 8));
    text.setAttribute("y", Math.max(24, Math.min(best[1] - 8, height - 44)));
    text.setAttribute("text-anchor", left ? "end" : "start");
    text.textContent = `${best[3]} at step ${best[2]}`;
    line.setAttribute("visibility", "visible"); text.setAttribute("visibility", "visible");
  });
}

function prepare(part) {
  part.querySelectorAll("svg.chart[data-points]").forEach(readable);
  part.querySelectorAll("[data-follow]").forEach((log) => { log.scrollTop = log.scrollHeight; });
}

// The controls in `holder` that are the same as one of another time, by where they lead or what they are called.
const CONTROLS = "a, button, summary, [tabindex]";
function twins(holder, control) {
  const words = (one) => one.getAttribute("aria-label") ?? one.textContent.trim();
  const called = (one) => `${one.localName} ${one.getAttribute("href") ?? one.parentElement?.dataset.key ?? words(one)}`;
  const name = called(control);
  return [...holder.querySelectorAll(CONTROLS)].filter((one) => called(one) === name);
}

// The new part is escaped markup from our own server. What a person opened, scrolled or focused stays as it was.
function replace(holder, text) {
  const part = new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
  if (!part) return;
  const opened = new Set([...holder.querySelectorAll("details[open][data-key]")].map((item) => item.dataset.key));
  part.querySelectorAll("details[data-key]").forEach((item) => { item.open = opened.has(item.dataset.key); });
  const focused = holder.contains(document.activeElement) ? document.activeElement : null;
  const place = focused ? twins(holder, focused).indexOf(focused) : -1;
  const scrolls = new Map([...holder.querySelectorAll(".output, .scroll")].map((item) => [item.getAttribute("aria-label"), {
    top: item.scrollTop, left: item.scrollLeft, end: item.scrollHeight - item.scrollTop - item.clientHeight < 8,
  }]));
  holder.replaceChildren(part);
  prepare(part);
  holder.querySelectorAll(".output, .scroll").forEach((item) => {
    const before = scrolls.get(item.getAttribute("aria-label"));
    if (before && !(before.end && "follow" in item.dataset)) { item.scrollTop = before.top; item.scrollLeft = before.left; }
  });
  // Where it is gone, no other control takes its place: who presses Stop must not press Resume.
  if (focused) (twins(holder, focused)[place] ?? document.getElementById("content")).focus({ preventScroll: true });
}

async function follow(holder) {
  const note = document.createElement("p");
  note.className = "stale";
  note.setAttribute("role", "status");
  let last = "";
  let running = holder.dataset.running === "yes";
  while (running) {
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
    if (document.hidden) continue;
    try {
      const answer = await fetch(holder.dataset.live, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      note.remove();
      if (text === last) continue;
      last = text;
      replace(holder, text);
      running = holder.firstElementChild.dataset.running === "yes";
      holder.dataset.running = running ? "yes" : "no";
    } catch {
      note.textContent = "The server does not answer; what you see is from before. Trying again.";
      if (!note.isConnected) holder.before(note);
    }
  }
}

prepare(document);
document.querySelectorAll("[data-live]").forEach(follow);
