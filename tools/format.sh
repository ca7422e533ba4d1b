#!/bin/sh
# format.sh - clang-format over all C files. usage: tools/format.sh [--check]
set -eu
cd "$(dirname "$0")/.."
f=$(command -v clang-format-14 || command -v clang-format) || {
    echo "format: clang-format is not installed (tools/setup.sh test)" >&2
    exit 1
}
set -- "${1:-}"
files=$(find src include tests tools -name '*.[ch]')
if [ "$1" = --check ]; then
    # shellcheck disable=SC2086
    bad=$("$f" --dry-run -Werror $files 2>&1 | sed -n 's/:[0-9]*:[0-9]*: error:.*//p' | sort | uniq -c)
    if [ -n "$bad" ]; then
        echo "places that \`make format\` would change, by file:"
        echo "$bad"
        exit 1
    fi
    echo "format: $(echo "$files" | wc -l) files as .clang-format says"
else
    # shellcheck disable=SC2086
    "$f" -i $files
fi
