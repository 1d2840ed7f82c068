#!/bin/sh
# Proves the properties of fv_*.sv: by induction for all time, after a search from reset. Needs yosys and z3.
# usage: run.sh BUILD_DIR [name ...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1; shift
mkdir -p "$build"
# name, top's parameters, steps of the search, steps of the induction (0: search alone)
jobs="fifo - 12 4
ids - 12 4
rr_pick COUNT=4 16 8
ptr_calc - 4 2
split - 10 3
hdr - 2 1
track - 12 3"
bad=0
echo "$jobs" | while read -r name parameters depth induction; do
    if [ $# -gt 0 ]; then case " $* " in *" $name "*) ;; *) continue ;; esac; fi
    chparam=
    [ "$parameters" = - ] || chparam="chparam -set ${parameters%%=*} ${parameters#*=} fv_$name;"
    out=$build/$name
    yosys -q -l "$out.log" -p "read_verilog -sv $here/../gen/pd_abi_pkg.sv; read_verilog -sv -formal -defer $here/../src/*.sv $here/fv_$name.sv; $chparam
        hierarchy -top fv_$name; prep -flatten -top fv_$name; async2sync; opt; memory_map -formal; opt; dffunmap; write_smt2 -wires $out.smt2" \
        || { echo "FAIL  formal $name: does not elaborate, see $out.log"; exit 1; }
    yosys-smtbmc -s z3 --presat -t "$depth" "$out.smt2" >"$out.bmc" 2>&1 || { echo "FAIL  formal $name: see $out.bmc"; tail -20 "$out.bmc"; exit 1; }
    [ "$induction" = 0 ] || yosys-smtbmc -s z3 -i -t "$induction" "$out.smt2" >"$out.induct" 2>&1 \
        || { echo "FAIL  formal $name: no induction, see $out.induct"; tail -20 "$out.induct"; exit 1; }
    echo "ok    formal $name: $depth steps$([ "$induction" = 0 ] || echo ", induction")"
done
