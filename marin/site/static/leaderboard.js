"use strict";
// Sorting and filtering. Without this the page is the same table, in the order of the ranks.
const SEARCHED = ".run, .hardware, .author, .date, .badge";
for (const section of document.querySelectorAll("section")) {
  const table = section.querySelector("table.board");
  if (!table) continue;
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  const rows = [...body.rows].map((element, position) => ({ element, position, text: null }));

  const sortBy = (column, direction) => {
    const numeric = headers[column].dataset.kind === "num";
    for (const row of rows) {
      const value = row.element.cells[column].dataset.sort;
      row.key = value === undefined ? null : numeric ? Number(value) : value.toLowerCase();
    }
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.position - b.position;
      return direction * (a.key < b.key ? -1 : a.key > b.key ? 1 : 0) || a.position - b.position;
    });
    body.append(...rows.map((row) => row.element));
    headers.forEach((header, index) => {
      if (index === column) header.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else header.removeAttribute("aria-sort");
    });
  };

  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    button.addEventListener("click", () => sortBy(column, header.getAttribute("aria-sort") === "ascending" ? -1 : 1));
  });

  const filter = section.querySelector(".filter");
  const input = filter.querySelector("input[type=search]");
  const frontier = filter.querySelector(".only-frontier");
  const shown = filter.querySelector(".shown");
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      row.text ??= [...row.element.querySelectorAll(SEARCHED)].map((cell) => cell.textContent).join(" ").toLowerCase();
      const visible = words.every((word) => row.text.includes(word)) &&
        (!frontier.checked || row.element.classList.contains("frontier"));
      row.element.hidden = !visible;
      count += visible;
    }
    shown.textContent = count === rows.length ? `${count} runs` : `${count} of ${rows.length} runs`;
  };
  input.addEventListener("input", apply);
  frontier.addEventListener("change", apply);
  apply();
  filter.hidden = false;
}
