// The lines of `tilusbuild report --json` as what the charts draw. Nothing here knows a page.
"use strict";
const model = (() => {
  const most = (values) => values.reduce((a, b) => (b === null || b === undefined ? a : a === null || b > a ? b : a), null);
  const metrics = [
    ["registers", "registers a thread", (p) => p.registers],
    ["spills", "spilled bytes a thread", (p) => p.spills],
    ["smem", "shared memory a block (bytes)", (p) => p.smem],
    ["occupancy", "occupancy", (p) => p.occupancy],
    ["library", "size of lib.so (bytes)", (p) => p.library],
    ["seconds", "compile time (s)", (p) => p.seconds],
  ].map(([id, title, get]) => ({ id, title, get }));

  function measuredMetric(line) {
    const sizes = Object.entries(line.sizes).map(([n, v]) => `${n}=${v}`).join(" ");
    return {
      id: `measured ${line.device} ${sizes}`,
      title: `measured at ${sizes || "all sizes"} on ${line.device} (ms)`,
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
    const timeline = of("timeline")[0] || null;
    const attempted = new Map((timeline ? timeline.attempts : []).map((a) => [a.hash, a]));
    const distinct = [...new Map(programs.map((p) => [p.hash, p])).values()];
    return { lines, programs, distinct, instances: [...instances.values()], timeline, attempted, compared: of("compared"), summary: of("summary")[0], project: of("project")[0] };
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
    const compiling = [], elsewhere = [], publishing = [];
    for (const a of timeline.attempts) {
      const steps = a.steps.filter((s) => s.name !== "publish");
      if (steps.length)
        (a.elsewhere ? elsewhere : compiling).push({ attempt: a, steps, start: steps[0].start, end: Math.max(...steps.map((s) => s.end)) });
      for (const s of a.steps)
        if (s.name === "publish") publishing.push({ attempt: a, steps: [s], start: s.start, end: s.end });
    }
    const waiting = timeline.waits.map((s) => ({ steps: [s], start: s.start, end: s.end }));
    const phases = timeline.phases.map((s) => ({ steps: [s], start: s.start, end: s.end }));
    return [["build", rows(phases)], ["compiler", rows(compiling)], ["elsewhere", rows(elsewhere)], ["publishing", rows(publishing)], ["waiting", rows(waiting)]].filter(([, found]) => found.length);
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
    return { x, y, metric, cells: found };
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
