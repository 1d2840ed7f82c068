#!/bin/sh
# Proves the properties in fv_*.svh of the modules that include them, with Yosys' own solver: for all time, by induction, or, where
# the mode is "search", for that many cycles from reset.
# usage: run.sh BUILD_DIR [module ...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1; shift
mkdir -p "$build"
prove() { # module, parameters, mode, cycles
    case $3 in
    induction) options="-tempinduct -maxsteps $4" said="proved for all time" ;;
    search) options="-tempinduct -tempinduct-baseonly -maxsteps $4" said="holds for $4 cycles from reset" ;;
    esac
    yosys -q -l "$build/$1.log" -p "read_verilog -sv $here/../gen/pd_abi_pkg.sv; read_verilog -sv -formal -DPD_FORMAL -I$here -defer $here/../src/*.sv;
        hierarchy -top $1 $2; prep -flatten; async2sync; memory_map; opt -full; sat -verify -prove-asserts -set-assumes $options" >"$build/$1.err" 2>&1 \
        || { echo "FAIL  formal $1, see $build/$1.log"; tail -30 "$build/$1.log"; return 1; }
    echo "ok    formal $1: $said"
}
bad=0
while read -r module mode cycles parameters; do
    case " ${*:-$module} " in *" $module "*) ;; *) continue ;; esac
    prove "$module" "$(echo "$parameters" | sed 's/\([A-Z0-9_]*\)=\([0-9]*\)/-chparam \1 \2/g')" "$mode" "$cycles" || bad=1
done <<END
pd_fifo induction 4 WIDTH=4 LOG2_DEPTH=2
pd_ids induction 4 COUNT=4
pd_rr_pick search 24 COUNT=4
pd_ptr_calc induction 7
pd_dma_split induction 4 ADDR_BITS=16 USER_BITS=2
pd_dma_track induction 4 OWNER_BITS=2 COUNT_BITS=3
END
exit $bad
