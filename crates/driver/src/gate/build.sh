#!/bin/sh
# Compiles gate.bpf.c into gate.bpf.o, which is part of the source: a build of the driver needs no clang.
set -e
cd "$(dirname "$0")"
# The source file has the same name wherever it lies.
clang -O2 -g -fdebug-compilation-dir=. -mcpu=v3 -target bpf -Wall -Werror -I"/usr/include/$(uname -m)-linux-gnu" -c gate.bpf.c -o gate.bpf.o
llvm-strip -g gate.bpf.o
# A test compares: a change of the source alone would change nothing.
sha256sum gate.bpf.c gate.bpf.h choice.bpf.h gate.bpf.o >gate.bpf.sha256
