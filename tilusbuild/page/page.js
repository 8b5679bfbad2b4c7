// The report's pages: what is chosen, and the charts and tables of it. Everything that comes from
// a project reaches the document as text (`textContent`), and nothing as markup.
"use strict";
(async () => {
  const found = model.read(await model.unpack(document.getElementById("data").textContent));
  const make = (tag, about = {}, ...inside) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(about)) {
      if (name === "text") element.textContent = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...inside.filter((each) => each !== null && each !== undefined));
    return element;
  };
  const scheme = matchMedia("(prefers-color-scheme: dark)"), narrow = matchMedia("(max-width: 600px)");
  const darkNow = () => (document.documentElement.dataset.theme || (scheme.matches ? "dark" : "light")) === "dark";
  const main = document.querySelector("main");
  const drawn = new Map();
  const state = { page: null, instance: null };

  // Colours of the page, as the style sheet has them now.
  function look() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    return { ink: of("ink"), muted: of("muted"), line: of("line"), back: of("back"), card: of("card"), tail: of("tail"), font: of("font"), dark: darkNow(), narrow: narrow.matches, tip };
  }
  function tip(lines) {
    const box = make("div", { class: "tip" });
    for (const [name, value] of lines)
      box.append(name === "" ? make("strong", { text: value }) : make("div", {}, make("span", { text: name }), make("b", { text: value })));
    return box;
  }

  // A chart in a figure; `build` is called again when something is chosen or the colours change.
  function figure(id, title, note, build, none) {
    const place = make("div", { class: "chart", tabindex: "0", role: "img", "aria-label": title, id: `chart-${id}` });
    const box = make("figure", { id: `figure-${id}` }, make("figcaption", {}, make("h3", { text: title }), note ? make("p", { class: "note", text: note }) : null), place);
    const draw = () => {
      const made = build(look());
      let chart = drawn.get(id);
      if (!made) {
        if (chart) { chart.dispose(); drawn.delete(id); }
        place.replaceChildren(make("p", { class: "none", text: none || "nothing to draw" }));
        place.style.height = "";
        return;
      }
      place.style.height = `${made.height}px`;
      if (!chart || chart.getDom() !== place) {
        place.replaceChildren();
        chart = echarts.init(place, null, { renderer: "canvas" });
        drawn.set(id, chart);
      }
      chart.resize();
      chart.setOption(made.option, true);
      place.chart = chart;
      place.drawn = made;
      if (box.whenDrawn) box.whenDrawn(chart, made);
    };
    // Zooming and moving by keyboard.
    place.addEventListener("keydown", (event) => {
      const zoom = place.chart && (place.chart.getOption().dataZoom || [])[0];
      if (!zoom) return;
      const width = zoom.end - zoom.start, middle = (zoom.end + zoom.start) / 2;
      const to = { "+": [middle - width / 4, middle + width / 4], "=": [middle - width / 4, middle + width / 4], "-": [middle - width, middle + width], ArrowLeft: [zoom.start - width / 5, zoom.end - width / 5], ArrowRight: [zoom.start + width / 5, zoom.end + width / 5], 0: [0, 100] }[event.key];
      if (!to) return;
      event.preventDefault();
      const start = Math.max(0, to[0]), end = Math.min(100, to[1]);
      if (end > start) place.chart.dispatchAction({ type: "dataZoom", start, end });
    });
    box.draw = draw;
    box.place = place;
    return box;
  }

  function select(label, id, values, chosen, change) {
    const list = make("select", { id, onchange: (event) => change(event.target.value) });
    for (const [value, text] of values) list.append(make("option", { value, text, selected: value === chosen }));
    return make("label", { for: id }, make("span", { text: label }), list);
  }

  // A table that sorts by its heads, filters by a word, shows some rows at first, and is copied as CSV.
  // Rows for which `fold` gives a text are behind a button with that text until they are asked for.
  function table(id, columns, rows, options = {}) {
    const view = { by: options.by ?? null, down: options.down ?? false, word: "", most: Math.min(options.most ?? 50, narrow.matches ? 10 : 50), only: null, unfolded: new Set() };
    const body = make("tbody"), count = make("span", { class: "count", role: "status" });
    const heads = columns.map((column, i) => make("th", { scope: "col", class: column.text ? null : "number" }, make("button", { type: "button", text: column.title, onclick: () => { view.down = view.by === i ? !view.down : !columns[i].text; view.by = i; show(); } })));
    const folded = make("div", { class: "folded" });
    const more = make("button", { type: "button", class: "more", onclick: () => { view.most += 500; show(); } });
    const texts = new Map();
    const textOf = (row) => { if (!texts.has(row)) texts.set(row, columns.map((c) => String(c.get(row) ?? "")).join(" ").toLowerCase()); return texts.get(row); };
    const wanted = () => {
      const words = view.word.toLowerCase().split(/\s+/).filter(Boolean);
      const shut = (row) => options.fold && !words.length && options.fold(row) && !view.unfolded.has(options.fold(row));
      const kept = rows.filter((row) => !shut(row) && (!view.only || view.only.has(row)) && words.every((word) => textOf(row).includes(word)));
      if (view.by === null) return kept;
      const get = columns[view.by].get, sign = view.down ? -1 : 1;
      const none = (v) => v === null || v === undefined || v === "";
      return kept.sort((a, b) => { const [x, y] = [get(a), get(b)]; return none(x) || none(y) ? none(x) - none(y) : sign * model.inOrder(x, y); });
    };
    function show() {
      const kept = wanted();
      body.replaceChildren(...kept.slice(0, view.most).map((row) => {
        const line = make("tr", {}, ...columns.map((c) => {
          const value = c.get(row);
          return make("td", { "data-title": c.title, class: !c.text ? "number" : c.wide ? "wide" : c.kind ? c.kind(row) : null, text: value === null || value === undefined ? "" : c.show ? c.show(value) : c.text ? value : charts.rounded(value) });
        }));
        if (options.texts) line.firstChild.after(make("td", { class: "texts" }, ...options.texts.filter(([,, has]) => has(row)).map(([name, textOfRow]) => opener(name, line, () => textOfRow(row)))));
        return line;
      }));
      const groups = new Map();
      for (const row of options.fold && !view.word ? rows : []) {
        const key = options.fold(row);
        if (key && !view.unfolded.has(key)) groups.set(key, (groups.get(key) || 0) + 1);
      }
      folded.replaceChildren(...[...groups].map(([key, n]) => make("button", { type: "button", text: `${key}: show ${n.toLocaleString("en")}`, onclick: () => { view.unfolded.add(key); view.most += n; show(); } })));
      heads.forEach((head, i) => (view.by === i ? head.setAttribute("aria-sort", view.down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
      count.textContent = `${kept.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
      more.hidden = kept.length <= view.most;
      more.textContent = `show more (${(kept.length - view.most).toLocaleString("en")} left)`;
    }
    const copy = make("button", { type: "button", text: "copy as CSV", onclick: async () => {
      const text = model.csv(columns.map((c) => c.title), wanted().map((row) => columns.map((c) => c.get(row))));
      window.copied = text;
      copy.textContent = (await toClipboard(text)) ? "copied" : "not copied";
      setTimeout(() => (copy.textContent = "copy as CSV"), 1500);
    } });
    const filter = make("input", { type: "search", placeholder: "filter", "aria-label": "filter rows", oninput: (event) => { view.word = event.target.value; show(); } });
    const box = make("div", { class: "table", id }, make("div", { class: "tools" }, options.filter === false ? null : filter, count, copy), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.label || id }, make("table", {}, make("thead", {}, make("tr", {}, heads[0], options.texts ? make("th") : null, ...heads.slice(1))), body)), more, folded);
    box.only = (set) => { view.only = set; show(); };
    show();
    return box;
  }
  // A button that shows a text under a row, or removes it again.
  function opener(name, line, text) {
    const button = make("button", { type: "button", "aria-expanded": "false", text: name, onclick: () => {
      const open = line.nextElementSibling;
      const same = open && open.dataset.text === name;
      if (open && open.dataset.text) open.remove();
      for (const each of line.querySelectorAll("[aria-expanded]")) each.setAttribute("aria-expanded", String(!same && each === button));
      if (!same) line.after(make("tr", { "data-text": name }, make("td", { class: "shown", colspan: String(line.cells.length) }, make("pre", { tabindex: "0", text: text() }))));
    } });
    return button;
  }
  async function toClipboard(text) {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* from a file it may not be allowed */ }
    const area = make("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }

  const fact = (name, value) => make("div", { class: "fact" }, make("b", { text: value }), make("span", { text: name }));
  const program = { title: "program", text: true, get: (p) => p.label };
  const number = (title, get, show) => ({ title, get, show });
  const scheduled = { title: "schedule", text: true, wide: true, get: (p) => model.schedule(p) };
  const ranked = (id, title, get, show) => {
    const rows = found.distinct.filter((p) => get(p)).sort((a, b) => get(b) - get(a)).slice(0, 10);
    if (!rows.length) return null;
    const top = get(rows[0]);
    return make("div", { class: "card", id }, make("h3", { text: title }), make("ol", { class: "bars" }, ...rows.map((p) => {
      const bar = make("i", { class: "bar" });
      bar.style.width = `${Math.max(1, (get(p) / top) * 100)}%`;
      return make("li", { title: model.schedule(p) }, make("span", { text: p.label }), make("b", { text: show(get(p)) }), bar);
    })));
  };

  // What the last build did with a program.
  function fate(p) {
    const attempt = found.attempted.get(p.hash);
    if (attempt) return attempt.status === "built" ? "compiled" : attempt.status;
    return p.status === "built" ? "cached" : p.status;
  }

  // A "table" is a rule, or a row, that was written by hand.
  const guessed = (c) => !["measured", "table"].includes(c.source);
  const built = (p) => p.status === "built";
  const reached = new Set(found.programs.filter((p) => p.status !== "missing").map((p) => p.target));
  // Programs of a target of which nothing is built are for another machine, or another day.
  const elsewhere = (p) => (reached.has(p.target) || !reached.size ? null : `nothing is built for ${p.target}`);
  const builtFirst = [...found.programs].sort((a, b) => (a.status === "missing") - (b.status === "missing"));
  const textOf = (part, none) => (p) => (found.texts.get(p.hash) || {})[part] || (p.status === "missing" ? "It is not built." : `${none}:\n\n    tilusbuild cache show ${p.hash.slice(0, 12)} --${part}`);
  const texts = [["source", textOf("source", "This report does not have the source"), () => true], ["SASS", textOf("sass", "This report has the SASS of programs that were built with --dump-ir"), (p) => p.usages.length]];
  const why = (p) => p.reason || (found.attempted.get(p.hash) || {}).reason || "";

  const pages = {
    build() {
      const last = found.timeline;
      const fates = new Map();
      for (const p of found.distinct) fates.set(fate(p), (fates.get(fate(p)) || 0) + 1);
      const parts = [make("div", { class: "facts" }, fact("programs", charts.rounded(found.distinct.length)), ...[...fates].map(([name, n]) => fact(name === "missing" ? "not built" : name, charts.rounded(n))),
        ...(last ? [fact("last build with compiles", charts.time(last.seconds)), fact("compilers at once", String(last.jobs)), fact("begun", new Date(last.began * 1000).toLocaleString())] : []),
        fact("of libraries", charts.bytes(found.summary ? found.summary.library : 0)))];
      const tail = last ? model.tail(last) : null;
      const note = tail && tail.to > tail.from ? `In the tail, the last ${charts.time(tail.to - tail.from)} of compiling, fewer than ${last.jobs} ran: ${tail.items.slice(0, 3).map((c) => c.label).join(", ")}${tail.items.length > 3 ? ` and ${tail.items.length - 3} more` : ""}.` : "";
      if (last) parts.push(figure("timeline", "Timeline", `${note} Wheel or + and − zoom, drag or arrows move, 0 shows all.`, (l) => charts.timeline(found, state, l)), legend(last));
      else parts.push(make("p", { class: "none", text: "No build has left its times here: they are kept from the first build that compiles something." }));
      const failed = found.programs.filter((p) => p.reason);
      if (failed.length) parts.push(failures(failed));
      parts.push(make("div", { class: "cards" }, ranked("slowest", "Slowest to compile", (p) => p.seconds, charts.time), ranked("spilling", "Most spilling", (p) => p.spills, charts.bytes), ranked("largest", "Largest libraries", (p) => p.library, charts.bytes)));
      parts.push(make("h3", { text: "Every program, and what the last build did" }), table("programs", [program, { title: "last build", text: true, get: fate, kind: (p) => `fate ${fate(p)}` }, number("compile s", (p) => p.seconds), number("peak MB", (p) => (p.peak_rss === null ? null : Math.round(p.peak_rss / 1e6))), number("registers", (p) => p.registers), number("spills", (p) => p.spills), number("blocks per SM", (p) => p.blocks), number("KB", (p) => (p.library === null ? null : Math.round(p.library / 1e3))), ...(found.programs.some(why) ? [{ title: "why", text: true, wide: true, get: why }] : []), scheduled], builtFirst, { most: 25, label: "programs", fold: elsewhere, texts }));
      return parts;
    },

    space() {
      const instance = chosenInstance();
      const names = instance.parameters.map((p) => [p.name, p.name]);
      const choice = (state.space ||= {});
      if (choice.of !== instance.name) Object.assign(choice, { of: instance.name, x: (names[0] || [])[0], y: (names[1] || [])[0], metric: (model.metricOf(instance) || {}).id, how: "middle", fixed: {} });
      const again = (change) => { Object.assign(choice, change); map.draw(); lines.draw(); };
      const map = figure("map", "Map over two parameters", "Each cell takes the programs that have both values; the other parameters are fixed, or put together.", (l) => (choice.x === choice.y ? null : charts.map(instance, choice, l)), "choose two different parameters");
      const list = table("points", [program, { title: "status", text: true, get: (p) => p.status, kind: (p) => `fate ${p.status}` }, ...instance.parameters.map((q) => ({ title: q.name, get: (p) => p.values[q.name], show: (v) => String(v) })), ...instance.metrics.map((m) => number(m.title, m.get))], [...instance.programs].sort((a, b) => built(b) - built(a)), { label: "schedules", most: 25, texts });
      const lines = figure("parallel", "Every program as a line", "Drag along an axis to keep a part; the table follows. Click the axis to let go.", (l) => charts.parallel(instance, choice, l));
      lines.whenDrawn = (chart) => {
        chart.off("axisareaselected");
        chart.on("axisareaselected", () => {
          const series = chart.getModel().getSeriesByIndex(0);
          const active = series.getRawIndicesByActiveState("active");
          const brushed = chart.getOption().parallelAxis.some((a) => (a.activeIntervals || []).length) || active.length > 0;
          list.only(brushed && active.length ? new Set(active.map((i) => instance.programs[i])) : null);
        });
      };
      const controls = make("div", { class: "controls" },
        select("across", "map-x", names, choice.x, (x) => again({ x })), select("up", "map-y", names, choice.y, (y) => again({ y })),
        instance.metrics.length ? select("colour", "map-metric", instance.metrics.map((m) => [m.id, m.title]), choice.metric, (metric) => again({ metric })) : null,
        select("of several", "map-how", [["middle", "median"], ["least", "least"], ["most", "most"], ["count", "number"]], choice.how, (how) => again({ how })),
        ...instance.parameters.map((p) => select(p.name, `fix-${p.name}`, [["", "any"], ...p.values.map((v) => [String(v), String(v)])], choice.fixed[p.name] || "", (v) => again({ fixed: { ...choice.fixed, [p.name]: v } }))));
      return [instancePicker(), figure("funnel", "Schedules left by each rule", "On a logarithmic scale, in the manifest's order: bars are what is left, marks what the rule removed there and what it removes alone.", (l) => charts.funnel(instance, {}, l), "the space has no report"),
        instance.parameters.length > 1 ? controls : null, map, lines, make("h3", { text: "The table behind it" }), list];
    },

    tuning() {
      const measured = found.instances.filter((i) => i.measured.length || i.coverage.length).sort((a, b) => Boolean(b.measured.length) - Boolean(a.measured.length));
      const instance = chosenInstance(measured);
      const devices = [...new Set(instance.measured.map((m) => m.device))];
      if (!devices.includes(state.device)) state.device = devices[0];
      const keys = instance.measured.length ? Object.keys(instance.measured[0].sizes) : [];
      const choice = { device: state.device, get sizeX() { return state.sizeX; }, get sizeY() { return state.sizeY; } };
      if (!keys.includes(state.sizeX)) [state.sizeX, state.sizeY] = [keys[0], keys[1]];
      const which = figure("served", "Which schedule serves which sizes", "The program's number and its time; hover for its schedule and the next best.", (l) => charts.served(instance, choice, l), "nothing is measured on a device");
      const controls = !devices.length ? null : make("div", { class: "controls" }, select("device", "device", devices.map((d) => [d, d]), state.device, (d) => { state.device = d; show(); }), ...(keys.length > 1 ? [select("across", "size-x", keys.map((k) => [k, k]), state.sizeX, (v) => { state.sizeX = v; which.draw(); }), select("up", "size-y", keys.map((k) => [k, k]), state.sizeY, (v) => { state.sizeY = v; which.draw(); })] : []));
      const gaps = instance.coverage.filter(guessed);
      const times = model.served(instance, state.device), ms = (get) => (r) => (get(r) === null || get(r) === undefined ? null : get(r) * 1e3);
      const gains = times.filter((r) => r.chosen && r.default).map((r) => r.default / r.chosen);
      const gained = gains.length ? Math.exp(gains.reduce((sum, gain) => sum + Math.log(gain), 0) / gains.length) : null;
      const programOf = (index) => instance.byIndex.get(Number(index));
      const ratio = (v) => `${v.toFixed(2)}×`;
      return [instancePicker(measured), controls,
        gained === null ? null : make("div", { class: "facts" }, fact(gains.length > 1 ? `faster than the default schedule, geometric mean of ${gains.length} sizes` : "faster than the default schedule", ratio(gained))),
        which,
        times.length ? table("times", [{ title: "sizes", text: true, get: (r) => model.sizesText(r.line.sizes) }, number("program", (r) => r.line.program), number("ms", ms((r) => r.chosen)), number("default, ms", ms((r) => r.default)), number("speed-up", (r) => (r.chosen && r.default ? r.default / r.chosen : null), ratio), number("next best, ms", ms((r) => (r.second ? r.second[1] : null))), { title: "schedule", text: true, wide: true, get: (r) => (programOf(r.line.program) ? model.schedule(programOf(r.line.program)) : "") }], times, { label: "times", filter: false }) : null,
        figure("regret", "Regret, and how far the next best is behind", "", (l) => charts.regret(instance, choice, l)),
        instance.measured.some((m) => m.bytes && m.flops) ? figure("roofline", "Measured points under the roofs", "The roofs are the target's `facts.dram_gbs` and `facts.tflops`; operations are `flops` in the script's dispatch table.", (l) => charts.roofline(instance, choice, l)) : null,
        make("h3", { text: `Coverage: ${gaps.length ? `${gaps.length} of ${instance.coverage.length} sizes are served by a guess` : `all ${instance.coverage.length} sizes that were asked for are measured or set by hand`}` }),
        table("coverage", [{ title: "sizes", text: true, get: (c) => model.sizesText(c.sizes) }, { title: "by", text: true, get: (c) => c.source, kind: (c) => (guessed(c) ? "guess" : null) }, { title: "program", get: (c) => c.program }, { title: "why", text: true, wide: true, get: (c) => c.why }], instance.coverage, { label: "coverage" })];
    },

    package() {
      return [figure("sizes", "Disk space", "The libraries on disk, by script, target and schedule. Click to go in, use the path below to go out.", (l) => charts.sizes(found, state, l)),
        table("files", [program, { title: "script", text: true, get: (p) => p.script }, { title: "target", text: true, get: (p) => p.target }, number("bytes", (p) => p.library), scheduled], found.distinct.filter((p) => p.library), { by: 3, down: true, most: 25, label: "libraries" })];
    },
  };
  // A page with nothing on it is not offered.
  const has = {
    build: true, space: found.instances.length, package: found.distinct.some((p) => p.library),
    tuning: found.instances.some((i) => i.measured.length || i.coverage.length),
  };
  for (const name of Object.keys(pages)) if (!has[name]) { delete pages[name]; document.querySelector(`nav a[href="#${name}"]`).remove(); }
  const titles = { build: "Build", space: "Space", tuning: "Tuning and dispatch", package: "Package" };

  function legend(built) {
    const statuses = new Set(["plan", ...built.attempts.map((a) => a.status)]);
    return make("ul", { class: "legend" }, ...[...statuses].map((status) => { const mark = make("i"); mark.style.background = charts.statusColour(status); return make("li", {}, mark, make("span", { text: status })); }));
  }
  function failures(failed) {
    const groups = new Map();
    for (const p of failed) { const key = `${p.instance}\n${p.reason}`; if (!groups.has(key)) groups.set(key, []); groups.get(key).push(p); }
    const shown = [...groups.values()].sort((a, b) => b.length - a.length);
    return make("section", { class: "failures", id: "failures" }, make("h3", { text: `Not built: ${failed.length}, for ${shown.length} ${shown.length === 1 ? "reason" : "reasons"}` }), ...shown.slice(0, 50).map((programs) => {
      const logged = programs.find((p) => p.log);
      return make("details", {}, make("summary", {}, make("span", { class: `fate ${programs[0].status}`, text: programs[0].status }), make("code", { text: programs[0].reason }), make("span", { class: "count", text: `${programs.length} of ${programs[0].instance}` })), make("p", { text: programs.slice(0, 20).map((p) => p.label).join(", ") + (programs.length > 20 ? ", …" : "") }), logged ? make("pre", { tabindex: "0", text: logged.log }) : null);
    }));
  }
  function chosenInstance(among = found.instances) {
    return among.find((i) => i.name === state.instance) || among.find((i) => i.metrics.length) || among[0];
  }
  const instancePicker = (among = found.instances) => make("div", { class: "controls" }, select("instance", "instance", among.map((i) => [i.name, i.name]), chosenInstance(among).name, (name) => { state.instance = name; show(); }));

  function dispose() {
    for (const chart of drawn.values()) chart.dispose();
    drawn.clear();
  }
  function section(name) {
    const box = make("section", { class: "page", id: `page-${name}`, "aria-label": titles[name] }, make("h2", { text: titles[name] }), ...pages[name]().filter(Boolean));
    return box;
  }
  const figuresOf = (box) => [...box.querySelectorAll("figure")].forEach((each) => each.draw());
  function show(name = state.page) {
    state.page = name;
    dispose();
    const box = section(name);
    main.replaceChildren(box);
    figuresOf(box);
    for (const link of document.querySelectorAll("nav a")) link.toggleAttribute("aria-current", link.hash === `#${name}`);
    document.documentElement.dataset.ready = name;
  }
  function route() {
    const name = location.hash.slice(1);
    show(name in pages ? name : "build");
  }

  document.getElementById("theme").addEventListener("click", () => { document.documentElement.dataset.theme = darkNow() ? "light" : "dark"; figuresOf(main); });
  for (const changed of [scheme, narrow]) changed.addEventListener("change", () => figuresOf(main));
  document.querySelector("header h1").textContent = found.project ? `${found.project.name} ${found.project.version}` : "tilusbuild";
  document.querySelector("header p").textContent = found.project ? `tilusbuild ${found.project.tilusbuild}` : "";
  document.title = found.project ? `${found.project.name}: report` : "report";
  addEventListener("hashchange", route);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { for (const chart of drawn.values()) chart.resize(); }, 100); });
  // Printed are all pages, on white.
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.before = document.documentElement.dataset.theme || "";
    document.documentElement.dataset.theme = "light";
    dispose();
    main.replaceChildren(...Object.keys(pages).map(section));
    main.querySelectorAll("details").forEach((each) => (each.open = true));
    figuresOf(main);
  });
  addEventListener("afterprint", () => {
    const before = document.documentElement.dataset.before;
    if (before) document.documentElement.dataset.theme = before; else delete document.documentElement.dataset.theme;
    show();
  });
  window.report = { found, state, drawn, show };
  route();
})();
