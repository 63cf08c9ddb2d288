// Offers the other versions of this documentation, when there are any.
document.addEventListener("DOMContentLoaded", () => {
  const versions = window.SLUICE_VERSIONS || [];
  const box = document.querySelector(".version-switch");
  if (!box || versions.length < 2) return;
  const select = box.querySelector("select");
  for (const name of versions) {
    select.add(new Option(name, name, false, name === box.dataset.version));
  }
  box.hidden = false;
  select.addEventListener("change", () => {
    const root = document.documentElement.dataset.content_root || "./";
    window.location.href = `${root}../${select.value}/index.html`;
  });
});
