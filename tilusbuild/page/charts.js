// What each chart looks like, as options of ECharts.
// `look` has the colours, and `tip`, which makes the element of a hover: text, never markup.
"use strict";
const charts = (() => {
  // Okabe and Ito's colours, and cividis: told apart and ordered also by colour-blind readers.
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b3a500", "#8c8c8c"];
  const SCALE = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"];
  const LINES = ["#5b8fd0", "#8294ad", "#a9a08a", "#cdbb5f", "#fee838"]; // of lines on black
  const STATUSES = { plan: "#e69f00", built: "#0072b2", failed: "#d55e00", pruned: "#cc79a7" };
  const statusColour = (name) => STATUSES[name] || "#8c8c8c";

  const rounded = (v) => (v === null || v === undefined ? "–" : typeof v !== "number" ? String(v) : Number.isInteger(v) ? v.toLocaleString("en") : Math.abs(v) >= 100 ? v.toFixed(0) : String(Number(v.toPrecision(3))));
  const bytes = (v) => (v >= 1e9 ? `${(v / 1e9).toFixed(1)} GB` : v >= 1e6 ? `${(v / 1e6).toFixed(1)} MB` : v >= 1e3 ? `${(v / 1e3).toFixed(0)} KB` : `${v} B`);
  // Names of an axis: long ones go on in the next line, so that no part of one is missing.
  const named = (look) => ({ color: look.ink, width: look.narrow ? 104 : 190, overflow: "break" });
  const time = (s) => (s >= 1 ? `${Number(s.toPrecision(3))} s` : s >= 1e-3 ? `${Number((s * 1e3).toPrecision(3))} ms` : `${Number((s * 1e6).toPrecision(3))} µs`);
  const percent = (v) => `${(v * 100).toFixed(v < 0.1 ? 1 : 0)} %`;

  function base(look, aria) {
    return {
      animation: false, backgroundColor: "transparent", color: COLOURS,
      textStyle: { color: look.ink, fontFamily: look.font, fontSize: 12 },
      aria: { enabled: Boolean(aria), label: { description: aria } },
      tooltip: { confine: true, appendTo: undefined, backgroundColor: look.card, borderColor: look.line, textStyle: { color: look.ink, fontSize: 12 }, extraCssText: "" },
    };
  }
  const axis = (look, more) => ({
    axisLine: { lineStyle: { color: look.line } }, axisTick: { lineStyle: { color: look.line } },
    axisLabel: { color: look.muted, hideOverlap: true }, nameTextStyle: { color: look.muted },
    splitLine: { lineStyle: { color: look.line, opacity: 0.5 } }, splitArea: { show: false }, ...more,
  });
  // Room for the labels of an axis of names.
  const room = (names, look) => Math.min(look.narrow ? 116 : 210, 18 + 7.4 * names.reduce((n, name) => Math.max(n, name.length), 0));
  const hover = (look, lines) => (look.tip ? { formatter: (params) => look.tip(lines(params)) } : { show: false });

  function timeline(found, choice, look) {
    const { timeline: built } = found;
    if (!built) return null;
    const groups = model.timelineItems(built);
    const names = [], data = [];
    for (const [kind, items] of groups) {
      const first = names.length;
      const count = items.reduce((n, item) => Math.max(n, item.row + 1), 0);
      for (let i = 0; i < count; i += 1) names.push(count > 1 ? `${kind} ${i + 1}` : kind);
      for (const item of items) data.push({ value: [first + item.row, item.start, item.end], itemStyle: { color: statusColour(item.status) }, item });
    }
    const tail = model.tail(built);
    const top = 8, height = Math.max(90, names.length * 22);
    const running = counter(groups), end = built.seconds;
    const grids = [{ left: 96, right: 16, top, height }, { left: 96, right: 16, top: top + height + 18, height: 64 }];
    return {
      height: top + height + 160,
      option: {
        ...base(look, `Timeline of the last build, ${time(end)}`),
        tooltip: { ...base(look).tooltip, trigger: "item", ...hover(look, ({ data: d }) => (d && d.item ? aboutItem(d.item) : [])) },
        grid: grids,
        xAxis: grids.map((_, i) => axis(look, { type: "value", min: 0, max: end, gridIndex: i, axisLabel: { show: i === 1, color: look.muted, formatter: (v) => `${rounded(v)} s` }, splitLine: { show: i > 0, lineStyle: { color: look.line, opacity: 0.4 } } })),
        yAxis: [
          axis(look, { type: "category", inverse: true, data: names, gridIndex: 0, splitLine: { show: false }, axisLabel: { color: look.muted, interval: 0 } }),
          axis(look, { type: "value", gridIndex: 1, min: 0, max: Math.max(built.jobs, ...running.map((r) => r[1])), splitNumber: 1, minInterval: 1, name: "compilers", nameLocation: "middle", nameGap: 40 }),
        ],
        dataZoom: [
          { type: "inside", xAxisIndex: [0, 1], filterMode: "weakFilter" },
          { type: "slider", xAxisIndex: [0, 1], bottom: 6, height: 20, filterMode: "weakFilter", borderColor: look.line, textStyle: { color: look.muted }, showDataShadow: false, labelFormatter: (v) => `${rounded(v)} s` },
        ],
        series: [
          {
            type: "custom", name: "compiles", data, encode: { x: [1, 2], y: 0 }, progressive: 2000, clip: true,
            markArea: tail.to > tail.from ? { silent: true, itemStyle: { color: look.tail }, label: { show: false }, data: [[{ xAxis: tail.from }, { xAxis: tail.to }]] } : undefined,
            renderItem: (params, api) => {
              const [row, start, stop] = [api.value(0), api.value(1), api.value(2)];
              const from = api.coord([start, row]), to = api.coord([stop, row]);
              const area = params.coordSys;
              const x = Math.max(from[0], area.x), right = Math.min(to[0], area.x + area.width);
              if (right < area.x || x > area.x + area.width) return null;
              return { type: "rect", shape: { x, y: from[1] - 8, width: Math.max(right - x, 0.8), height: 16 }, style: { ...api.style(), stroke: look.back, lineWidth: right - x > 3 ? 0.6 : 0 } };
            },
          },
          { type: "line", name: "compilers running", step: "end", symbol: "none", xAxisIndex: 1, yAxisIndex: 1, data: running, lineStyle: { width: 1.2 }, areaStyle: { opacity: 0.25 }, color: COLOURS[0] },
        ],
      },
    };
  }
  function counter(groups) {
    const compiling = (groups.find(([kind]) => kind === "compiler") || [null, []])[1];
    const changes = compiling.flatMap((c) => [[c.start, 1], [c.end, -1]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    let running = 0;
    return [[0, 0], ...changes.map(([at, change]) => [at, (running += change)])];
  }
  function aboutItem(item) {
    const lines = [["", item.label], ["took", time(item.end - item.start)], ["from", time(item.start)]];
    if (item.hash) lines.push(["status", item.status + (item.reason ? `: ${item.reason}` : "")], ["compiler", time(item.seconds)], item.elsewhere ? ["worker", item.elsewhere] : ["peak memory", bytes(item.peak_rss)]);
    return lines;
  }

  function funnel(instance, choice, look) {
    const space = instance.space;
    if (!space) return null;
    const steps = [["all combinations", space.cartesian, null]];
    let left = space.cartesian;
    if (space.conditional) steps.push(["duplicates by `when`", (left -= space.conditional), null]);
    for (const rule of space.rules) steps.push([rule.name, rule.removed === null || left === null ? (left = null) : (left -= rule.removed), rule]);
    return {
      height: 60 + steps.length * 28,
      option: {
        ...base(look, `What each rule of ${instance.name} leaves of ${space.cartesian} combinations`),
        tooltip: { ...base(look).tooltip, trigger: "item", ...hover(look, ({ dataIndex }) => {
          const [name, remains, rule] = steps[dataIndex];
          return [["", name], ["left", rounded(remains)], ...(rule ? [["removes after the rules before", rounded(rule.removed)], ["removes alone", rounded(rule.alone)], ...(rule.empties ? [["alone", "leaves nothing"]] : [])] : [])];
        }) },
        legend: { data: ["left", "removed here", "removed alone"], textStyle: { color: look.muted }, top: 0, itemHeight: 10 },
        grid: { left: room(steps.map((s) => s[0]), look), right: 64, top: 30, bottom: 26 },
        xAxis: axis(look, { type: "log", min: 0.8, max: Math.max(10, space.cartesian * 1.5), axisLabel: { color: look.muted, formatter: (v) => (v < 1 ? "" : rounded(v)) } }),
        yAxis: axis(look, { type: "category", inverse: true, data: steps.map((s) => s[0]), axisLabel: named(look), splitLine: { show: false } }),
        series: [
          { name: "left", type: "bar", barWidth: 14, data: steps.map((s) => s[1] || null), label: { show: true, position: "right", color: look.ink, formatter: ({ dataIndex }) => rounded(steps[dataIndex][1]) } },
          { name: "removed here", type: "scatter", symbol: "diamond", symbolSize: 9, color: COLOURS[5], data: steps.map((s, i) => (s[2] && s[2].removed ? [s[2].removed, i] : null)).filter(Boolean) },
          { name: "removed alone", type: "scatter", symbol: "circle", symbolSize: 8, itemStyle: { color: "transparent", borderColor: COLOURS[1], borderWidth: 2 }, color: COLOURS[1], data: steps.map((s, i) => (s[2] && s[2].alone ? [s[2].alone, i] : null)).filter(Boolean) },
        ],
      },
    };
  }

  function spaceMap(instance, choice, look) {
    if ([choice.x, choice.y].some((name) => !instance.parameters.some((p) => p.name === name))) return null;
    const found = model.cells(instance, choice);
    const values = found.cells.map((c) => c[2]).filter((v) => v !== null);
    const [low, high] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
    const what = found.metric ? found.metric.title : "programs", all = found.cells.length + found.empty.length;
    return {
      height: Math.max(280, 130 + found.y.values.length * 30),
      cells: found.cells,
      empty: found.empty,
      option: {
        ...base(look, `${what} over ${found.x.name} and ${found.y.name}`),
        tooltip: { ...base(look).tooltip, trigger: "item", ...hover(look, ({ data: d }) => {
          const [i, j] = d.value || d, place = ["", `${found.x.name}=${found.x.values[i]} ${found.y.name}=${found.y.values[j]}`];
          return d.why ? [place, ["no value", d.why]] : [place, [`${what}, ${choice.how}`, rounded(d[2])], ["programs", rounded(d[3].length)], ...d[3].slice(0, 6).map((p) => [p.label, found.metric ? rounded(found.metric.get(p)) : p.status])];
        }) },
        grid: { left: room(found.y.values.map(String), look) + 12, right: 24, top: 30, bottom: 96 },
        xAxis: axis(look, { type: "category", data: found.x.values.map(String), name: found.x.name, nameLocation: "middle", nameGap: 28, splitLine: { show: false } }),
        yAxis: axis(look, { type: "category", data: found.y.values.map(String), name: found.y.name, nameLocation: "end", splitLine: { show: false } }),
        visualMap: values.length ? { type: "continuous", show: high > low, dimension: 2, min: low, max: high === low ? low + 1 : high, calculable: true, orient: "horizontal", left: "center", bottom: 4, itemHeight: 160, itemWidth: 12, textStyle: { color: look.muted }, inRange: { color: SCALE }, formatter: (v) => rounded(v) } : undefined,
        series: [{ type: "custom", data: found.empty.map(([i, j, why]) => ({ value: [i, j], why })), encode: { x: 0, y: 1 }, renderItem: (params, api) => {
          const at = api.coord([api.value(0), api.value(1)]), [w, h] = api.size([1, 1]);
          return { type: "rect", shape: { x: at[0] - w / 2, y: at[1] - h / 2, width: w, height: h }, style: { fill: look.back, stroke: look.line }, textContent: { style: { text: all <= 150 ? found.empty[params.dataIndex][2] : "", fill: look.muted, fontSize: 10, lineHeight: 12, align: "center", width: w - 6, overflow: "break" } }, textConfig: { position: "inside" } };
        } }, { type: "heatmap", data: found.cells, encode: { x: 0, y: 1, value: 2 }, itemStyle: { borderColor: look.back, borderWidth: 1 }, emphasis: { itemStyle: { borderColor: look.ink, borderWidth: 2 } }, label: { show: all <= 150, formatter: ({ data: d }) => `{${d[2] - low > (high - low) * 0.55 ? "dark" : "light"}|${rounded(d[2])}}`, rich: { dark: { color: "#111", fontSize: 11 }, light: { color: "#fff", fontSize: 11 } } } }],
      },
    };
  }

  function parallel(instance, choice, look) {
    const metric = model.metricOf(instance, choice.metric);
    const shown = [...instance.parameters.slice(0, 9).map((p) => ({ title: p.name, get: (x) => x.values[p.name], values: p.values })), ...instance.metrics.slice(0, 5).map((m) => ({ title: m.short, get: m.get }))];
    if (shown.length < 2) return null;
    const rows = instance.programs.map((p) => [...shown.map((s) => { const v = s.get(p); return v === null || v === undefined ? "-" : s.values ? String(v) : v; }), metric ? metric.get(p) : 0]);
    const known = rows.map((r) => r[shown.length]).filter((v) => typeof v === "number");
    const [low, high] = [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), -Infinity)];
    return {
      height: look.narrow ? 60 + shown.length * 62 : 340,
      option: {
        ...base(look, `Every program of ${instance.name}, a line over its parameters and what came of them`),
        tooltip: { show: false },
        parallel: { ...(look.narrow ? { layout: "vertical", left: 14, right: 30, top: 34, bottom: 34 } : { left: 40, right: 76, top: 56, bottom: 24 }), parallelAxisDefault: { realtime: false, nameTextStyle: { color: look.ink, fontSize: 11, ...(look.narrow ? { align: "left", verticalAlign: "bottom", padding: [0, 0, 4, 0] } : {}) }, nameLocation: look.narrow ? "start" : "end", nameRotate: shown.length > 7 && !look.narrow ? 20 : 0, nameGap: look.narrow ? 0 : 14, axisLine: { lineStyle: { color: look.muted } }, axisLabel: { color: look.muted, fontSize: 10 }, axisTick: { lineStyle: { color: look.muted } }, areaSelectStyle: { color: COLOURS[1], borderColor: COLOURS[5], opacity: 0.35, width: 16 } } },
        parallelAxis: shown.map((s, dim) => ({ dim, name: s.title, ...(s.values ? { type: "category", data: s.values.map(String) } : { type: "value", scale: true }) })),
        visualMap: known.length ? { show: false, dimension: shown.length, min: low, max: high === low ? low + 1 : high, inRange: { color: look.dark ? LINES : SCALE } } : undefined,
        series: [{ type: "parallel", data: rows, lineStyle: { width: 1, opacity: rows.length > 500 ? 0.25 : 0.6 }, inactiveOpacity: 0.03, activeOpacity: 0.9, progressive: 1000, smooth: false }],
      },
    };
  }

  function servedMap(instance, choice, look) {
    const rows = model.served(instance, choice.device);
    if (!rows.length) return null;
    const keys = Object.keys(rows[0].line.sizes);
    const x = keys.includes(choice.sizeX) ? choice.sizeX : keys[0];
    const y = keys.find((k) => k === choice.sizeY && k !== x) || keys.find((k) => k !== x);
    const axisOf = (key) => [...new Set(rows.map((r) => (key ? r.line.sizes[key] : "")))].sort(model.inOrder);
    const [xs, ys] = [axisOf(x), axisOf(y)];
    const chosen = [...new Set(rows.map((r) => r.line.program).filter((p) => p !== null))].sort(model.inOrder);
    const data = rows.map((r) => ({
      value: [xs.indexOf(x ? r.line.sizes[x] : ""), ys.indexOf(y ? r.line.sizes[y] : ""), r.line.program === null ? -1 : chosen.indexOf(r.line.program)], row: r,
      itemStyle: { color: r.line.program === null ? look.line : COLOURS[chosen.indexOf(r.line.program) % COLOURS.length] },
    }));
    return {
      height: Math.max(170, 110 + ys.length * 40),
      option: {
        ...base(look, `Which program of ${instance.name} serves which sizes on ${choice.device}`),
        tooltip: { ...base(look).tooltip, trigger: "item", ...hover(look, ({ data: d }) => aboutServed(instance, d.row)) },
        grid: { left: room(ys.map(String), look) + 12, right: 24, top: 30, bottom: 44 },
        xAxis: axis(look, { type: "category", data: xs.map(String), name: x || "", nameLocation: "middle", nameGap: 28, splitLine: { show: false } }),
        yAxis: axis(look, { type: "category", data: ys.map(String), name: y || "", nameLocation: "end", splitLine: { show: false } }),
        series: [{ type: "custom", data, encode: { x: 0, y: 1 }, renderItem: (params, api) => {
          const at = api.coord([api.value(0), api.value(1)]), [w, h] = api.size([1, 1]);
          const { row } = data[params.dataIndex];
          return { type: "rect", shape: { x: at[0] - w / 2 + 1, y: at[1] - h / 2 + 1, width: w - 2, height: h - 2 }, style: api.style(), textContent: { style: { text: row.line.program === null ? "none" : `/${row.line.program}\n${row.chosen === null ? "" : time(row.chosen)}`, align: "center", lineHeight: 15, fill: "#fff", stroke: "#222", lineWidth: 2, fontSize: 12 } }, textConfig: { position: "inside" } };
        } }],
      },
    };
  }
  function aboutServed(instance, row) {
    const named = (program) => { const p = instance.byIndex.get(Number(program)); return p ? `/${program} ${model.schedule(p)}` : `/${program}`; };
    return [["", model.sizesText(row.line.sizes)], ["chosen", row.line.program === null ? "none" : named(row.line.program)], ["time", row.chosen === null ? "–" : time(row.chosen)],
      ...(row.second ? [["next", named(row.second[0])], ["slower by", percent(row.second[1] / (row.chosen ?? row.second[1]) - 1)]] : []),
      ["regret", row.regret === null ? "–" : percent(row.regret)], ["refused", rounded(Object.keys(row.line.refused).length)]];
  }

  function regret(instance, choice, look) {
    const rows = model.served(instance, choice.device).filter((r) => r.regret !== null);
    if (!rows.length) return null;
    const bar = (name, color, get) => ({ name, type: "bar", color, barMaxWidth: 14, data: rows.map((r) => (get(r) === null ? null : Number((get(r) * 100).toFixed(2)))) });
    return {
      height: 90 + rows.length * 38,
      option: {
        ...base(look, "Regret of the table against the best measured, and how far behind the next best is"),
        tooltip: { ...base(look).tooltip, trigger: "item", ...hover(look, ({ dataIndex }) => aboutServed(instance, rows[dataIndex])) },
        legend: { textStyle: { color: look.muted }, top: 0, itemHeight: 10 },
        grid: { left: room(rows.map((r) => model.sizesText(r.line.sizes)), look), right: 40, top: 32, bottom: 30 },
        xAxis: axis(look, { type: "value", name: "%", nameLocation: "end" }),
        yAxis: axis(look, { type: "category", inverse: true, data: rows.map((r) => model.sizesText(r.line.sizes)), axisLabel: named(look), splitLine: { show: false } }),
        series: [bar("next best is slower by", COLOURS[0], (r) => r.behind), bar("regret", COLOURS[5], (r) => r.regret)],
      },
    };
  }

  function roofline(instance, choice, look) {
    const points = [];
    for (const m of instance.measured.filter((each) => each.device === choice.device))
      if (m.bytes && m.flops)
        for (const [program, seconds] of Object.entries(m.seconds)) points.push({ value: [m.flops / m.bytes, m.flops / seconds / 1e9], program, seconds, line: m, chosen: Number(program) === m.program });
    if (!points.length) return null;
    const { bandwidth, peak } = points[0].line;
    const xs = points.map((p) => p.value[0]);
    const from = xs.reduce((a, b) => Math.min(a, b)) / 4, to = Math.max(xs.reduce((a, b) => Math.max(a, b)) * 4, bandwidth && peak ? (peak / bandwidth) * 4 : 0);
    const roof = (x) => Math.min(bandwidth ? (bandwidth * x) / 1e9 : Infinity, peak ? peak / 1e9 : Infinity);
    const knee = bandwidth && peak ? [peak / bandwidth] : [];
    const lineData = bandwidth || peak ? [from, ...knee, to].sort((a, b) => a - b).map((x) => [x, roof(x)]) : [];
    return {
      height: 360,
      option: {
        ...base(look, `Measured programs of ${instance.name} under the device's roofs`),
        tooltip: { ...base(look).tooltip, trigger: "item", ...hover(look, ({ data: d }) => (d.line ? [["", `/${d.program} at ${model.sizesText(d.line.sizes)}`], ["time", time(d.seconds)], ["GFLOP/s", rounded(d.value[1])], ["operations a byte", rounded(d.value[0])], ...(lineData.length ? [["of the roof", percent(d.value[1] / roof(d.value[0]))]] : [])] : [["", "roof"]])) },
        legend: { textStyle: { color: look.muted }, top: 0, itemHeight: 10 },
        grid: { left: 70, right: 28, top: 44, bottom: 46 },
        xAxis: axis(look, { type: "log", name: "operations a byte", nameLocation: "middle", nameGap: 28, min: from, max: to, axisLabel: { color: look.muted, formatter: rounded, hideOverlap: true } }),
        yAxis: axis(look, { type: "log", name: "GFLOP/s", nameLocation: "end", axisLabel: { color: look.muted, formatter: rounded } }),
        series: [
          { name: "measured", type: "scatter", symbolSize: 6, color: COLOURS[4], data: points.filter((p) => !p.chosen) },
          { name: "chosen", type: "scatter", symbol: "diamond", symbolSize: 13, color: COLOURS[5], data: points.filter((p) => p.chosen) },
          ...(lineData.length ? [{ name: "roof", type: "line", symbol: "none", color: look.ink, data: lineData, lineStyle: { width: 1.5 } }] : []),
        ],
      },
    };
  }

  function sizes(found, choice, look) {
    const scripts = new Map();
    for (const p of found.distinct) {
      if (!p.library) continue;
      if (!scripts.has(p.script)) scripts.set(p.script, new Map());
      const targets = scripts.get(p.script);
      if (!targets.has(p.target)) targets.set(p.target, []);
      targets.get(p.target).push({ name: p.label, value: p.library, program: p, itemStyle: { color: COLOURS[[...targets.keys()].indexOf(p.target) % COLOURS.length] } });
    }
    if (!scripts.size) return null;
    const data = [...scripts].map(([name, targets]) => ({ name, children: [...targets].map(([target, children]) => ({ name: target, children })) }));
    return {
      height: 520,
      option: {
        ...base(look, "Size of libraries by script, target and program"),
        tooltip: { ...base(look).tooltip, ...hover(look, ({ data: d, value, name }) => [["", name], ["size", bytes(value)], ...(d && d.program ? [["schedule", model.schedule(d.program)]] : [])]) },
        series: [{ type: "treemap", name: "all", data, left: 0, right: 0, top: 0, bottom: 30, roam: false, nodeClick: "zoomToNode", leafDepth: 3, breadcrumb: { bottom: 2, itemStyle: { color: look.card, borderColor: look.line, textStyle: { color: look.ink } } },
          label: { show: true, color: "#fff", textBorderColor: "#222", textBorderWidth: 2, fontSize: 10, lineHeight: 13, overflow: "break", formatter: ({ data: d, name, value }) => (d.program ? `${name.replace(` ${d.program.target}`, "")}\n${bytes(value)}` : name) }, upperLabel: { show: true, height: 20, color: look.ink, backgroundColor: look.card, formatter: ({ name, value }) => `${name}  ${bytes(value)}` },
          itemStyle: { borderColor: look.back, gapWidth: 1, borderWidth: 1 },
          levels: [{ upperLabel: { show: false }, itemStyle: { gapWidth: 4, borderWidth: 0 } }, { itemStyle: { gapWidth: 2, borderColor: look.line } }, { itemStyle: { gapWidth: 1, borderColor: look.line } }, {}] }],
      },
    };
  }

  return { timeline, funnel, map: spaceMap, parallel, served: servedMap, regret, roofline, sizes, rounded, bytes, time, percent, statusColour };
})();
