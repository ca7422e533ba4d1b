#!/bin/sh
# fuzz.sh - libFuzzer over the targets of tests/fuzz. usage: tools/fuzz.sh BUILD_DIR SECONDS [TARGET]
# New inputs go to BUILD_DIR/corpus/TARGET; a crash stops with the input's path printed.
set -eu
build=$1 seconds=$2 only=${3:-}
root=$(cd "$(dirname "$0")/.." && pwd)
[ -f "$build/build.ninja" ] || CC=clang meson setup "$build" "$root" -Dfuzz=true \
    -Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1
for dir in "$root"/tests/fuzz/corpus/*/; do
    t=$(basename "$dir")
    [ -z "$only" ] || [ "$only" = "$t" ] || continue
    ninja -C "$build" --quiet "tests/fuzz/fuzz_$t"
    mkdir -p "$build/corpus/$t"
    echo "== fuzz $t, $seconds s"
    "$build/tests/fuzz/fuzz_$t" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
        -artifact_prefix="$build/" -print_final_stats=1 "$build/corpus/$t" "$dir"
done
