"use strict";
const box = document.getElementById("filter");
if (box) {
  const rows = [...document.querySelectorAll("#norms tbody tr")];
  const filter = () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    document.getElementById("shown").value = shown + " of " + rows.length;
  };
  box.closest("p").hidden = false;
  box.addEventListener("input", filter);
  filter();
  addEventListener("hashchange", () => { box.value = ""; filter(); });
}
