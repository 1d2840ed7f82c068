#!/bin/sh
# Compiles the hardware of rtl/ into a shared object that the rtl engine loads.
#
#   build.sh NAME DIR [VERILATOR OPTION ...]
#
# makes DIR/NAME.so. Options are, for instance, -GTLP_WIDTH=1024 and --trace-fst (waveforms; needs zlib). CARGO's
# target directory is a good DIR. Does nothing if DIR/NAME.so is newer than all that it is made of.
set -eu
name=$1 dir=$2
shift 2
sim=$(cd "$(dirname "$0")" && pwd)
rtl=$(cd "$sim/../../../rtl" && pwd)
sources="$rtl/gen/pd_abi_pkg.sv $(ls "$rtl"/src/*.sv)"
library=$dir/$name.so

if [ -e "$library" ] && [ -z "$(find "$sim" "$rtl/gen" "$rtl/src" -newer "$library" -type f)" ]; then
    exit 0
fi
command -v verilator >/dev/null || { echo "missing: verilator; on Debian: apt-get install verilator" >&2; exit 1; }
work=$dir/$name.obj
mkdir -p "$work"
# One compiler at a time unless JOBS says otherwise; the model's speed is what counts, so -O3.
verilator --cc --build -j "${JOBS:-1}" --top-module pd_stack --prefix Vpd_stack --Mdir "$work" \
    -O3 --x-assign fast --x-initial fast --noassert -Wno-fatal -CFLAGS '-fPIC -O2' \
    -MAKEFLAGS 'OPT_FAST=-O2 OPT_GLOBAL=-O2' "$@" $sources >"$work/verilator.log" 2>&1 || {
    cat "$work/verilator.log" >&2
    exit 1
}
include=$(verilator --getenv VERILATOR_ROOT)/include
runtime="$include/verilated.cpp $include/verilated_threads.cpp"
case " $* " in
*" --trace-fst "*) trace='-DVM_TRACE=1 -DVM_TRACE_FST=1' runtime="$runtime $include/verilated_fst_c.cpp" libraries=-lz ;;
*) trace=-DVM_TRACE=0 libraries= ;;
esac
${CXX:-c++} -std=c++17 -O2 -w -fPIC -shared -fvisibility=hidden -o "$library.new" -I"$work" -I"$include" \
    -I"$include/vltstd" $trace "$sim/pd_rtl.cpp" $runtime "$work"/Vpd_stack__ALL.a $libraries -lpthread
mv "$library.new" "$library"
