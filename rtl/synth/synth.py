#!/usr/bin/env python3
"""Size of the hardware: synthesis by Yosys for two device families, a row for each block of the paper's Table III.

    synth.py OUT            # writes OUT/rtl-synth.md and OUT/rtl-synth.json; see `make rtl-synth`

Yosys 0.23 to 0.40 has the paper's device class (`synth_intel_alm -family cyclone10gx`: the ALM and M20K of Arria 10 too).
Figures are those before placement: nothing packs, places or routes. A real tool may need more or less; by how much for
this flow is not known.
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

RTL = Path(__file__).resolve().parent.parent
TOP = "pd_stack"

# Blocks of Table III: ALM and BRAM there, and the modules of ours that do what they do.
BLOCKS = {
    "PD Controller": ((4285.0, 21), ["pd_controller"]),
    "PD State Registers": ((614.2, 1), ["pd_state_regs", "pd_regs", "pd_mmio"]),
    "Ptr Controller": ((94.2, 0), ["pd_ptr_calc"]),
    "Data Buffer": ((0.0, 104), ["pd_data_buffer"]),
    "MSI-X": (None, ["pd_msix"]),
    "DMA Engine": ((1954.2, 54), ["pd_dma"]),
}
# What the bar counts. In the paper the DMA engine sends the interrupts, so MSI-X is with it.
COUNTED = ["PD Controller", "PD State Registers", "Ptr Controller", "Data Buffer"]
ALM_MAX, M20K_MAX = 4993, 126

FAMILIES = {
    "cyclone10gx": "synth_intel_alm -family cyclone10gx -noflatten -noiopad -noclkbuf -top pd_stack",
    "xcup": "synth_xilinx -family xcup -noiopad -noclkbuf -top pd_stack",
}


@dataclass
class Cells:
    """Cells of a block, by type, submodules included."""

    count: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Cells", times: int = 1) -> None:
        for kind, number in other.count.items():
            self.count[kind] = self.count.get(kind, 0) + times * number

    def sum(self, pattern: str) -> int:
        return sum(n for kind, n in self.count.items() if re.fullmatch(pattern, kind))


def base_name(module: str) -> str:
    """The name that the source has: Yosys adds a hash before it, or parameters behind it."""
    parts = module.split("\\")
    return parts[1] if "=" in parts[-1] else parts[-1]


def collect(modules: dict, name: str, skip: set[str]) -> Cells:
    """All cells of module `name` and below, without those of modules in `skip`."""
    cells = Cells()
    for kind, number in modules[name]["num_cells_by_type"].items():
        if kind not in modules:
            cells.count[kind.lstrip("\\")] = cells.count.get(kind.lstrip("\\"), 0) + number
        elif base_name(kind) not in skip:
            cells.add(collect(modules, kind, skip), number)
    return cells


def alm(cells: Cells) -> tuple[float, float]:
    """Fewest and most adaptive logic modules: two LUTs of up to five inputs share one, or none do.

    An ALM has four flip-flops; ten ALMs make a memory of 32 words of 20 bits.
    """
    luts6 = cells.sum("MISTRAL_ALUT6")
    smaller = cells.sum("MISTRAL_ALUT[2-5]|MISTRAL_ALUT_ARITH|MISTRAL_NOT|MISTRAL_BUF")
    memory = cells.sum("MISTRAL_MLAB") / 2
    flip_flops = cells.sum("MISTRAL_FF")
    return max(luts6 + smaller / 2, flip_flops / 4) + memory, luts6 + smaller + memory


def dsp(cells: Cells) -> int:
    return cells.sum("MISTRAL_MUL.*|DSP48.*|twentynm_mac")


def run_yosys(yosys: str, family: str, out: Path) -> dict:
    stat = out / f"{family}.json"
    sources = " ".join(str(path) for path in sorted((RTL / "src").glob("*.sv")))
    script = (
        f"read_verilog -sv {RTL}/gen/pd_abi_pkg.sv; read_verilog -sv -defer {sources}; hierarchy -top {TOP}; "
        f"{FAMILIES[family]}; tee -q -o {stat} stat -json"
    )
    command = [yosys, "-q", "-l", str(out / f"{family}.log"), "-p", script]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    text = stat.read_text()
    # Yosys 0.23 writes its hierarchy as text behind the modules, which is no JSON.
    modules = text[text.index("{"):].partition("\n   },\n")[0] + "}}"
    return {name.removeprefix("\\"): module for name, module in json.loads(modules)["modules"].items()}


def slowest(out: Path, family: str) -> list[tuple[int, str]]:
    """Delay in ps of the slowest path through cells, as ABC estimates it, and its module; slowest first."""
    module, delay, found = "", 0, {}
    for line in (out / f"{family}.log").read_text(errors="replace").splitlines():
        if extracted := re.search(r"Extracted \d+ AND gates .* from module `(.*?)'", line):
            parts = extracted[1].split("\\")
            module, delay = parts[1] if "=" in parts[-1] else parts[-1], 0
        elif mapped := re.search(r"\bDel = +(\d+)", line):
            delay = int(mapped[1])
        elif "Total time" in line and delay:
            found[module] = max(found.get(module, 0), delay)
    return sorted(((delay, module) for module, delay in found.items()), reverse=True)


def blocks_of(modules: dict) -> dict[str, Cells]:
    named = {base_name(module): module for module in modules}
    own = {module for _, ours in BLOCKS.values() for module in ours}
    rows = {}
    for block, (_, ours) in BLOCKS.items():
        rows[block] = Cells()
        for module in ours:
            rows[block].add(collect(modules, named[module], own - {module}))
    top = named[TOP]
    rows["between them"] = collect(modules, top, own)
    total = Cells()
    for cells in rows.values():
        total.add(cells)
    whole = collect(modules, top, set())
    assert total.count == whole.count, "blocks and the whole differ"
    return rows


def intel_table(rows: dict[str, Cells]) -> tuple[list[str], dict]:
    lines = [
        "| block | ALM, at least | ALM, at most | M20K | flip-flops | paper: ALM | paper: BRAM |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    figures = {}
    for block, cells in rows.items():
        low, high = alm(cells)
        m20k = cells.sum("MISTRAL_M20K|altsyncram")
        paper = BLOCKS.get(block, (None, []))[0]
        theirs = f"{paper[0]:,.1f} | {paper[1]}" if paper else "– | –"
        flip_flops = cells.sum("MISTRAL_FF")
        lines.append(f"| {block} | {low:,.0f} | {high:,.0f} | {m20k} | {flip_flops:,} | {theirs} |")
        figures[block] = {"alm_min": low, "alm_max": high, "m20k": m20k, "flip_flops": flip_flops, "dsp": dsp(cells)}
    for name, chosen in [("first four", COUNTED), ("all", list(rows))]:
        sums = {key: sum(figures[b][key] for b in chosen) for key in ("alm_min", "alm_max", "m20k", "flip_flops", "dsp")}
        theirs = {"first four": "4,993.4 | 126", "all": "6,947.6 | 180"}[name]
        lines.append(
            f"| **{name}** | {sums['alm_min']:,.0f} | {sums['alm_max']:,.0f} | {sums['m20k']} |"
            f" {sums['flip_flops']:,} | {theirs} |"
        )
        figures[name] = sums
    return lines, figures


def xilinx_table(rows: dict[str, Cells]) -> tuple[list[str], dict]:
    lines = ["| block | LUT | of these memory | flip-flops | RAMB18 |", "|---|---:|---:|---:|---:|"]
    figures = {}
    for block, cells in rows.items():
        memory = 4 * cells.sum("RAM32M|RAM64M") + 8 * cells.sum("RAM32M16|RAM64M8") + 2 * cells.sum("RAM32X1D|RAM64X1D")
        lut = cells.sum("LUT[1-6]|INV") + memory
        ram = cells.sum("RAMB18E2") + 2 * cells.sum("RAMB36E2")
        figures[block] = {
            "lut": lut, "lut_memory": memory, "flip_flops": cells.sum("FD[RSCP]E"), "ramb18": ram, "dsp": dsp(cells),
        }
        lines.append(f"| {block} | {lut:,} | {memory:,} | {figures[block]['flip_flops']:,} | {ram} |")
    total = {key: sum(row[key] for row in figures.values()) for key in next(iter(figures.values()))}
    lines.append(
        f"| **all** | {total['lut']:,} | {total['lut_memory']:,} | {total['flip_flops']:,} | {total['ramb18']} |"
    )
    figures["all"] = total
    return lines, figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--yosys", default="yosys")
    parser.add_argument("--family", choices=FAMILIES, action="append")
    args = parser.parse_args()
    if shutil.which(args.yosys) is None:
        print(f"missing: {args.yosys}; on Debian: apt-get install yosys", file=sys.stderr)
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([args.yosys, "-V"], capture_output=True, text=True, check=True).stdout.split("(")[0].strip()
    text, result, missed = [f"Synthesis by {version}; estimates before placement.", ""], {"tool": version}, []
    for family in args.family or FAMILIES:
        rows = blocks_of(run_yosys(args.yosys, family, args.out))
        lines, figures = (intel_table if family == "cyclone10gx" else xilinx_table)(rows)
        paths = slowest(args.out, family)
        result[family] = {"blocks": figures, "slowest_paths_ps": {module: delay for delay, module in paths}}
        text += [f"`{family}`:", "", *lines, ""]
        if paths:
            named = ", ".join(f"`{module}` {delay / 1000:.1f}" for delay, module in paths[:6])
            text += [f"ABC's delay of the slowest paths, ns, with the wires that Yosys supposes for the family: {named}.", ""]
        if family == "cyclone10gx":
            counted = figures["first four"]
            for what, value, most in [
                ("ALM of the first four blocks, at most", counted["alm_max"], ALM_MAX),
                ("M20K of the first four blocks", counted["m20k"], M20K_MAX),
                ("DSP", figures["all"]["dsp"], 0),
            ]:
                verdict = "reached" if value <= most else "NOT reached"
                text.append(f"- {what}: {value:,.0f}, bar {most:,}: {verdict}")
                missed += [what] if value > most else []
            text.append("")
    (args.out / "rtl-synth.md").write_text("\n".join(text))
    (args.out / "rtl-synth.json").write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(text))
    if missed:
        print("bars missed: " + "; ".join(missed), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
