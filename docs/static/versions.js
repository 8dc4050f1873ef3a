/* A list of the versions of the site, below its name, where `docs/publish.py` has put several beside each other. */
document.addEventListener("DOMContentLoaded", async () => {
  const root = new URL(document.documentElement.dataset.content_root ?? "./", location.href);
  const found = await fetch(new URL("../versions.json", root)).catch(() => null);
  if (!found?.ok) return;
  const versions = await found.json();
  const here = DOCUMENTATION_OPTIONS.VERSION;
  const list = document.createElement("select");
  list.className = "versions";
  list.ariaLabel = "Version";
  for (const version of versions) list.add(new Option(version, version, false, version === here));
  list.onchange = () => {
    const page = location.href.slice(root.href.length);
    const other = new URL(`../${list.value}/`, root);
    fetch(new URL(page, other), { method: "HEAD" })
      .then((answer) => { location.href = answer.ok ? new URL(page, other) : other; });
  };
  document.querySelector(".sidebar-brand")?.after(list);
});
