#!/usr/bin/env python3
"""Builds modules with Verilator and runs their cocotb tests.

    run.py [--long] [--jobs N] [--seed N] [--build DIR] [folder ...]

A folder below tests/ is a module under test: `test_*.py` with cocotb tests, and `config.py` with TOP (default: the folder's
name) and RUNS, a list of (name, parameters, options). Options: `long` (only with --long), `modules` (default: every test_*.py),
`environment`. With --long PD_LONG=1 is set and tests do more. The reports of coverage end up in DIR/coverage.txt; a run fails if a
feature that its tests declare was not seen, and all of them if a promise of features.py was not.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import runpy
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

TESTS = Path(__file__).resolve().parent
RTL = TESTS.parent
# Objects that every simulator has alike. cocotb's main program is not one of them: it knows the size of the model.
RUNTIME = ("verilated", "verilated_dpi", "verilated_vpi", "verilated_threads")


def cocotb_config(*flags):
    return subprocess.run([sys.executable, "-m", "cocotb.config", *flags], check=True, capture_output=True, text=True).stdout.strip()


def call(command, log, **options):
    """Runs a command; its output goes to `log`. On failure its tail is the error."""
    with open(log, "w") as out:
        try:
            code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False, timeout=7200, **options).returncode
        except subprocess.TimeoutExpired:
            code = "no end in two hours"
    if code:
        tail = "".join(open(log, errors="replace").readlines()[-60:])
        raise RuntimeError(f"{Path(command[0]).name} failed ({code}), see {log}:\n{tail}")


class Builder:
    def __init__(self, root, optimises):
        self.root = root
        # Few cycles take less time than a compiler that optimises.
        self.level = "-O1" if optimises else "-O0"
        self.share = Path(cocotb_config("--share"))
        self.libs = Path(cocotb_config("--prefix")) / "cocotb" / "libs"
        self.libpython = subprocess.run([sys.executable, "-m", "find_libpython"], check=True, capture_output=True,
                                        text=True).stdout.strip()
        self.sources = [RTL / "gen" / "pd_abi_pkg.sv", *sorted((RTL / "src").glob("*.sv"))]
        self.version = subprocess.run(["verilator", "--version"], check=True, capture_output=True, text=True).stdout
        digest = hashlib.sha256(f"{self.version}{self.libs}{self.level}".encode())
        for source in [RTL / "lint.vlt", Path(__file__), *self.sources]:
            digest.update(source.read_bytes())
        self.digest = digest.hexdigest()

    def build(self, top, parameters):
        """The program that simulates `top`; made anew only if a source has changed."""
        name = "-".join([top, *(f"{key}{value}" for key, value in sorted(parameters.items()))])
        where = self.root / name
        stamp = where / "stamp"
        if stamp.exists() and stamp.read_text() == self.digest:
            return where
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        # Nothing but the top's ports is looked at from outside.
        ports = "".join(f'public_flat_rw -module "{top}" -var "*_{end}"\n' for end in ("i", "ni", "o"))
        (where / "public.vlt").write_text(f"`verilator_config\n{ports}")
        runtime = self.root / "runtime"
        call(["verilator", "--cc", "--exe", "--vpi", "--prefix", "Vtop", "-o", "sim", "--Mdir", str(where), "--top-module", top,
              "--assert", "-DPD_ASSERT", "-Wno-fatal", "--x-assign", "unique", "--output-split", "10000",
              *(f"-G{key}={value}" for key, value in parameters.items()),
              "-LDFLAGS", f"-Wl,-rpath,{self.libs} -L{self.libs} -lcocotbvpi_verilator",
              str(self.share / "lib" / "verilator" / "verilator.cpp"), str(where / "public.vlt"), str(RTL / "lint.vlt"),
              *map(str, self.sources)], where / "verilator.log")
        # The simulator's own objects are the same for all; make wants them newer than what Verilator wrote.
        if runtime.exists():
            for part in RUNTIME:
                shutil.copy(runtime / f"{part}.o", where)
        call(["make", "-C", str(where), "-f", "Vtop.mk", "-j2", f"OPT_FAST={self.level}", "OPT_SLOW=-O0", f"OPT_GLOBAL={self.level}"], where / "make.log")
        if not runtime.exists():
            fresh = where / "runtime"
            fresh.mkdir()
            for part in RUNTIME:
                shutil.copy(where / f"{part}.o", fresh)
            try:
                fresh.rename(runtime)
            except OSError:
                shutil.rmtree(fresh)
        stamp.write_text(self.digest)
        return where

    def run(self, folder, label, where, top, modules, parameters, options, seed, long):
        results = where / f"results-{label}.xml"
        coverage = where / f"coverage-{label}.json"
        results.unlink(missing_ok=True)
        environment = dict(os.environ, MODULE=",".join(modules), TOPLEVEL=top, TOPLEVEL_LANG="verilog", COCOTB_RESULTS_FILE=str(results),
                           LIBPYTHON_LOC=self.libpython, PYTHONPATH=os.pathsep.join([str(TESTS), str(TESTS / folder), *filter(None, sys.path)]),
                           RANDOM_SEED=str(seed), PD_LONG="1" if long else "", PD_COVERAGE=str(coverage),
                           PD_PARAMETERS=json.dumps(parameters), PYTHONDONTWRITEBYTECODE="1", PYGPI_PYTHON_BIN=sys.executable, COCOTB_ANSI_OUTPUT="0")
        environment.update(options.get("environment", {}))
        log = where / f"run-{label}.log"
        call([str(where / "sim")], log, env=environment, cwd=where)
        cases = list(xml.parse(results).iter("testcase")) if results.exists() else []
        failed = [case.get("name") for case in cases if case.find("failure") is not None]
        if failed or not cases:
            tail = "".join(open(log, errors="replace").readlines()[-80:])
            raise RuntimeError(f"{label}: failed: {', '.join(failed) or 'no result at all'} (seed {seed}), see {log}:\n{tail}")
        return len(cases), coverage


def plan(folders, long):
    for folder in folders:
        config = runpy.run_path(str(TESTS / folder / "config.py")) if (TESTS / folder / "config.py").exists() else {}
        modules = sorted(path.stem for path in (TESTS / folder).glob("test_*.py"))
        for name, parameters, options in config.get("RUNS", [("default", {}, {})]):
            if long or not options.get("long"):
                yield folder, f"{folder}-{name}", config.get("TOP", folder), options.get("modules", modules), parameters, options


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int)
    parser.add_argument("--build", type=Path, default=RTL.parent / "target" / "rtl" / "sim")
    arguments = parser.parse_args()
    folders = arguments.folders or sorted(path.parent.name for path in TESTS.glob("*/test_*.py"))
    folders = sorted(set(folders), key=lambda folder: (folder != "pd_stack", folder))
    # A fixed seed for the short form, so that it fails only for a reason; a new one for each long run.
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 31) if arguments.long else 1
    build_dir = arguments.build.resolve()
    build_dir.mkdir(parents=True, exist_ok=True)
    builder = Builder(build_dir, arguments.long)
    runs = list(plan(folders, arguments.long))
    bad, tests, reports = 0, 0, []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        builds, futures = {}, {}
        for run in runs:
            key = (run[2], tuple(sorted(run[4].items())))
            if key not in builds:
                builds[key] = pool.submit(builder.build, run[2], run[4])

        def go(run):
            folder, label, top, modules, parameters, options = run
            where = builds[(top, tuple(sorted(parameters.items())))].result()
            begin = time.monotonic()
            return *builder.run(folder, label, where, top, modules, parameters, options, seed, arguments.long), time.monotonic() - begin

        for run in runs:
            futures[pool.submit(go, run)] = run
        for future in concurrent.futures.as_completed(futures):
            label = futures[future][1]
            try:
                count, coverage, seconds = future.result()
                tests += count
                print(f"ok    {label}: {count} tests, {seconds:.1f} s", flush=True)
                if coverage.exists():
                    reports.append((label, json.loads(coverage.read_text())))
            except Exception as error:  # noqa: BLE001 (whatever went wrong is this run's result)
                bad += 1
                print(f"FAIL  {error}", flush=True)
    by_folder = {}
    for label, report in reports:
        into = by_folder.setdefault(label.split("-")[0], {})
        for feature, count in report.items():
            into[feature] = into.get(feature, 0) + count
    # Not imported: nothing is to be left beside the sources.
    lines, missing = runpy.run_path(str(TESTS / "features.py"))["table"](by_folder)
    with open(build_dir / "coverage.txt", "w") as out:
        out.writelines(f"{line}\n" for line in [*lines, ""])
        for label, report in sorted(reports):
            for feature, count in sorted(report.items()):
                out.write(f"{label:28} {count:8}  {feature}\n")
    # A single folder shows a part of it.
    if not arguments.folders:
        print("\n".join(["what was promised, and how often it was seen at least:", *lines]))
        bad += bool(missing)
        for promise in missing:
            print(f"FAIL  never seen: {promise}")
    print(f"{tests} tests of {len(runs)} runs, {bad} failures, seed {seed}; coverage: {build_dir / 'coverage.txt'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
