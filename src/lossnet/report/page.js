"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const text = row.cells[column].dataset.value;
    return text === undefined ? undefined : column === 0 ? text : Number(text);
  };
  heads.forEach((head, column) => {
    head.firstElementChild.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      // Names start with A, numbers with the largest; another click turns it round.
      const first = column === 0 ? "ascending" : "descending";
      const second = column === 0 ? "descending" : "ascending";
      const order = before === first ? second : first;
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...table.tBodies[0].rows].sort((one, other) => {
        const a = value(one, column), b = value(other, column);
        if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
        return sign * (column === 0 ? a.localeCompare(b, undefined, {numeric: true}) : a - b);
      });
      table.tBodies[0].append(...rows);
      for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
    });
  });
}
for (const input of document.querySelectorAll("input[data-filters]")) {
  const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
  const count = input.nextElementSibling;
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length}`;
  });
}
