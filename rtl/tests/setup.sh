#!/bin/sh
# Makes or refreshes the virtual environment that the tests run in.
# usage: setup.sh VENV
set -eu
wanted=$(cd "$(dirname "$0")" && pwd)/requirements.txt
venv=$1
if [ -e "$venv/requirements.txt" ] && cmp -s "$wanted" "$venv/requirements.txt"; then exit 0; fi
rm -rf "$venv"
# The simulator loads Python as a shared library: the python3 of the path if it was built with one, else Debian's.
for python in python3 /usr/bin/python3; do
    "$python" -c 'import os, sys, sysconfig, ensurepip, ctypes
name, where = sysconfig.get_config_var("INSTSONAME"), sysconfig.get_config_var("LIBDIR")
path = os.path.join(where, name)
ctypes.CDLL(path if os.path.exists(path) else name)' 2>/dev/null || continue
    "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$wanted"
    cp "$wanted" "$venv/requirements.txt"
    exit 0
done
echo "no python3 with a shared library and venv; install: python3-venv libpython3-dev" >&2
exit 1
