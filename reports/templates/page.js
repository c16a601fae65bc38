"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const body = $("cases").tBodies[0];
  const rows = [...body.rows];
  const total = rows.length;
  const packed = new Map([...document.querySelectorAll(".packed")].map((one) => [one.dataset.key, one]));
  const keyOf = (row) => decodeURIComponent(row.querySelector("a").hash.slice("#case=".length));

  // The list

  const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  function filter() {
    const text = $("f-text").value.trim().toLowerCase().split(/\s+/);
    const wanted = ["verdict", "subject", "topology"].map((name) => [name, $("f-" + name).value]);
    const unexpected = $("f-unexpected").checked;
    let shown = 0;
    for (const row of rows) {
      const passes = text.every((word) => words.get(row).includes(word)) &&
        wanted.every(([name, value]) => !value || row.dataset[name] === value) &&
        (!unexpected || row.classList.contains("unexpected-row"));
      row.hidden = !passes;
      shown += passes;
    }
    $("shown").value = `${shown} of ${total} cases`;
    $("none").hidden = shown > 0;
  }
  $("filters").addEventListener("input", filter);
  $("filters").addEventListener("change", filter);  // all that some drivers of a browser send
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("filters").addEventListener("reset", () => requestAnimationFrame(filter));

  const heads = [...$("cases").tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const of = (row) => row.cells[column].textContent.trim();
    const order = new Intl.Collator("en", { numeric: true });
    const numbers = head.classList.contains("number");
    const compare = numbers ? (a, b) => (Number(of(a)) || 0) - (Number(of(b)) || 0) : (a, b) => order.compare(of(a), of(b));
    rows.sort((a, b) => (down ? -1 : 1) * compare(a, b));
    body.append(...rows);
  }));

  // One case

  async function unpacked(key) {
    const text = packed.get(key).textContent;
    if (!text) return "<h2 id='case-title' tabindex='-1'>This run could not be kept</h2><p>Its record was lost; the list has its verdict.</p>";
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  let lastOpened = null;
  async function show() {
    const named = location.hash.startsWith("#case=");
    const key = named ? decodeURIComponent(location.hash.slice("#case=".length)) : "";
    if (!packed.has(key)) {
      $("case").hidden = true;
      $("case-body").replaceChildren();
      $("list").hidden = false;
      if (lastOpened) lastOpened.querySelector("a").focus();
      lastOpened = null;
      return;
    }
    const html = await unpacked(key);
    $("case-body").innerHTML = html;
    $("list").hidden = true;
    $("case").hidden = false;
    neighbours(key);
    timeline();
    window.scrollTo(0, 0);
    $("case-title").focus({ preventScroll: true });
  }
  window.addEventListener("hashchange", show);

  function neighbours(key) {
    const listed = rows.filter((row) => !row.hidden);
    const at = listed.findIndex((row) => keyOf(row) === key);
    lastOpened = listed[at] || null;
    $("place").textContent = at < 0 ? "" : `${at + 1} of ${listed.length}`;
    for (const [id, row] of [["previous", listed[at - 1]], ["next", at < 0 ? undefined : listed[at + 1]]]) {
      $(id).setAttribute("aria-disabled", String(!row));
      if (row) $(id).href = row.querySelector("a").hash; else $(id).removeAttribute("href");
    }
  }
  $("back").addEventListener("click", (event) => { event.preventDefault(); location.hash = ""; });

  // The timeline: one thing is chosen, by pointing at it or with the arrow keys

  function timeline() {
    const frame = $("case-body").querySelector(".scroll");
    if (!frame) return;
    const points = [...frame.querySelectorAll(".p")];
    const left = (one) => one.getBBox().x;
    const lanes = new Map();
    for (const point of points) {
      const rank = Number(point.dataset.r);
      if (!lanes.has(rank)) lanes.set(rank, []);
      lanes.get(rank).push(point);
    }
    for (const lane of lanes.values()) lane.sort((a, b) => left(a) - left(b));
    const ranks = [...lanes.keys()].sort((a, b) => a - b);
    const first = () => frame.querySelector(".bars .minority") || frame.querySelector(".ground .minority") || points[0];
    let chosen = null;

    function choose(point) {
      if (!point) return;
      if (chosen) chosen.classList.remove("chosen");
      chosen = point;
      chosen.classList.add("chosen");
      $("pointed").textContent = chosen.querySelector("title").textContent;
      chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    function along(by) {
      const lane = lanes.get(Number(chosen.dataset.r));
      return lane[lane.indexOf(chosen) + by];
    }
    function across(by) {
      const lane = lanes.get(ranks[ranks.indexOf(Number(chosen.dataset.r)) + by]);
      const x = left(chosen);
      return lane && lane.reduce((a, b) => Math.abs(left(b) - x) < Math.abs(left(a) - x) ? b : a);
    }
    const moves = {
      ArrowLeft: () => along(-1), ArrowRight: () => along(1),
      ArrowUp: () => across(-1), ArrowDown: () => across(1), Home: first,
    };
    frame.addEventListener("keydown", (event) => {
      const move = moves[event.key];
      if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      choose(chosen ? move() : first());
    });
    frame.addEventListener("click", (event) => choose(event.target.closest(".p")));
  }

  document.addEventListener("click", async (event) => {
    const from = event.target.closest("[data-copy]");
    if (!from) return;
    const text = $(from.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
      from.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren($(from.dataset.copy));
      from.textContent = "Selected";
    }
  });

  filter();
  show();
})();
