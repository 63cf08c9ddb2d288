// Lets site.css show wide tables row by row on a phone, with the name of the column in each cell.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table.docutils")) {
    const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    if (names.length < 3) continue;
    table.classList.add("stacked");
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, index) => { cell.dataset.column = names[index] || ""; });
    }
  }
});
