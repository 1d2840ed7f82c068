#!/usr/bin/env python3
"""The figures of the documents, made from results that `pd bench` and `pd demo` have recorded, and from constants of the crates.

    docs/figures.py write   writes each table between `<!-- figures: MACHINE/TABLE -->` and `<!-- /figures -->` in the documents, and
                            each number before `<!-- = CRATE/FILE::CONSTANT -->`
    docs/figures.py check   says which of them differ from docs/results/MACHINE/results.json, and from the constants

A table names the command that repeats it. docs/design/benchmarks.md describes results.json.
"""
import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
MARKED = re.compile(r"<!-- figures: ([\w.-]+)/([\w-]+) -->\n(.*?)<!-- /figures -->", re.S)
OFFLOADED, DEFAULT, DIRECT = "pipedevice", "pipedevice-default", "pipedevice-direct"
CONSTANT = re.compile(r"([\d,]+)((?: [KMG]i?B)?)<!-- = ([\w/-]+)::(\w+) -->")
UNITS = {"KB": 1 << 10, "KiB": 1 << 10, "MB": 1 << 20, "MiB": 1 << 20, "GiB": 1 << 30}
LABELS = {
    OFFLOADED: "**PipeDevice, offloaded**",
    DEFAULT: "**PipeDevice, without a policy**",
    DIRECT: "**PipeDevice, direct**",
    "shm-ring": "shm-ring (no isolation)",
    "engine-pipeline": "engine-pipeline (three stages, no driver)",
    "memcpy": "memcpy (one thread)",
    "engine": "engine (nobody touches the bytes)",
}
# Schemes that do less than others: they are shown, and win nothing.
LIMITS = {"memcpy", "engine", "engine-pipeline", "shm-ring", "tcp-sendfile-untouched"}
TCP = ("tcp", "tcp-tuned")
# Parameters of rows that are measured under other conditions than the benchmark's own.
CONDITIONS = ("connections", "cores_of_ends", "cores_of_all", "waiting", "hugepages")
MISSING = "–"


class Results:
    """What one machine has recorded."""

    def __init__(self, name):
        self.name = name
        found = json.loads((RESULTS / name / "results.json").read_text())
        self.machine, self.runs, self.rows = found["machine"], found["runs"], found["rows"]

    def of(self, bench, **wanted):
        """Rows of a benchmark with these parameters; None stands for a parameter that a row lacks."""
        absent = {name: None for name in CONDITIONS if bench in ("throughput", "latency")}
        wanted = {**absent, **wanted}
        return [row for row in self.rows if row["bench"] == bench and all(row.get(k) == v for k, v in wanted.items())]

    def one(self, bench, scheme, **wanted):
        """The row of a scheme; empty if it did not run."""
        found = [row for row in self.of(bench, **wanted) if row["scheme"] == scheme and "not_run" not in row]
        return found[0] if found else {}

    def better_tcp(self, bench, figure, less=False, **wanted):
        """The row of kernel TCP that ratios are to."""
        rows = [row for row in (self.one(bench, scheme, **wanted) for scheme in TCP) if figure in row]
        return (min if less else max)(rows, key=lambda row: row[figure], default={})

    def values(self, bench, parameter):
        """Values of a parameter, in order."""
        return sorted({row[parameter] for row in self.of(bench) if parameter in row})

    def schemes(self, bench):
        """Schemes with figures, PipeDevice first."""
        ran = list(dict.fromkeys(row["scheme"] for row in self.of(bench) if "not_run" not in row))
        ours = [scheme for scheme in (DEFAULT, OFFLOADED, DIRECT) if scheme in ran]
        return ours + [scheme for scheme in ran if scheme not in ours]

    def source(self, bench):
        """The line below a table: command, rounds, day, and what did not run."""
        rows = [row for row in self.rows if row["bench"] == bench]
        run = self.runs[bench]
        day = time.strftime("%d %B %Y", time.gmtime(run["unix_time_s"])).lstrip("0")
        rounds = max(row["rounds"] for row in rows)
        text = f"`{run['command']}`, medians of {rounds} rounds, {day}."
        schemes = {}
        for row in rows:
            if "not_run" in row and "left out" not in row["not_run"]:
                schemes.setdefault(row["not_run"], {})[row["scheme"]] = None
        if schemes:
            text += " Not run, or not with all parameters: " + "; ".join(f"{', '.join(s)} ({r})" for r, s in schemes.items()) + "."
        discarded = sum(row.get("rounds_discarded", 0) for row in rows)
        if discarded:
            text += f" Rounds discarded, because the machine was disturbed: {discarded}."
        return text


def number(value, digits=3):
    """A figure with three digits that count, large ones in groups."""
    if value is None:
        return MISSING
    if value >= 100:
        return f"{value:,.0f}"
    decimals = max(0, digits - 1 - (len(str(int(value))) - 1)) if value >= 1 else 2 if value >= 0.1 else 3
    return f"{value:.{decimals}f}"


def size_text(value):
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if value >= unit and value % unit == 0:
            return f"{value // unit} {name}"
    return f"{value:,} B"


def named(row):
    """The parameters of a row for people."""
    text = []
    for pair in row["parameters"].split(", "):
        name, _, value = pair.partition(" ")
        if name.endswith("bytes") and value.isdigit():
            text.append(size_text(int(value)))
        elif value in ("true", "false"):
            text.append(name.replace("_", " ") if value == "true" else "no " + name.replace("_", " "))
        elif name in ("program", "attack", "candidate", "part"):
            text.append(value)
        else:
            text.append(f"{value} {name.replace('_', ' ')}")
    return ", ".join(text)


def pair(row, figure, other):
    """A figure, and another in brackets."""
    return f"{number(row[figure])} ({number(row.get(other))})" if figure in row else MISSING


def gain(row, spread=False):
    """What a row gains over the better TCP, and the CPU time in brackets."""
    if "gain_over_tcp" not in row:
        return MISSING
    text = f"{row['gain_over_tcp']:.2f}"
    if spread:
        text += f" [{row['gain_over_tcp_min']:.2f}..{row['gain_over_tcp_max']:.2f}]"
    return text + (f" ({row['cpu_over_tcp']:.2f})" if "cpu_over_tcp" in row else "")


def table(heading, lines):
    """A table of Markdown with figures to the right."""
    rows = [heading, ["---"] + ["---:"] * (len(heading) - 1), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def winner(rows, figure, less=False):
    """The scheme with the best figure, of those that isolate or at least move bytes between processes."""
    rows = [row for row in rows if figure in row and row["scheme"] not in LIMITS]
    return (min if less else max)(rows, key=lambda row: row[figure])["scheme"] if rows else MISSING


def pivot(results, bench, parameter, values, figure, other, unit, less=False, **wanted):
    """Schemes by values of a parameter, with the winners below."""
    values = [value for value in values if value in results.values(bench, parameter)]
    at = lambda scheme, value: results.one(bench, scheme, **{parameter: value}, **wanted)
    lines = []
    for scheme in results.schemes(bench):
        rows = [at(scheme, value) for value in values]
        if any(figure in row for row in rows):
            lines.append([LABELS.get(scheme, scheme)] + [pair(row, figure, other) for row in rows])
    columns = [[row for row in results.of(bench, **{parameter: value}, **wanted) if "not_run" not in row] for value in values]
    lines.append(["wins"] + [winner(rows, figure, less) for rows in columns])
    if any(other in row for rows in columns for row in rows):
        lines.append(["wins in the brackets"] + [winner(rows, other, True) for rows in columns])
    shown = size_text if parameter == "message_bytes" else lambda value: f"{value:,}"
    return table([unit] + [shown(value) for value in values], lines)


def gains(results, bench, parameter, title, **wanted):
    values = results.values(bench, parameter)
    lines = [
        [LABELS[scheme]] + [gain(results.one(bench, scheme, **{parameter: value}, **wanted)) for value in values]
        for scheme in (DEFAULT, OFFLOADED)
    ]
    shown = size_text if parameter == "message_bytes" else lambda value: f"{value:,}"
    return table([title] + [shown(value) for value in values], lines)


SIZES = [64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
OVER = "over the better TCP, times (CPU time)"


def machine(results):
    m = results.machine
    return (
        f"{m['cores']} cores of {m['cpu']}, {m['memory_bytes'] / 1e9:.0f} GB of memory, Linux {m['kernel'].split('-')[0]}. "
        f"Benchmarks make hugepages of 2 MB for the time of a run, where a row does not say otherwise. Transparent ones: "
        f"`{m['transparent_hugepages']}`. The machine's own congestion control is `{m['tcp_congestion_control']}`; "
        "`tcp` is measured with `cubic`, Linux's default."
    )


PLACES = ((None, "placed by the scheduler"), (1, "both ends on one core"), (2, "each end on a core"))


def columns(results, bench, figure, other, heads, unit, less=False):
    """Schemes by conditions, each with a heading, and the winners below."""
    heads = [(head, wanted) for head, wanted in heads if results.of(bench, **wanted)]
    if not heads:
        return ""
    lines = []
    for scheme in results.schemes(bench):
        rows = [results.one(bench, scheme, **wanted) for _, wanted in heads]
        if any(figure in row for row in rows):
            lines.append([LABELS.get(scheme, scheme)] + [pair(row, figure, other) for row in rows])
    ran = [[row for row in results.of(bench, **wanted) if "not_run" not in row] for _, wanted in heads]
    lines.append(["wins"] + [winner(rows, figure, less) for rows in ran])
    lines.append(["wins in the brackets"] + [winner(rows, other, True) for rows in ran])
    return table([unit] + [head for head, _ in heads], lines)


def waits(size):
    """Columns of all ways to wait and places."""
    return [(f"all {'block' if waiting == 'blocks' else 'spin'}, {where}", {"message_bytes": size, "waiting": waiting, "cores_of_ends": cores})
            for waiting in ("blocks", "spins") for cores, where in PLACES]


def throughput(results):
    return (
        pivot(results, "throughput", "message_bytes", SIZES, "throughput_gbit_per_s", "cpu_s_per_gb", "Gbit/s (CPU s/GB)")
        + "\n\n" + gains(results, "throughput", "message_bytes", OVER)
    )


def conditions(results):
    """Streams of 64 KB while all wait alike, over 16 connections, and without hugepages."""
    figures, size = ("throughput_gbit_per_s", "cpu_s_per_gb"), 64 << 10
    streams = [("1 connection", {"message_bytes": size}), ("16 connections", {"message_bytes": size, "connections": 16})]
    pages = [(f"{size_text(bytes)}, {'hugepages' if has is None else 'no hugepages'}", {"message_bytes": bytes, "hugepages": has})
             for bytes in (1 << 10, 64 << 10, 1 << 20) for has in (None, False)]
    parts = [
        columns(results, "throughput", *figures, waits(size), "64 KB, Gbit/s (CPU s/GB)"),
        columns(results, "throughput", *figures, streams, "64 KB, Gbit/s (CPU s/GB)"),
        columns(results, "throughput", *figures, pages, "Gbit/s (CPU s/GB)"),
    ]
    return "\n\n".join(part for part in parts if part)


def latency(results):
    parts = [pivot(results, "latency", "message_bytes", results.values("latency", "message_bytes"), "latency_us_p50", "latency_us_p99",
                   "P50 (P99) µs", True)]
    parts.append(columns(results, "latency", "latency_us_p50", "cpu_us_per_round_trip",
                         [(f"{size_text(size)}, {where}", {"message_bytes": size, "cores_of_ends": cores})
                          for size in (64, 64 << 10) for cores, where in PLACES], "P50 µs (CPU µs)", True))
    return "\n\n".join(part for part in parts if part)


def waiting(results):
    """Round trips while all wait alike."""
    parts = [columns(results, "latency", "latency_us_p50", "cpu_us_per_round_trip", waits(size), f"{size_text(size)}, P50 µs (CPU µs)", True)
             for size in (64, 64 << 10)]
    return "\n\n".join(part for part in parts if part)


def programs(results):
    lines = []
    rows = [row for row in results.of("programs", scheme=DEFAULT)]
    for row in rows:
        wanted = {"parameters": row["parameters"]}
        rates = "throughput_gbit_per_s" in row
        figure, other = ("throughput_gbit_per_s", "cpu_s_per_gb") if rates else ("requests_per_s", "cpu_us_per_request")
        at = lambda scheme: results.one("programs", scheme, **wanted)
        own = [at(scheme) for scheme in ("tcp", "tcp-tuned", DEFAULT, OFFLOADED)]
        if not any(figure in r for r in own):
            continue
        name = named(row) + (", Gbit/s (s/GB)" if rates else "")
        lines.append(
            [name] + [pair(r, figure, other) for r in own] + [gain(own[2]), gain(own[3]), winner(own, figure)]
        )
    heading = ["", "tcp", "tcp-tuned", "without a policy", "offloaded", "gain without a policy (CPU)", "offloaded", "wins"]
    return "Requests/s (µs of CPU time each), or what the row says.\n\n" + table(heading, lines)


def connections(results):
    values = results.values("connections", "connections")
    parts = [
        pivot(results, "connections", "connections", values, "throughput_gbit_per_s", "cpu_s_per_gb", "Gbit/s (CPU s/GB)"),
        pivot(results, "connections", "connections", values, "idle_bytes_per_connection", "active_bytes_per_connection",
              "bytes of an idle (active) connection", True),
    ]
    return "\n\n".join(parts)


def cpu(results):
    targets = results.values("cpu", "target_gbit_per_s")
    return pivot(results, "cpu", "target_gbit_per_s", targets, "cpu_cores", "throughput_gbit_per_s",
                 "cores busy (Gbit/s reached)", True)


def setup(results):
    parts = []
    for message, text in ((None, "connections/s (CPU µs each)"), (64, "the same with 64 B there and back")):
        values = results.values("setup", "at_a_time")
        parts.append(pivot(results, "setup", "at_a_time", values, "connections_per_s", "cpu_us_per_connection",
                           f"{text}, at a time", message_bytes=message))
    return "\n\n".join(parts)


def fairness(results):
    lines = []
    for row in results.of("fairness"):
        if "not_run" not in row:
            lines.append([LABELS.get(row["scheme"], row["scheme"]) + ", " + named(row), number(row["throughput_gbit_per_s"]),
                          number(row["share_gbit_per_s_least"]), number(row["share_gbit_per_s_most"]), f"{row['jain_index']:.4f}"])
    return table(["", "Gbit/s", "least share", "most", "Jain's index"], lines)


def movers(results):
    """What several pairs of containers have together and each, by movers of the driver."""
    lines = []
    for count in results.values("movers", "movers"):
        for row in results.of("movers", movers=count):
            rate = f"{number(row['throughput_gbit_per_s'])} [{number(row['throughput_gbit_per_s_min'])}..{number(row['throughput_gbit_per_s_max'])}]"
            shares = f"{number(row['share_gbit_per_s_least'])}..{number(row['share_gbit_per_s_most'])}"
            lines.append([f"{count}", rate, shares, f"{row['jain_index']:.3f}"])
    return table(["movers", "Gbit/s of all pairs [least..most]", "Gbit/s of a pair, the least and the most", "Jain's index"], lines)


def memory(results):
    lines = [
        [LABELS.get(row["scheme"], row["scheme"]) + ", " + named(row)]
        + [number(row[m] / 1e6) if m in row else MISSING for m in ("memory_bytes", "memory_bytes_idle", "memory_bytes_pairwise")]
        for row in results.of("memory") if "not_run" not in row
    ]
    return table(["", "MB", "idle", "with memory of pairs"], lines)


def breakdown(results):
    lines = [
        [LABELS.get(row["scheme"], row["scheme"]) + ", " + named(row), number(row.get("cpu_share_percent")), number(row.get("cpu_s_per_gb"))]
        for row in results.of("breakdown") if "not_run" not in row
    ]
    return table(["", "% of CPU time", "CPU s/GB"], lines)


def tune(results):
    names = list(dict.fromkeys(row["candidate"] for row in results.of("tune")))
    lines = []
    for name in names:
        rows = [row for row in results.of("tune", candidate=name) if "not_run" not in row]
        stream = {row["message_bytes"]: row for row in rows if "throughput_gbit_per_s" in row}
        trips = next((row for row in rows if "latency_us_p50" in row), {})
        over = next((row["over_linux"] for row in rows if "over_linux" in row), None)
        lines.append([name] + [pair(stream.get(bytes, {}), "throughput_gbit_per_s", "cpu_s_per_gb") for bytes in (64 << 10, 1 << 20)]
                     + [number(trips.get("latency_us_p50")), number(over)])
    return table(["candidate", "64 KB, Gbit/s (CPU s/GB)", "1 MB", "round trip, P50 µs", "all, over Linux's default"], lines)


def isolation(results):
    def kept(row, name, bar):
        if name not in row:
            return MISSING
        return f"{row[name]:.2f} [{row[name + '_min']:.2f}..{row[name + '_max']:.2f}]{missed(row, row[name] < bar)}"

    def missed(row, is_so):
        return " **missed**" if is_so and row["scheme"] != "tcp" else ""

    def gap(row):
        return number(row.get("longest_gap_ms")) + missed(row, row.get("longest_gap_ms", 0) >= 20)

    has_cores = any("driver_cores" in row for row in results.of("isolation"))

    def cores(row):
        if not has_cores:
            return []
        alone = number(row.get("driver_cores_alone"))
        return [f"{number(row.get('driver_cores'))} ({alone})", number(row.get("mover_wait_cores")), number(row.get("attacker_cores"))]

    def lines(scheme):
        for row in results.of("isolation", scheme=scheme):
            if "kept" in row:
                jain = f"{row['jain_index']:.3f}{missed(row, row['jain_index'] < 0.99)}" if "jain_index" in row else ""
                yield [
                    named(row), kept(row, "kept", 0.45), pair(row, "throughput_gbit_per_s", "throughput_gbit_per_s_alone"),
                    kept(row, "kept_below_share", 0.9), gap(row),
                    f"{number(row['latency_us_p99'])} ({number(row['latency_us_p99_alone'])})", jain, number(row.get("attacks_per_s")),
                    *cores(row),
                ]

    heading = ["keeps, busy", "Gbit/s (alone)", "below its share", "longest gap, ms", "round trip P99, µs (alone)", "Jain", "attacks/s"]
    heading += ["cores: driver (alone)", "its mover waits", "attacker"] if has_cores else []
    paths = [(title, list(lines(scheme))) for title, scheme in (("offloaded", OFFLOADED), ("direct", DIRECT), ("kernel TCP", "tcp"))]
    tables = [table([title] + heading, rows) for title, rows in paths if rows]
    ended = [[LABELS[s], number(r.get("ended_ms")), number(r.get("ended_ms_max"))] for s in (OFFLOADED, DIRECT)
             for r in [results.one("isolation", s, attack="denied")]]
    if any(row.get("attack") == "denied" and "ended_ms" in row for row in results.of("isolation")):
        tables.append(table(["a connection that a policy denies ends after", "ms", "at most"], ended))
    return "\n\n".join(tables)


def demo(results):
    lines = []
    for part in ("file", "bulk"):
        rows = [row for row in results.of("demo", part=part) if "not_run" not in row]
        best = winner(rows, "throughput_gbit_per_s")
        for row in rows:
            name = LABELS.get(row["scheme"], row["scheme"])
            lines.append([f"{part}: {name}" + (", wins" if row["scheme"] == best else ""),
                          f"{number(row['throughput_gbit_per_s'])} [{number(row['throughput_gbit_per_s_min'])}..{number(row['throughput_gbit_per_s_max'])}]",
                          f"{number(row['cpu_s_per_gb'])}", gain(row, spread=True)])
    return table(["", "Gbit/s [least..most]", "CPU s/GB", OVER], lines)


# Bars of a proxy on the fabric: figure, heading, bar, whether it is the least.
SIDECAR_BARS = [
    ("over_tcp_without_proxy", "requests/s over kernel TCP without a proxy", 1.0, True),
    ("gain_over_tcp", "over kernel TCP with it", 2.5, True),
    ("p99_over_tcp", "P99 over kernel TCP with it", 1.0, False),
    ("cpu_over_tcp", "CPU time a request over kernel TCP with it", 0.5, False),
]


def sidecar(results):
    """Requests through proxies, and how far they are from the bars."""
    def judged(row, figure, bar, is_least):
        if figure not in row:
            return MISSING
        missed = row[figure] < bar if is_least else row[figure] > bar
        return f"{row[figure]:.2f} [{row[figure + '_min']:.2f}..{row[figure + '_max']:.2f}]" + (" **missed**" if missed else "")

    ran = [row for row in results.of("sidecar") if "not_run" not in row]
    schemes = [scheme for scheme in (*TCP, DEFAULT, OFFLOADED) if any(row["scheme"] == scheme for row in ran)]
    named_by = lambda row: f"{size_text(row['answer_bytes'])}, {row['connections']} connections, {row['proxy']}"
    kinds = list(dict.fromkeys((row["answer_bytes"], row["connections"], row["proxy"]) for row in ran))
    parts = []
    for figure, other, heading in (("requests_per_s", "cpu_us_per_request", "requests/s (CPU µs each)"), ("latency_us_p50", "latency_us_p99", "P50 (P99) µs")):
        lines = []
        for answer, connections, proxy in kinds:
            rows = [results.one("sidecar", scheme, answer_bytes=answer, connections=connections, proxy=proxy) for scheme in schemes]
            lines.append([next(named_by(row) for row in rows if row)] + [pair(row, figure, other) for row in rows])
        parts.append(table([heading] + [LABELS.get(scheme, scheme) for scheme in schemes], lines))
    for scheme in (DEFAULT, OFFLOADED):
        lines = [[named_by(row)] + [judged(row, figure, bar, is_least) for figure, _, bar, is_least in SIDECAR_BARS]
                 for row in ran if row["scheme"] == scheme and row["proxy"] != "none"]
        heading = [LABELS[scheme]] + [f"{name}; bar {bar:g}" for _, name, bar, _ in SIDECAR_BARS]
        if lines:
            parts.append(table(heading, lines))
    return "\n\n".join(parts)


# Applications over pipes: parameters, what they are called, the least ratio to the packetised interface that was aimed at.
PIPES = [
    ("echo", {"frame_bytes": "64"}, "echo, 64 B", 2.4), ("echo", {"frame_bytes": "imix"}, "echo, IMIX", 1.35), ("echo", {"frame_bytes": "1518"}, "echo, 1,518 B", None),
    ("maglev", {}, "maglev, a flood of SYN, 64 B", 1.9), ("nitro", {}, "nitro, 64 B", 2.2),
    ("kv", {"requests_under_way": None}, "kv, 95 % gets", 1.3), ("logmon", {}, "logmon, pieces of 1,448 B", 1.2),
]

# Two schemes beside each other: what they are called, application, parameters, schemes, the least ratio that was aimed at.
PIPE_PAIRS = [
    ("echo: pipe, and memif", "echo", {"frame_bytes": "64"}, "pipe", "memif", 3.5),
    ("echo: notified when idle, and of each packet", "echo", {"frame_bytes": "64"}, "pipe", "pipe-each", 3.0),
    ("link of one tenant: by shared rings, and memif", "link", {"frame_bytes": "64"}, "link", "memif", 4.0),
    ("link of two tenants: the agent copies, and memif", "link", {"frame_bytes": "64"}, "link-agent", "memif", 2.0),
]


def pipes(results):
    """Packets of each application over both interfaces, times, and latency."""
    def spread(row, figure):
        return f"{row[figure]:.2f} [{row[figure + '_min']:.2f}..{row[figure + '_max']:.2f}]" if figure in row else MISSING

    def judged(ratio, bar):
        return f"{ratio:.2f}" + (f" of {bar:g}" if bar else "") + (" **missed**" if bar and ratio < bar else "")

    lines, shares = [], []
    for app, wanted, name, bar in PIPES:
        twin, memif, pipe = (results.one("pipe", scheme, app=app, **wanted) for scheme in ("packetised", "memif", "pipe"))
        if "packets_per_s" not in pipe:
            continue
        reached = MISSING if bar is None else f"{bar:g}" + ("" if pipe["over_packetised"] >= bar else " **missed**")
        lines.append([name] + [number(row["packets_per_s"] / 1e6) if row else MISSING for row in (twin, memif, pipe)]
                     + [spread(pipe, "over_packetised"), reached])
        shares.append([name] + [number(row.get("program_cycles_per_packet")) if row else MISSING for row in (twin, memif, pipe)]
                      + [spread(pipe, "program_time_over_packetised")]
                      + [f"{row['cpu_share_percent_nic']:.1f}, {row['cpu_share_percent_program']:.1f}" for row in (twin, pipe)])
    parts = [
        table(["million packets/s", "packetised", "memif", "pipe", "pipe to packetised [least..most]", "bar"], lines),
        table(["cycles of the program's core for a packet", "packetised", "memif", "pipe", "pipe to packetised [least..most]",
               "shares of NIC's and program's core, %: packetised", "pipe"], shares),
    ]
    lines = []
    for name, app, wanted, ours, other, bar in PIPE_PAIRS:
        pair = [results.one("pipe", scheme, app=app, **wanted) for scheme in (ours, other)]
        if all("packets_per_s" in row for row in pair):
            rates = [row["packets_per_s"] for row in pair]
            lines.append([name] + [number(rate / 1e6) for rate in rates] + [judged(rates[0] / rates[1], bar), number(pair[0].get("cpu_share_percent_agent"))])
    if lines:
        parts.append(table(["million packets/s, 64 B", "the first", "the second", "ratio of the medians, and bar", "agent's core, %, with the first"], lines))
    lines = []
    for window in results.values("pipe", "requests_under_way"):
        twin, pipe = (results.one("pipe", scheme, app="kv", requests_under_way=window) for scheme in ("packetised", "pipe"))
        if "latency_us_mean" in pipe:
            lines.append([f"{window}"] + [number(row["latency_us_mean"]) for row in (twin, pipe)] + [spread(pipe, "latency_over_packetised")])
    parts.append(table(["kv: mean latency in µs, requests under way", "packetised", "pipe", "ratio [least..most]; bar 0.6"], lines))
    return "\n\n".join(parts)


# What was aimed at: benchmark, parameters, scheme, least gain over the better TCP, most of its CPU time.
BARS = [
    ("native, 64 KB", "throughput", {"message_bytes": 64 << 10}, DEFAULT, 3.0, 0.42),
    ("native, 64 KB", "throughput", {"message_bytes": 64 << 10}, OFFLOADED, 1.7, None),
    ("native, 1 KB", "throughput", {"message_bytes": 1 << 10}, DEFAULT, 25.0, None),
    ("native, 1 KB", "throughput", {"message_bytes": 1 << 10}, OFFLOADED, 8.0, None),
    ("native, 64 B", "throughput", {"message_bytes": 64}, DEFAULT, 15.0, None),
    ("native, 64 B", "throughput", {"message_bytes": 64}, OFFLOADED, 3.0, None),
    ("demo, file", "demo", {"part": "file"}, DEFAULT, 2.0, 0.55),
    ("demo, file", "demo", {"part": "file"}, OFFLOADED, 1.2, 1.0),
    ("demo, bulk", "demo", {"part": "bulk"}, DEFAULT, 2.8, 0.45),
    ("demo, bulk", "demo", {"part": "bulk"}, OFFLOADED, 1.7, 1.0),
    ("iperf3, 1 stream", "programs", {"parameters": "program iperf3, streams 1"}, DEFAULT, 2.3, 0.5),
    ("iperf3, 4 streams", "programs", {"parameters": "program iperf3, streams 4"}, DEFAULT, 2.8, 0.4),
    ("nginx, 1 MB", "programs", {"parameters": "program nginx, file_bytes 1048576"}, DEFAULT, 1.6, 0.75),
    ("nginx, 64 B, a connection for each request", "programs", {"parameters": "program nginx, file_bytes 64, keep_alive false"},
     DEFAULT, 1.0, 1.0),
    ("redis, 64 KB", "programs", {"parameters": "program redis, value_bytes 65536, pipeline 1, connections 50"}, DEFAULT, 1.7, None),
    ("redis, 64 KB, 16 under way", "programs", {"parameters": "program redis, value_bytes 65536, pipeline 16, connections 50"}, DEFAULT, 1.3, None),
    ("redis, 64 B", "programs", {"parameters": "program redis, value_bytes 64, pipeline 1, connections 50"}, DEFAULT, 2.5, None),
    ("redis, 64 B, 16 under way", "programs", {"parameters": "program redis, value_bytes 64, pipeline 16, connections 50"}, DEFAULT, 1.2, None),
]


def bars(results):
    lines = []
    for name, bench, wanted, scheme, least, most in BARS:
        row = results.one(bench, scheme, **wanted)
        if "gain_over_tcp" not in row:
            lines.append([f"{name}: {LABELS[scheme]}", bar_text(least, most), MISSING, "not measured"])
            continue
        reached = row["gain_over_tcp"] >= least and (most is None or row["cpu_over_tcp"] <= most)
        lines.append([f"{name}: {LABELS[scheme]}", bar_text(least, most), gain(row, spread=True), "reached" if reached else "**not reached**"])
    return table(["over the better TCP (CPU time)", "bar", "measured [least..most] (CPU time)", ""], lines)


def bar_text(least, most):
    return f"{least:g}" + (f" ({most:g})" if most is not None else "")


# The README's five: name, benchmark, parameters, figure, unit, whether less is better.
SUMMARY = [
    ("native messages of 64 KB", "throughput", {"message_bytes": 64 << 10}, "throughput_gbit_per_s", "Gbit/s", False),
    ("files with checksums, `make demo`", "demo", {"part": "file"}, "throughput_gbit_per_s", "Gbit/s", False),
    ("native round trip of 64 B, one core for both ends, P50", "latency", {"message_bytes": 64, "cores_of_ends": 1},
     "latency_us_p50", "µs", True),
    ("iperf3, unmodified, one stream", "programs", {"parameters": "program iperf3, streams 1"}, "throughput_gbit_per_s", "Gbit/s", False),
    ("redis, unmodified, 64 B, one request under way", "programs",
     {"parameters": "program redis, value_bytes 64, pipeline 1, connections 50"}, "requests_per_s", "/s", False),
]


def summary(results):
    lines = []
    for name, bench, wanted, figure, unit, less in SUMMARY:
        rows = [results.one(bench, scheme, **wanted) for scheme in (DEFAULT, OFFLOADED)]
        tcp = results.better_tcp(bench, figure, less, **wanted)
        if bench == "demo":
            ran = [row for row in results.of("demo", **wanted) if row["scheme"].startswith("tcp") and row["scheme"] not in LIMITS]
            tcp = max(ran, key=lambda row: row[figure], default={})
        cells = [f"{number(tcp[figure])} {unit}" if tcp else MISSING]
        for row in rows:
            ratio = f": {row['gain_over_tcp']:.2f} times, {row['cpu_over_tcp']:.2f} of the CPU time" if "gain_over_tcp" in row else ""
            cells.append(f"{number(row[figure])} {unit}{ratio}" if figure in row else MISSING)
        if any(cell != MISSING for cell in cells):
            lines.append([name, *cells])
    return table(["", "kernel TCP, the better of two", "PipeDevice, without a policy", "offloaded"], lines)


# Rows that the list of small gains has.
SMALL_GAINS = 8


def small_gains(results):
    """The programs that lose most, or gain least: those with less than 1.2 times on one of the two paths."""
    gains = {}
    for scheme in (DEFAULT, OFFLOADED):
        for row in results.of("programs", scheme=scheme):
            if "gain_over_tcp" in row:
                gains.setdefault(named(row), {})[scheme] = row["gain_over_tcp"]
    small = sorted((min(each.values()), name, each) for name, each in gains.items() if min(each.values()) < 1.2)
    if not small:
        measured = ", ".join(sorted({row["program"] for row in results.of("programs") if "gain_over_tcp" in row}))
        return f"In the last recorded run ({measured}) none gains less than 1.2 times."
    lines = [[name, *(f"{each[scheme]:.2f}" if scheme in each else MISSING for scheme in (DEFAULT, OFFLOADED))] for _, name, each in small[:SMALL_GAINS]]
    text = table(["unmodified programs that lose most, or gain least: times kernel TCP", "without a policy", "offloaded"], lines)
    more = len(small) - len(lines)
    return text + (f"\n\nOf {len(gains)} rows {more} more gain less than 1.2 times on one of the two paths." if more > 0 else "")


# Ways to copy, as the documents call them.
COPIES = {
    "engine": "**the engine's**", "memcpy": "`copy_nonoverlapping`", "movsb": "`rep movsb`", "256": "AVX2", "512": "AVX-512",
    "512+w": "AVX-512, destination prefetched", "512+rw": "AVX-512, both sides prefetched", "512nt": "AVX-512, non-temporal stores",
}


def copy(results):
    """Ways to copy by the size of a message, which is handed on every 64 KB, or with each message if that is larger."""
    sizes = [size for size in (256, 1 << 10, 4 << 10, 64 << 10, 256 << 10) if size in results.values("copy", "message_bytes")]
    lines = []
    for name in dict.fromkeys(row["scheme"] for row in results.of("copy")):
        rows = [results.one("copy", name, message_bytes=size) for size in sizes]
        lines.append([COPIES.get(name, name)] + [pair(row, "copy_gb_per_s", "all_gb_per_s") for row in rows])
    return table(["GB/s (all three)"] + [size_text(size) for size in sizes], lines)


def portable(results):
    """A build for any machine over one for this machine, as `pd bench ab` has compared them."""
    sizes = results.values("ab", "message_bytes")
    lines = []
    for scheme, path in ((DIRECT, "direct"), (OFFLOADED, "offloaded")):
        for figure, name in (("throughput_over_base", "throughput"), ("cpu_gain_over_base", "bytes by CPU time")):
            rows = [results.one("ab", scheme, message_bytes=size) for size in sizes]
            cells = [f"{row[figure]:.2f} [{row[figure + '_min']:.2f}..{row[figure + '_max']:.2f}]" if figure in row else MISSING for row in rows]
            lines.append([f"{path}, {name}"] + cells)
    return table(["above 1 the portable build is better"] + [size_text(size) for size in sizes], lines)


def plots(results):
    found = sorted((RESULTS / results.name).glob("*.svg"))
    return "\n".join(f"![{path.stem.replace('-', ': ').replace('_', ' ')}]({results.name}/{path.name})" for path in found)


TABLES = {
    "summary": (summary, ("throughput", "demo", "latency", "programs")),
    "least": (small_gains, ("programs",)),
    "bars": (bars, ("throughput", "demo", "programs")),
    "machine": (machine, ()),
    "plots": (plots, ()),
    "conditions": (conditions, ("throughput",)),
    "waiting": (waiting, ("latency",)),
    "pipes": (pipes, ("pipe",)),
    "copy": (copy, ("copy",)),
    "portable": (portable, ("ab",)),
    **{t.__name__: (t, (t.__name__,)) for t in (
        demo, throughput, latency, programs, connections, cpu, setup, fairness, movers, memory, breakdown, tune, isolation, sidecar)},
}


def generated(machine_name, name):
    """The text between two markers."""
    results = Results(machine_name)
    make, benches = TABLES[name]
    measured = [bench for bench in benches if bench in results.runs]
    if benches and not measured:
        return "Not measured on this machine.\n"
    text = make(results)
    if measured:
        text += "\n\n" + "\n".join(results.source(bench) for bench in measured)
    return text + "\n"


def constant(place, name):
    """The value of a constant, or of a field of defaults, in the file of a crate whose path ends so."""
    crate, _, file = place.partition("/")
    pages = [path for path in (ROOT / "crates" / crate / "src").rglob("*.rs") if str(path.with_suffix("")).endswith("/" + file)]
    for page in pages:
        found = re.search(rf"\b{name}(?:: \w+)? ?[=:] ([\d_ <*]+)[,;]", page.read_text())
        if found:
            return eval(found[1].replace("_", ""))
    raise SystemExit(f"{place}::{name} is no constant of a whole number")


def with_constant(found):
    """The number of a constant, in the unit that the text has."""
    unit = found[2].strip()
    return f"{constant(found[3], found[4]) // UNITS.get(unit, 1):,}{found[2]}<!-- = {found[3]}::{found[4]} -->"


def documents():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True, capture_output=True)
    return [ROOT / name for name in listed.stdout.decode().split("\n") if name and (ROOT / name).is_file()]


def main():
    wrong = []
    for page in documents():
        text = page.read_text()
        made = MARKED.sub(lambda m: f"<!-- figures: {m[1]}/{m[2]} -->\n{generated(m[1], m[2])}<!-- /figures -->", text)
        made = CONSTANT.sub(with_constant, made)
        if made == text:
            continue
        if sys.argv[1] == "write":
            page.write_text(made)
        else:
            wrong.append(f"{page.relative_to(ROOT)}: figures differ from results.json or from constants; run: make figures")
    for plot in sorted(RESULTS.glob("*/*.svg")):
        runs = Results(plot.parent.name).runs
        tied = re.match(r"<!-- (\S+) (\d+) -->", plot.read_text())
        if not tied or str(runs.get(tied[1], {}).get("unix_time_s")) != tied[2]:
            wrong.append(f"{plot.relative_to(ROOT)}: not of the run in results.json; delete it, or run the benchmark again")
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
