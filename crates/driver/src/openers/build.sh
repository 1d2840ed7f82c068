#!/bin/sh
# Compiles steer.bpf.c into steer.bpf.o, which is part of the source: a build of the driver needs no clang.
set -e
cd "$(dirname "$0")"
# The source file has the same name wherever it lies.
clang -O2 -g -fdebug-compilation-dir=. -mcpu=v3 -target bpf -Wall -Werror -I"/usr/include/$(uname -m)-linux-gnu" -c steer.bpf.c -o steer.bpf.o
llvm-strip -g steer.bpf.o
# A test compares: a change of the source alone would change nothing.
sha256sum steer.bpf.c steer.bpf.o >steer.bpf.sha256
