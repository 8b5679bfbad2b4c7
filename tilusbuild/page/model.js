// The lines of `tilusbuild report --json` as what the charts draw. Nothing here knows a page.
"use strict";
const model = (() => {
  const most = (values) => values.reduce((a, b) => (b === null || b === undefined ? a : a === null || b > a ? b : a), null);
  const metrics = [
    ["registers", "registers a thread", "registers"],
    ["spills", "spilled bytes a thread", "spills"],
    ["smem", "shared memory a block (bytes)", "shared memory"],
    ["blocks", "blocks per SM", "blocks per SM"],
    ["occupancy", "occupancy", "occupancy"],
    ["library", "size of lib.so (bytes)", "lib.so"],
    ["seconds", "compile time (s)", "compile s"],
  ].map(([id, title, short]) => ({ id, title, short, get: (p) => p[id] }));

  function measuredMetric(line) {
    const sizes = Object.entries(line.sizes).map(([n, v]) => `${n}=${v}`).join(" ");
    return {
      id: `measured ${line.device} ${sizes}`,
      title: `measured at ${sizes || "all sizes"} on ${line.device} (ms)`,
      short: `ms, ${sizes || "all sizes"}`,
      get: (p) => (String(p.index) in line.seconds ? line.seconds[p.index] * 1e3 : null),
    };
  }

  // The lines of JSON that are in the document, gzipped and in base64.
  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(plain).text());
  }

  function read(lines) {
    const of = (event) => lines.filter((line) => line.event === event);
    const programs = of("program").map((line) => ({
      ...line,
      registers: most(line.usages.map((u) => u.registers)),
      spills: most(line.usages.map((u) => u.spills)),
    }));
    const instances = new Map();
    for (const p of programs) {
      if (!instances.has(p.instance)) instances.set(p.instance, { name: p.instance, programs: [], measured: [], coverage: [], space: null });
      instances.get(p.instance).programs.push(p);
    }
    for (const kind of ["space", "measured", "coverage"])
      for (const line of of(kind)) {
        const found = instances.get(line.instance);
        if (found) kind === "space" ? (found.space = line) : found[kind].push(line);
      }
    for (const found of instances.values()) {
      // What differs between programs: parameters and what is derived from them.
      const names = new Set(found.programs.flatMap((p) => Object.keys(p.values)));
      found.parameters = [...names]
        .map((name) => ({ name, values: [...new Set(found.programs.map((p) => p.values[name]))].sort(inOrder) }))
        .filter((each) => each.values.length > 1);
      found.metrics = [
        ...metrics.filter((m) => found.programs.some((p) => m.get(p) !== null && m.get(p) !== undefined)),
        ...found.measured.map(measuredMetric),
      ];
      const differs = found.parameters.map((each) => each.name);
      for (const p of found.programs) p.differs = differs;
      found.byIndex = new Map(found.programs.map((p) => [p.index, p]));
    }
    const texts = new Map(of("texts").map((line) => [line.hash, line]));
    const timeline = of("timeline")[0] || null;
    const attempted = new Map((timeline ? timeline.attempts : []).map((a) => [a.hash, a]));
    const distinct = [...new Map(programs.map((p) => [p.hash, p])).values()];
    return { lines, texts, programs, distinct, instances: [...instances.values()], timeline, attempted, summary: of("summary")[0], project: of("project")[0] };
  }

  function inOrder(a, b) {
    return typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0;
  }

  // Each item in the lowest row that is free, as in the trace.
  function rows(items) {
    const ends = [];
    return [...items].sort((a, b) => a.start - b.start).map((item) => {
      let row = ends.findIndex((end) => end <= item.start + 1e-9);
      if (row < 0) row = ends.length;
      ends[row] = item.end;
      return { ...item, row };
    });
  }

  function timelineItems(timeline) {
    const plan = [{ label: "plan", status: "plan", start: 0, end: timeline.planned }];
    const here = timeline.attempts.filter((a) => !a.elsewhere), elsewhere = timeline.attempts.filter((a) => a.elsewhere);
    return [["build", rows(plan)], ["compiler", rows(here)], ["elsewhere", rows(elsewhere)]].filter(([, found]) => found.length);
  }

  // From when on fewer compilers ran than may: until then more of them would have helped, from then
  // on only quicker ones.
  function tail(timeline) {
    const compiling = (timelineItems(timeline).find(([kind]) => kind === "compiler") || [null, []])[1];
    const changes = compiling.flatMap((c) => [[c.start, 1], [c.end, -1]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    let running = 0, full = 0, was = false;
    for (const [at, change] of changes) {
      running += change;
      if (was && running < timeline.jobs) full = at;
      was = running >= timeline.jobs;
    }
    const end = Math.max(0, ...compiling.map((c) => c.end));
    return { from: full, to: end, items: compiling.filter((c) => c.end > full + 1e-6).sort((a, b) => b.end - a.end) };
  }

  function aggregate(values, how) {
    const known = values.filter((v) => v !== null && v !== undefined).sort((a, b) => a - b);
    if (how === "count") return values.length;
    if (!known.length) return null;
    if (how === "least") return known[0];
    if (how === "most") return known[known.length - 1];
    const middle = known.length >> 1;
    return known.length % 2 ? known[middle] : (known[middle - 1] + known[middle]) / 2;
  }

  // The metric of this name, else the first that tells programs apart. "measured" is that of the last sizes.
  function metricOf(instance, id) {
    const all = instance.metrics;
    const differs = (m) => new Set(instance.programs.map(m.get).filter((v) => v !== null && v !== undefined)).size > 1;
    return (id === "measured" ? all.filter((m) => m.id.startsWith("measured ")).pop() : all.find((m) => m.id === id)) || all.find(differs) || all[0];
  }

  // [x index, y index, value, programs] of each cell that has programs.
  function cells(instance, choice) {
    const find = (name) => instance.parameters.find((p) => p.name === name);
    const [x, y] = [find(choice.x), find(choice.y)];
    const metric = metricOf(instance, choice.metric);
    const wanted = Object.entries(choice.fixed || {}).filter(([, v]) => v !== "");
    const groups = new Map();
    for (const p of instance.programs) {
      if (wanted.some(([name, value]) => String(p.values[name]) !== value)) continue;
      const key = `${x.values.indexOf(p.values[x.name])},${y.values.indexOf(p.values[y.name])}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(p);
    }
    const found = [...groups].map(([key, programs]) => {
      const [i, j] = key.split(",").map(Number);
      return [i, j, metric ? aggregate(programs.map(metric.get), choice.how) : programs.length, programs];
    });
    const empty = [];
    for (const [i, at] of x.values.entries())
      for (const [j, up] of y.values.entries()) {
        const programs = groups.get(`${i},${j}`) || [];
        const statuses = [...new Set(programs.map((p) => p.status))];
        const fixed = new Map([...wanted, [x.name, String(at)], [y.name, String(up)]]);
        if (!programs.length) empty.push([i, j, excluded(instance.space, fixed)]);
        else if (metric && programs.every((p) => metric.get(p) === null || metric.get(p) === undefined)) empty.push([i, j, statuses.every((s) => s === "built") ? "not known" : statuses.map((s) => (s === "missing" ? "not built" : s)).join(", ")]);
      }
    return { x, y, metric, cells: found.filter((cell) => cell[2] !== null), empty };
  }

  // Why no program has these values: `removed` has, for each combination of the space's values in
  // order, the number of the first rule that removes it, -1 where it is kept, -2 for a `when`.
  function excluded(space, fixed) {
    if (!space || !space.removed.length || [...fixed.keys()].some((name) => !space.parameters.some((p) => p.names.includes(name)))) return "no schedule";
    const rules = new Set();
    let stride = space.removed.length;
    let from = [0];
    for (const parameter of space.parameters) {
      stride /= parameter.rows.length;
      const rows = parameter.rows.map((row, digit) => [row, digit]).filter(([row]) => parameter.names.every((name, k) => !fixed.has(name) || String(row[k]) === fixed.get(name)));
      from = from.flatMap((start) => rows.map(([, digit]) => start + digit * stride));
    }
    for (const place of from) rules.add(space.removed[place]);
    if (rules.has(-1)) return "not in this report";
    return [...rules].sort(inOrder).map((rule) => (rule < 0 ? "a `when`" : space.rules[rule].name)).join(", ") || "no schedule";
  }

  // How the choice at each measured size does against the best there.
  function served(instance, device) {
    return instance.measured.filter((m) => m.device === device).map((line) => {
      const ranked = Object.entries(line.seconds).sort((a, b) => a[1] - b[1]);
      const chosen = line.program !== null && String(line.program) in line.seconds ? line.seconds[line.program] : null;
      const best = ranked.length ? ranked[0] : null;
      const second = ranked.find(([program]) => Number(program) !== line.program) || null;
      return {
        line, best, second, chosen,
        default: line.seconds[(instance.programs.find((p) => p.default) || {}).index] ?? null,
        regret: chosen !== null && best ? chosen / best[1] - 1 : null,
        behind: chosen !== null && second ? second[1] / chosen - 1 : null,
      };
    });
  }

  const schedule = (p) => p.differs.map((n) => `${n}=${p.values[n]}`).join(" ");
  const sizesText = (sizes) => Object.entries(sizes).map(([n, v]) => `${n}=${v}`).join(" ") || "all sizes";

  function csv(heads, rows) {
    const cell = (v) => {
      let text = v === null || v === undefined ? "" : String(v);
      if (/^[=+\-@\t\r]/.test(text) && typeof v === "string") text = `'${text}`;
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return [heads, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
  }

  return { unpack, read, timelineItems, tail, metricOf, cells, aggregate, served, schedule, sizesText, csv, metrics, inOrder };
})();
