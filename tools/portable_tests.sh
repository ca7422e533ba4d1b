#!/bin/sh
# portable_tests.sh BUILD OUT [MIB] - puts into OUT what the arithmetic tests need to run on a machine
# without compiler, libraries or sources (one with AVX-512 or AMX, say): the programs model/parity and
# kcheck, their shared libraries, and goldens, at most MIB (default 56) in all. OUT/run.sh runs them.
# Goldens are those of tests/golden and, while there is room, of $QUERN_SHARED/goldens (default ../shared).
set -eu
[ $# -ge 2 ] || { sed -n '2,5s/^# //p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
build=$1 out=$2 limit=$((${3:-56} * 1024))
shared=${QUERN_SHARED:-$root/../shared}

rm -rf "$out/bin" "$out/lib" "$out/goldens" "$out/run.sh"
mkdir -p "$out/bin" "$out/lib" "$out/goldens/tiny" "$out/goldens/float32"
for p in "$build/tests/unit/model/test_parity" "$build/tests/kcheck/kcheck"; do
	strip -o "$out/bin/$(basename "$p")" "$p"
	ldd "$p" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*\) (.*/\1/p' |
		while read -r so; do cp -L "$so" "$out/lib/"; done
done

size() { du -sk "$out" | cut -f1; }
# take ROOT NAME: unless it is there already or there is no room left
take() {
	[ -e "$out/goldens/tiny/$2" ] && return 0
	[ -e "$1/float32/$2.json" ] || return 0
	need=$(du -skc "$1/tiny/$2" "$1/float32/$2".* | tail -1 | cut -f1)
	[ $(($(size) + need)) -le "$limit" ] || return 0
	cp -R "$1/tiny/$2" "$out/goldens/tiny/"
	cp "$1/float32/$2".* "$out/goldens/float32/"
}
# Every family first, then every format, mixtures and at last bf16.
all_of() { # ROOT PATTERN
	for d in "$1"/tiny/$2; do [ -d "$d" ] && take "$1" "$(basename "$d")"; done
}
all_of "$root/tests/golden" '*'
for pattern in '*-q4' '*-mxfp4*' 'llama-[mnq]*[0-9]' '*-q8' '*-mixed' '*-bf16'; do
	all_of "$shared/goldens" "$pattern"
done

cat >"$out/run.sh" <<'RUN'
#!/bin/sh
# Runs what lies beside it. One line for each golden and kernel family; exit status 1 when one failed.
cd "$(dirname "$0")" || exit 2
run() { chmod +x bin/* lib/ld-linux-* 2>/dev/null; lib/ld-linux-x86-64.so.2 --library-path lib "$@"; }
export CMOCKA_MESSAGE_OUTPUT=STDOUT QUERN_SHARED=.
grep -m1 'model name' /proc/cpuinfo
log=${TMPDIR:-/tmp}/quern-portable.$$
trap 'rm -f "$log"' EXIT
bad=0
run bin/kcheck --seed=20261 >"$log" 2>&1 && echo "PASS kcheck" || { echo "FAIL kcheck"; bad=1; }
tail -3 "$log"
run bin/test_parity ${1:+"$1"} >"$log" 2>&1 || bad=1
sed -n 's/^\[ *OK *\] /PASS /p; s/^\[ *FAILED *\] \([a-z]* [^ ]*\)$/FAIL \1/p; /^instruction sets/p; / differs: \|farther\|: row \|MISSING/p' "$log"
tail -4 "$log"
[ $bad = 0 ] && echo "ALL PASSED" || { echo "SOME FAILED"; exit 1; }
RUN
chmod +x "$out/run.sh"
echo "$out: $(ls "$out/goldens/tiny" | wc -l) goldens, $(($(size) / 1024)) MiB"
