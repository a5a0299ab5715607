"use strict";

// What limiters and load controllers tell, once a second, and the pictures of it.
//
// Each answer is kept as it came. A picture is a list of lines, and a line is a function of two
// answers, the one before and the one at hand; so everything can be drawn anew from what is kept.

const EVERY = 1000; // milliseconds between two questions
const PATIENCE = 5000; // milliseconds until a question is given up
const FORGOTTEN = 120000; // milliseconds after which a process that does not answer is no more
const REPLACED = 5000; // the same, where others have taken its place
const GAP = 15; // seconds without an answer, over which no line is drawn
const SHORTEST = 20; // seconds that are shown at least
const KEPT = 900; // answers of a few limiters
const KEPT_IN_ALL = 9000; // answers, times the limiters that each is about
const WAITS_OVER = 15; // answers over which waits are looked at: one second has too few of them

const REASONS = {
  quota: "red",
  timeout: "orange",
  queue_full: "amber",
  overload: "violet",
  cost_too_high: "pink",
  cancelled: "grey",
  store_unavailable: "teal",
};
const SIGNALS = ["blue", "orange", "green", "violet", "amber", "pink", "teal", "red"];

const own = (object, name) => (object && Object.hasOwn(object, name) ? object[name] : undefined);
const element = (id) => document.getElementById(id);
const histories = new Map(); // of each process: its answers, oldest first
let shown = null; // which limiter: {process, limiter}
let span = 120; // seconds
let paused = false;
let charts = [];
let unseen = 0; // which chart was painted last though nobody sees it

// Numbers for people

function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.01) return value.toExponential(1);
  if (Math.abs(value) >= 1e6) return Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 }).format(value);
  const digits = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${number(value * 1e3)} ms` : `${number(value)} s`;
}

const clock = (time) => new Date(time * 1e3).toLocaleTimeString("en-GB");
const perSecond = (value) => (value === null ? "–" : `${number(value)}/s`);
const percent = (value) => (value === null || value === undefined ? "–" : `${number(value * 100)} %`);

// What the answers hold

/** The values of a metric of what is shown: by the text of their labels. */
function values(answer, name) {
  const limiter = own(answer.limiters, shown.limiter);
  const owner = name.startsWith("aiolimit_load_") ? own(answer.controllers, limiter?.controller) : limiter;
  return own(owner?.metrics, name) ?? {};
}

const value = (answer, name, labels = "") => own(values(answer, name), labels) ?? null;

/** How much a counter has grown in a second, between two answers. */
function rate(before, answer, name, labels = "") {
  if (!before || answer.afterGap) return null;
  const [then, now] = [value(before, name, labels), value(answer, name, labels)];
  return then === null || now === null ? null : Math.max(0, now - then) / (answer.at - before.at);
}

const total = (answer, name) => Object.values(values(answer, name)).reduce((sum, one) => sum + one, 0);

function totalRate(before, answer, name) {
  if (!before || answer.afterGap) return null;
  return Math.max(0, total(answer, name) - total(before, name)) / (answer.at - before.at);
}

/**
 * A quantile of the waits between two answers, as Prometheus' histogram_quantile tells it; but what is
 * in the first bucket, up to a millisecond, has not waited.
 */
function quantile(before, answer, share) {
  if (!before) return null;
  const now = value(answer, "aiolimit_wait_seconds");
  const then = value(before, "aiolimit_wait_seconds");
  if (!now || !then) return null;
  const counts = now.buckets.map((count, at) => count - then.buckets[at]);
  const all = counts[counts.length - 1];
  if (!all) return null;
  const bounds = CATALOGUE.waitBounds;
  const at = counts.findIndex((count) => count >= share * all);
  if (at === 0) return 0;
  if (at >= bounds.length) return bounds[bounds.length - 1];
  const [low, below] = [bounds[at - 1], counts[at - 1]];
  return low + ((bounds[at] - low) * (share * all - below)) / (counts[at] - below);
}

/** A limit as cost a second; of several rates the one that lets the least through. */
function limitPerSecond(answer, name) {
  const periods = values(answer, "aiolimit_limit_period_seconds");
  const limits = Object.entries(values(answer, name)).map(([per, limit]) => limit / periods[per]);
  return limits.length ? Math.min(...limits) : null;
}

// The pictures. A line is {label, color, at(before, answer, long), dashed, fill}; `long` is the answer some
// seconds ago.

const isShadow = () => own(latest()?.limiters, shown.limiter)?.shadow;
const rejections = () => (isShadow() ? "aiolimit_shadow_rejected" : "aiolimit_rejected");
const labelsOf = (name) => [...new Set(history().flatMap((answer) => Object.keys(values(answer, name))))];

const PICTURES = [
  {
    id: "rejected",
    title: () => (isShadow() ? "Would be rejected" : "Rejected"),
    about: () => (isShadow() ? "in shadow: counted, and let pass; calls a second, by reason" : "calls a second, by reason"),
    unit: perSecond,
    stacked: true,
    lines: () => labelsOf(rejections()).map((reason) => ({
      label: reason.replaceAll("_", " "),
      color: REASONS[reason] ?? "red",
      at: (before, answer) => rate(before, answer, rejections(), reason),
    })),
  },
  {
    id: "admitted",
    title: () => "Admitted against the limit",
    about: () => {
      const marks = own(latest()?.limiters, shown.limiter)?.controller ? "; marks: the load controller lowered its rate" : "";
      const brought = own(latest()?.limiters, shown.limiter)?.ownLimits ? ", where a call brings none of its own" : "";
      return `cost a second, of all keys together; the limit is that of one key${brought}${marks}`;
    },
    unit: perSecond,
    marks: true,
    lines: () => [
      { label: "admitted", color: "green", fill: true, at: (before, answer) => rate(before, answer, "aiolimit_cost_admitted") },
      { label: "limit now", color: "blue", dashed: true, at: (_, answer) => limitPerSecond(answer, "aiolimit_limit") },
      { label: "near the limit", color: "amber", at: (before, answer) => rate(before, answer, "aiolimit_near_limit") },
    ],
  },
  {
    id: "waiting",
    title: () => "Waiting and in flight",
    about: () => "callers, now",
    unit: number,
    lines: () => [
      { label: "waiting", color: "orange", fill: true, at: (_, answer) => value(answer, "aiolimit_waiting") },
      { label: "in flight", color: "blue", at: (_, answer) => value(answer, "aiolimit_in_flight") },
    ],
  },
  {
    id: "waits",
    title: () => "How long they waited",
    about: () => `of those who passed in the last ${WAITS_OVER} s`,
    unit: seconds,
    least: 0.001,
    lines: () => [[0.99, "red"], [0.95, "orange"], [0.5, "green"]].map(([share, color]) => ({
      label: `p${share * 100}`,
      color,
      at: (_before, answer, long) => quantile(long, answer, share),
    })),
  },
  {
    id: "limit",
    when: (limiter) => limiter.warmsUp,
    title: () => "Warm-up",
    about: () => "the limit that is in force, as a share of the configured one; and how warm it is",
    unit: percent,
    top: 1,
    lines: () => [
      { label: "limit in force", color: "blue", fill: true, at: (_, answer) => {
        const whole = limitPerSecond(answer, "aiolimit_limit_configured");
        return whole ? limitPerSecond(answer, "aiolimit_limit") / whole : null;
      } },
      { label: "warm", color: "orange", dashed: true, at: (_, answer) => value(answer, "aiolimit_warm_up_ratio") },
    ],
  },
  {
    id: "keys",
    title: () => "Keys",
    about: () => "held in memory, and held back from outside",
    unit: number,
    lines: () => [
      { label: "keys", color: "teal", fill: true, at: (_, answer) => value(answer, "aiolimit_keys") },
      { label: "held back", color: "orange", at: (_, answer) => value(answer, "aiolimit_keys_restricted") },
    ],
  },
  {
    id: "load",
    when: (limiter) => limiter.controller,
    wide: true,
    title: () => "Load: what this process can do, and what is asked of it",
    about: () => "requests a second; a dashed mark is where the controller lowered its rate, and why",
    unit: perSecond,
    marks: true,
    lines: () => [
      { label: "asked", color: "red", at: (before, answer) => {
        const [passed, not] = [rate(before, answer, "aiolimit_load_admitted"), rate(before, answer, "aiolimit_load_rejected")];
        return passed === null || not === null ? null : passed + not;
      } },
      { label: "admitted", color: "green", fill: true, at: (before, answer) => rate(before, answer, "aiolimit_load_admitted") },
      { label: "can do", color: "blue", dashed: true, at: (_, answer) => value(answer, "aiolimit_load_rate") },
    ],
  },
  {
    id: "flight",
    when: (limiter) => limiter.controller,
    title: () => "Load: in flight, against how many may be",
    about: () => "at the limit new calls are refused",
    unit: number,
    marks: true,
    lines: () => [
      { label: "in flight", color: "green", fill: true, at: (_, answer) => value(answer, "aiolimit_load_in_flight") },
      { label: "at most", color: "blue", dashed: true, at: (_, answer) => value(answer, "aiolimit_load_in_flight_limit") },
    ],
  },
  {
    id: "pressure",
    when: (limiter) => limiter.controller,
    title: () => "Load: pressure by signal",
    about: () => "1 is each signal's target; above it memory, stall, gc and your own sensors lower the rate",
    unit: number,
    top: 1,
    lines: () => labelsOf("aiolimit_load_pressure").map((signal, at) => ({
      label: signal.replaceAll("_", " "),
      color: SIGNALS[at % SIGNALS.length],
      at: (_, answer) => value(answer, "aiolimit_load_pressure", signal),
    })),
  },
  {
    id: "cost",
    when: (limiter) => limiter.controller,
    title: () => "Load: cost of a request",
    about: () => "CPU time of the event loop",
    unit: seconds,
    lines: () => [
      { label: "a request", color: "violet", fill: true, at: (_, answer) => value(answer, "aiolimit_load_request_cost_seconds") },
    ],
  },
  {
    id: "lag",
    when: (limiter) => limiter.controller,
    title: () => "Load: event loop",
    about: () => "its longest iteration in the last ten seconds",
    unit: seconds,
    lines: () => [
      { label: "longest iteration", color: "amber", fill: true, at: (_, answer) => value(answer, "aiolimit_load_loop_lag_seconds") },
    ],
  },
];

const history = () => histories.get(shown?.process) ?? [];
const latest = () => history().at(-1);

// Drawing

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A colour as an area has it: a quarter of it, on the ground of a chart. */
function tint(name) {
  const [ink, ground] = [color(name), color("panel")].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return `rgb(${ink.map((one, at) => Math.round(one * 0.25 + ground[at] * 0.75)).join()})`;
}

/** Lines on top of each other. Where one adds nothing it is left out, but for where it begins. */
function piled(lines) {
  const sums = lines[0]?.map(() => 0);
  return lines.map((line, which) => line.map((one, at) => {
    if (one === null) return null;
    sums[at] += one;
    // The lowest is drawn all along, as a line that breaks off would look like lost data.
    return which === 0 || one || line[at - 1] || line[at + 1] ? sums[at] : null;
  }));
}

class Chart {
  constructor(picture) {
    this.picture = picture;
    this.box = document.createElement("article");
    this.box.className = picture.wide ? "chart wide" : "chart";
    this.box.id = `chart-${picture.id}`;
    this.box.innerHTML = '<header><h2></h2><p></p></header><ul class="legend"></ul><div class="plot" tabindex="0" role="img"></div>';
    [this.heading, this.about, this.legend, this.plot] = this.box.querySelectorAll("h2, p, .legend, .plot");
    this.plot.addEventListener("keydown", (event) => this.walk(event));
    this.plot.addEventListener("blur", () => this.uplot?.setCursor({ left: -10, top: -10 }));
    this.resizing = new ResizeObserver(() => this.uplot?.setSize(this.size()));
    this.resizing.observe(this.plot);
    this.isSeen = false;
    this.seeing = new IntersectionObserver(([entry]) => {
      this.isSeen = entry.isIntersecting;
      if (this.isSeen && this.times) this.paint();
    });
    this.seeing.observe(this.plot);
    this.key = "";
  }

  size() {
    return { width: Math.max(200, this.plot.clientWidth), height: this.plot.clientHeight };
  }

  /** Work out all lines anew. The picture itself is made anew only when its lines are others. */
  draw(answers, now) {
    const lines = this.picture.lines();
    const key = lines.map((line) => line.label).join();
    this.heading.textContent = this.picture.title();
    this.about.textContent = this.picture.about();
    this.lines = lines;
    this.times = answers.map((answer) => answer.time);
    this.marks = this.picture.marks ? cuts(answers) : [];
    this.raw = lines.map((line) => answers.map((answer, at) => line.at(answers[at - 1], answer, answers[Math.max(0, at - WAITS_OVER)])));
    if (!this.uplot || key !== this.key) {
      this.key = key;
      this.make();
    }
    this.now = now;
    if (this.isSeen) this.paint();
    this.tell(this.uplot.cursor.idx);
  }

  /** Draw what was worked out. Who scrolls by pays for it, and nobody else. */
  paint() {
    const { times, now } = this;
    const drawn = this.picture.stacked ? piled(this.raw) : this.raw;
    this.uplot.batch(() => {
      this.uplot.setData([times, ...this.inOrder(drawn)], false);
      // As long as there is less to show than was asked for, all of it.
      this.uplot.setScale("x", { min: Math.max(now - span, Math.min(times[0], now - SHORTEST)), max: now });
    });
  }

  /** What is piled up covers what it stands on, so the highest pile is drawn first. */
  inOrder(lines) {
    return this.picture.stacked ? [...lines].reverse() : lines;
  }

  make() {
    this.uplot?.destroy();
    const axis = {
      stroke: () => color("muted"),
      grid: { stroke: () => color("grid"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const { least, stacked, top, unit } = this.picture;
    const highest = () => Math.max(top ?? 0, ...this.uplot.data.slice(1).flatMap((line) => line.filter((one, at) => one !== null && this.times[at] >= this.uplot.scales.x.min)));
    this.uplot = new uPlot({
      ...this.size(),
      legend: { show: false },
      cursor: { sync: { key: "aiolimit" }, y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: true }, y: { range: () => [0, (highest() || (least ?? 1)) * 1.08] } },
      axes: [
        { ...axis, size: 26, space: 80, values: (_, ticks) => ticks.map(clock) },
        { ...axis, size: 64, space: 34, values: (_, ticks) => ticks.map((tick) => unit(tick)) },
      ],
      series: [
        {},
        ...this.inOrder(this.lines).map((line) => ({
          label: line.label,
          stroke: () => color(line.color),
          width: 1.6,
          dash: line.dashed ? [6, 5] : undefined,
          fill: stacked || line.fill ? () => tint(line.color) : undefined,
          points: { show: false },
          spanGaps: false,
        })),
      ],
      hooks: {
        setCursor: [(uplot) => this.tell(uplot.cursor.idx)],
        draw: [(uplot) => this.mark(uplot)],
      },
    }, [[], ...this.lines.map(() => [])], this.plot);
  }

  /** The legend: what each line is at that place, or at the end. */
  tell(index) {
    const at = index ?? this.times.length - 1;
    const texts = this.lines.map((line, which) => `${line.label} ${this.picture.unit(this.raw[which][at] ?? null)}`);
    this.legend.replaceChildren(...this.lines.map((line, which) => {
      const item = document.createElement("li");
      const one = this.raw[which][at] ?? null;
      item.style.setProperty("--of", `var(--${line.color})`);
      item.className = `${line.dashed ? "dashed" : ""} ${one ? "" : "none"}`;
      item.dataset.line = line.label;
      item.dataset.value = one ?? "";
      const text = document.createElement("b");
      text.textContent = this.picture.unit(one);
      item.append(line.label, text);
      return item;
    }));
    const when = this.times[at] ? clock(this.times[at]) : "";
    this.plot.setAttribute("aria-label", `${this.heading.textContent}, ${when}: ${texts.join(", ")}`);
  }

  /** Vertical marks where the load controller lowered its rate. */
  mark(uplot) {
    const { ctx, bbox } = uplot;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = color("violet");
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    let free = -Infinity;
    for (const { time, reason } of this.marks) {
      if (time < uplot.scales.x.min) continue;
      const x = Math.round(uplot.valToPos(time, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const [gap, width] = [4 * devicePixelRatio, ctx.measureText(reason).width];
      const left = x + gap + width > bbox.left + bbox.width ? x - gap - width : x + gap;
      if (left > free) {
        const line = 11 * devicePixelRatio;
        ctx.fillStyle = color("panel");
        ctx.fillRect(left - 2, bbox.top, width + 4, line + gap);
        ctx.fillStyle = color("violet");
        ctx.fillText(reason, left, bbox.top + line);
        free = left + width + gap;
      }
    }
    ctx.restore();
  }

  /** The arrow keys walk along the lines. */
  walk(event) {
    const last = this.times.length - 1;
    const now = this.uplot.cursor.idx ?? last;
    const first = this.times.findIndex((time) => time >= this.uplot.scales.x.min);
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 10, PageDown: now + 10, Home: first, End: last }[event.key];
    if (event.key === "Escape") this.uplot.setCursor({ left: -10, top: -10 });
    if (to === undefined) return;
    event.preventDefault();
    const at = Math.min(last, Math.max(first, to));
    this.uplot.setCursor({ left: this.uplot.valToPos(this.times[at], "x"), top: 10 });
  }

  remove() {
    this.resizing.disconnect();
    this.seeing.disconnect();
    this.uplot?.destroy();
    this.box.remove();
  }
}

/** When the load controller lowered its rate, and why. */
function cuts(answers) {
  const found = [];
  answers.forEach((answer, at) => {
    if (!at) return;
    for (const [labels, count] of Object.entries(values(answer, "aiolimit_load_adjustments"))) {
      const [direction, reason] = [labels.slice(0, labels.indexOf(",")), labels.slice(labels.indexOf(",") + 1)];
      const before = value(answers[at - 1], "aiolimit_load_adjustments", labels) ?? 0;
      if (direction === "down" && count > before) found.push({ time: answer.time, reason });
    }
  });
  return found;
}

// The rest of the page

function tile(id, name, big, small, exact, alarm = false) {
  let box = element(`tile-${id}`);
  if (!box) {
    box = document.createElement("div");
    box.id = `tile-${id}`;
    box.innerHTML = "<span></span><b></b><span></span>";
    element("tiles").append(box);
  }
  box.className = alarm ? "tile alarm" : "tile";
  box.dataset.value = exact ?? "";
  const [top, middle, bottom] = box.children;
  if (top.textContent !== name) top.textContent = name;
  middle.textContent = big;
  bottom.textContent = small;
}

function drawTiles(before, answer) {
  const refusals = rejections();
  const refused = totalRate(before, answer, refusals);
  const all = total(answer, refusals);
  const admitted = value(answer, "aiolimit_admitted");
  tile("rejected", isShadow() ? "would be rejected" : "rejected", perSecond(refused), `${number(all)} in all`, all, refused > 0 && !isShadow());
  tile("admitted", "admitted", perSecond(rate(before, answer, "aiolimit_admitted")), `${number(admitted)} in all`, admitted);
  // Of what came in the time that is shown.
  const first = history().find((one) => one.time >= answer.time - span) ?? answer;
  const some = all - total(first, refusals);
  const tries = admitted - value(first, "aiolimit_admitted") + (isShadow() ? 0 : some);
  const share = tries > 0 ? some / tries : 0;
  tile("share", isShadow() ? "share that would be" : "share rejected", percent(share), "in the time shown", share);
  tile("waiting", "waiting", number(value(answer, "aiolimit_waiting")), "callers, now", value(answer, "aiolimit_waiting"));
  tile("in_flight", "in flight", number(value(answer, "aiolimit_in_flight")), "calls, now", value(answer, "aiolimit_in_flight"));
  const limits = Object.entries(values(answer, "aiolimit_limit"));
  const whole = values(answer, "aiolimit_limit_configured");
  const told = limits.map(([per, limit]) => `${number(limit)}/${per}`).join(", ");
  const bent = limits.some(([per, limit]) => limit < whole[per]);
  const warm = value(answer, "aiolimit_warm_up_ratio");
  tile("limit", "limit now", told, bent ? `${percent(warm)} warm` : "for each key", limits[0]?.[1]);
  tile("keys", "keys", number(value(answer, "aiolimit_keys")), `${number(value(answer, "aiolimit_keys_evicted"))} evicted so far`, value(answer, "aiolimit_keys"));
}

function drawNumbers(answer) {
  if (!element("numbers").open) return;
  const rows = [];
  for (const [name, { kind, help }] of Object.entries(CATALOGUE.instruments)) {
    const found = Object.entries(values(answer, name));
    found.forEach(([labels, one], at) => {
      const row = document.createElement("tr");
      const end = kind === "counter" ? "_total" : "";
      const text = kind === "histogram" ? `${number(one.buckets.at(-1))} calls, ${seconds(one.seconds)} in all` : number(one);
      for (const cell of [`${name}${end}${labels ? ` ${labels.replaceAll(",", " ")}` : ""}`, text]) {
        const data = document.createElement("td");
        data.textContent = cell;
        row.append(data);
      }
      if (at === 0) {
        const told = document.createElement("td");
        told.rowSpan = found.length;
        told.textContent = help;
        row.append(told);
      }
      rows.push(row);
    });
  }
  element("numbers").querySelector("tbody").replaceChildren(...rows);
}

function drawTabs() {
  const found = [];
  for (const [process, answers] of histories) {
    const answer = answers.at(-1);
    for (const limiter of Object.keys(answer.limiters)) found.push({ process, limiter, answers, answer });
  }
  if (!found.some((one) => one.process === shown?.process && one.limiter === shown?.limiter)) {
    shown = found.length ? { process: found[0].process, limiter: found[0].limiter } : null;
  }
  const titles = new Set(found.map((one) => one.answer.title));
  const processes = new Set(found.map((one) => one.process));
  const list = element("limiters");
  // Made anew only where they are others: a press of a button that is replaced meanwhile does nothing.
  const key = JSON.stringify(found.map((one) => [one.process, one.limiter]));
  const hadFocus = list.contains(document.activeElement);
  if (key !== list.dataset.key) {
    list.dataset.key = key;
    list.replaceChildren(...found.map((one) => newTab(one)));
  }
  found.forEach(({ process, limiter, answers, answer }, at) => {
    const tab = list.children[at];
    const [small, , badge] = tab.children;
    const is = process === shown.process && limiter === shown.limiter;
    tab.setAttribute("aria-selected", is);
    tab.tabIndex = is ? 0 : -1;
    if (is && hadFocus && document.activeElement !== tab) tab.focus();
    const from = [];
    if (titles.size > 1) from.push(answer.title);
    if (processes.size > titles.size) from.push(processName(answer, found));
    small.textContent = from.join(", ");
    const was = shown;
    shown = { process, limiter };
    const refused = totalRate(answers.at(-2), answer, rejections());
    badge.className = isShadow() ? "badge shadow" : "badge";
    badge.textContent = isShadow() ? `shadow ${perSecond(refused)}` : perSecond(refused);
    badge.hidden = !(refused > 0 || isShadow());
    shown = was;
  });
}

function newTab({ process, limiter }) {
  const tab = document.createElement("button");
  tab.type = "button";
  tab.setAttribute("role", "tab");
  tab.setAttribute("aria-controls", "panel");
  tab.tabIndex = -1;
  tab.innerHTML = "<small></small><span></span><span hidden></span>";
  tab.children[1].textContent = limiter;
  tab.addEventListener("click", () => select({ process, limiter }));
  return tab;
}

/** Containers tend to have the same process id, all of them. */
function processName(answer, found) {
  const alike = found.some((one) => one.answer.process === answer.process && one.answer.id !== answer.id);
  return `process ${answer.process}${alike ? ` (${answer.id.slice(0, 4)})` : ""}`;
}

function select(which) {
  shown = which;
  element("tiles").replaceChildren();
  draw();
}

element("limiters").addEventListener("keydown", (event) => {
  const tabs = [...element("limiters").children];
  const at = tabs.indexOf(document.activeElement);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  tabs[(to + tabs.length) % tabs.length].click();
});

function draw() {
  drawTabs();
  const answers = history();
  const answer = latest();
  if (!answer) return;
  const limiter = own(answer.limiters, shown.limiter);
  element("title").textContent = document.title = [...new Set([...histories.values()].map((one) => one.at(-1).title))].join(" and ");
  element("explanation").textContent = limiter.explanation;
  drawTiles(answers.at(-2), answer);
  const wanted = PICTURES.filter((picture) => !picture.when || picture.when(limiter));
  const key = wanted.map((picture) => picture.id).join();
  if (key !== charts.key) {
    charts.forEach((chart) => chart.remove());
    charts = wanted.map((picture) => new Chart(picture));
    charts.key = key;
    element("charts").append(...charts.map((chart) => chart.box));
  }
  const since = answers.findIndex((one) => one.time >= answer.time - span - 2);
  charts.forEach((chart) => chart.draw(answers.slice(Math.max(0, since)), answer.time));
  // One of those out of sight each time, so that a picture of the whole page shows no empty ones.
  unseen = (unseen + 1) % charts.length;
  if (!charts[unseen].isSeen) charts[unseen].paint();
  drawNumbers(answer);
}

// Asking

/** Keep an answer, with the time of day it is of. */
function keep(answer) {
  const { id } = answer;
  const answers = histories.get(id) ?? [];
  const before = answers.at(-1);
  if (before && answer.at <= before.at) return; // the same again
  answer.time = before ? before.time + (answer.at - before.at) : Date.now() / 1e3;
  answer.afterGap = Boolean(before) && answer.at - before.at > GAP;
  answers.push(answer);
  const most = Math.min(KEPT, Math.max(130, Math.floor(KEPT_IN_ALL / Object.keys(answer.limiters).length)));
  if (answers.length > most) answers.splice(0, answers.length - most);
  histories.set(id, answers);
}

/**
 * Forget processes that are no more. Of many workers each answers now and then; but where all others
 * have first been heard after one fell silent, they have taken its place.
 */
function forget() {
  const all = [...histories.values()];
  const newest = Math.max(...all.map((answers) => answers.at(-1).heardAt));
  for (const [id, answers] of histories) {
    const last = answers.at(-1);
    const silent = newest - last.heardAt;
    const others = all.filter((one) => one !== answers && one.at(-1).title === last.title);
    const replaced = others.length > 0 && others.every((one) => one[0].heardAt > last.heardAt);
    if (silent > FORGOTTEN || (silent > REPLACED && replaced)) histories.delete(id);
  }
}

let lostAt = null;

function tellConnection(state, text) {
  const output = element("connection");
  if (output.dataset.state !== state || output.textContent !== text) {
    output.dataset.state = state;
    output.textContent = text;
  }
  document.body.toggleAttribute("data-stale", state === "lost");
}

async function ask() {
  const query = new URLSearchParams(location.search);
  const key = element("key").value;
  if (key) query.set("key", key);
  try {
    const response = await fetch(`state?${query}`, { signal: AbortSignal.timeout(PATIENCE), cache: "no-store" });
    if (!response.ok) throw new Error(`answered with ${response.status}`);
    const said = await response.json();
    for (const answer of said.processes ?? [said]) {
      answer.heardAt = Date.now();
      keep(answer);
    }
  } catch (error) {
    lostAt ??= Date.now();
    const why = error.name === "TimeoutError" ? "no answer" : error.message.startsWith("answered") ? error.message : "connection lost";
    tellConnection("lost", `${why} for ${Math.max(1, Math.round((Date.now() - lostAt) / 1e3))} s, trying again`);
    return;
  }
  forget();
  lostAt = null;
  tellConnection("live", "live");
  draw();
}

async function run() {
  for (;;) {
    const begun = performance.now();
    if (paused) tellConnection("paused", "paused");
    // A fault of the page's own is for its console, and no reason to ask no more.
    else if (!document.hidden || !histories.size) await ask().catch(console.error);
    await new Promise((resume) => setTimeout(resume, Math.max(100, EVERY - (performance.now() - begun))));
  }
}

// What one can press

element("span").addEventListener("change", (event) => {
  span = Number(event.target.value);
  draw();
});
element("pause").addEventListener("click", () => {
  paused = !paused;
  element("pause").setAttribute("aria-pressed", paused);
  element("pause").textContent = paused ? "Go on" : "Pause";
});
element("key").addEventListener("change", () => ask());
element("numbers").addEventListener("toggle", () => latest() && drawNumbers(latest()));

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  charts.forEach((chart) => chart.uplot?.redraw(false));
}

const wishes = matchMedia("(prefers-color-scheme: light)");
wishes.addEventListener("change", () => setTheme(wishes.matches ? "light" : "dark"));
element("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "light" ? "dark" : "light"));
setTheme(wishes.matches ? "light" : "dark");
addEventListener("beforeprint", () => charts.forEach((chart) => chart.paint()));

run();
