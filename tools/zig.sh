#!/usr/bin/env bash
# Writes cc, c++, ar and ranlib into FOLDER: the compiler of the package ziglang, which PYTHON has, for TARGET (say
# x86_64-linux-gnu.2.28, or `native`). What it links needs no C++ library of the machine.
set -euo pipefail
usage="usage: tools/zig.sh PYTHON TARGET FOLDER"
python=${1:?$usage} target=${2:?$usage} folder=${3:?$usage}
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")

mkdir -p "$folder"
for tool in cc c++ ar ranlib; do
    options=
    case $tool-$target in
        cc-native | c++-native) ;;
        cc-* | c++-*) options="-target $target" ;;
    esac
    # -I: a folder named ziglang in the current directory is not taken for it. -g0, -s: zig adds debug information.
    printf '#!/bin/sh\nexec "%s" -I -m ziglang %s %s "$@"\n' "$python" "$tool" "$options" >"$folder/$tool"
    chmod +x "$folder/$tool"
done
