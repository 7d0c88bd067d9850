"use strict";
// Uploads, which are sent as they are with their progress shown; and buttons that say that they are at work. All else is forms.

const token = document.body.dataset.token;
let sending = 0; // how often files were chosen that are still on their way
let arrived = []; // what came of the files since nothing was on its way

function counted(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

function send(file, area, report) {
  const query = new URLSearchParams({
    name: file.name,
    text_field: area.querySelector(".text-field").value.trim(),
    split: area.querySelector(".split").value,
  });
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    const bar = document.createElement("progress");
    bar.max = 1;
    bar.setAttribute("aria-label", `Upload of ${file.name}`);
    report.textContent = `${file.name}: sending `;
    report.append(bar);
    request.upload.addEventListener("progress", (event) => { if (event.lengthComputable) bar.value = event.loaded / event.total; });
    request.upload.addEventListener("load", () => { report.textContent = `${file.name}: reading its documents…`; });
    request.addEventListener("loadend", () => {
      let answer = {};
      try { answer = JSON.parse(request.responseText); } catch { /* no answer of ours */ }
      if (request.status === 200) {
        const left = answer.left_out ? `, ${counted(answer.left_out, "row")} left out` : "";
        report.textContent = `${file.name}: ${counted(answer.documents, "document")}${left}`;
        resolve(answer.id);
      } else {
        report.className = "wrong";
        report.textContent = `${file.name} was refused: ${answer.problem ?? "the server did not answer; try again"}`;
        resolve(null);
      }
    });
    request.open("POST", `/uploads?${query}`);
    request.setRequestHeader("x-token", token);
    request.setRequestHeader("content-type", "application/octet-stream");
    request.send(file);
  });
}

// A file that was taken in is part of the form at once, whatever is pressed next.
function addToForm(area, id) {
  const input = document.createElement("input");
  Object.assign(input, { type: "hidden", name: area.dataset.role, value: id });
  area.closest("form")?.append(input);
}

// The form is saved, so that nothing that was typed is lost.
function showTaken(area) {
  const form = area.closest("form");
  if (form) form.requestSubmit(document.getElementById("save")); else location.reload();
}

function offerToGoOn(area, reports) {
  if (reports.querySelector("button")) return;
  const more = reports.appendChild(document.createElement("button"));
  more.type = "button";
  more.textContent = "Go on with what was taken in";
  more.addEventListener("click", () => showTaken(area));
}

async function uploadAll(area, files) {
  const reports = area.querySelector(".reports");
  if (!reports.dataset.sending) reports.replaceChildren();
  if (!sending) arrived = [];
  const own = arrived;
  reports.dataset.sending = "yes";
  sending += 1;
  for (const file of files) {
    const id = await send(file, area, reports.appendChild(document.createElement("p")));
    if (id) addToForm(area, id);
    own.push({ area, reports, isTaken: id !== null });
  }
  sending -= 1;
  if (sending) return; // loading the page again would break off what is still on its way
  for (const one of own) delete one.reports.dataset.sending;
  if (own.every((one) => one.isTaken)) { showTaken(area); return; }
  for (const one of own) if (one.isTaken) offerToGoOn(one.area, one.reports);
}

function prepareUpload(area) {
  const input = area.querySelector('input[type="file"]');
  const drop = area.querySelector(".drop");
  area.hidden = false;
  const start = (files) => { if (files.length) uploadAll(area, [...files]).finally(() => { input.value = ""; }); };
  input.addEventListener("change", () => start(input.files));
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); start(event.dataTransfer.files); });
  start(input.files);  // chosen before this script was there
}

document.querySelectorAll(".upload").forEach(prepareUpload);
window.addEventListener("beforeunload", (event) => { if (sending) event.preventDefault(); });  // the browser asks first
document.querySelectorAll("form").forEach((form) => form.addEventListener("submit", (event) => {
  if (["try", "write"].includes(event.submitter?.value)) event.submitter.textContent = "Asking…";
}));
document.getElementById("problems")?.focus();
