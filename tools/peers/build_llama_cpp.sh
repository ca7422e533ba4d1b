#!/bin/sh
# Builds the speed peer, llama.cpp, from the PyPI source archive of llama-cpp-python.
#
# What it owns: ${XDG_CACHE_HOME:-~/.cache}/quern/peers/llama.cpp-VERSION/
#     llama_cpp_python-VERSION.tar.gz   the archive, checked against the SHA-256 below
#     source/                           llama.cpp out of that archive, unmodified
#     build-ISA/bin/                    llama-bench, llama-completion, llama-server, llama-cli
#     bin -> build-ISA/bin              the build for the machine of the last run
# Invariant: nothing in bin/ comes from an archive with another hash, or from a build for other
# CPU features (ISA is a hash of the feature list; the code is compiled with -march=native).
# clang is required: GCC 12 drops the stores to the AMX tile configuration and the program dies.
# Running it again when all is built costs a fraction of a second. It does not install anything.
#
# usage: build_llama_cpp.sh [--bench-only] [--print-bin]
#     --bench-only   only llama-bench and llama-completion (a third of the build time)
#     --print-bin    print the folder of the programs and stop; fails when they are not built
# environment: ARCHIVE  a copy of the archive to use instead of fetching (its hash is checked too)
#              JOBS     parallel compile jobs (default 2)
# shellcheck disable=SC2086  # program lists are split into words on purpose
set -eu

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
archive=llama_cpp_python-$version.tar.gz
root=${XDG_CACHE_HOME:-$HOME/.cache}/quern/peers/llama.cpp-$version
programs="llama-bench llama-completion"
more="llama-server llama-cli"
isa=$(grep -m1 '^flags' /proc/cpuinfo | sha256sum | cut -c1-12)
build=$root/build-$isa

die() {
    echo "build_llama_cpp.sh: $*" >&2
    exit 1
}

say() {
    echo "build_llama_cpp.sh: $*" >&2
}

print_bin=no
while [ $# -gt 0 ]; do
    case $1 in
    --bench-only) more= ;;
    --print-bin) print_bin=yes ;;
    -h | --help)
        sed -n '2,20s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done

built() {
    for p in "$@"; do
        [ -x "$build/bin/$p" ] || return 1
    done
}

if [ $print_bin = yes ]; then
    built $programs || die "not built for this CPU yet: run $0"
    echo "$build/bin"
    exit 0
fi

check_tools() {
    missing=
    for pair in clang:clang clang++:clang cmake:cmake ninja:ninja-build python3:python3 \
        sha256sum:coreutils tar:tar flock:util-linux; do
        command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair##*:}"
    done
    [ -z "$missing" ] ||
        die "missing tools; on Debian: apt-get install$(echo "$missing" | tr ' ' '\n' |
            sort -u | tr '\n' ' ')"
}

hash_ok() {
    echo "$sha256  $1" | sha256sum --check --status 2>/dev/null
}

# pip checks the hash while it downloads; it is checked again here for a copy that lay in the cache.
fetch() {
    hash_ok "$root/$archive" && return 0
    rm -f "$root/$archive"
    if [ -n "${ARCHIVE:-}" ]; then
        hash_ok "$ARCHIVE" || die "$ARCHIVE: SHA-256 is not $sha256"
        cp "$ARCHIVE" "$root/$archive.part"
        mv "$root/$archive.part" "$root/$archive"
        return 0
    fi
    python3 -m pip --version >/dev/null 2>&1 ||
        die "python3 has no pip; on Debian: apt-get install python3-pip python3-venv"
    say "fetching $archive (77 MB) from PyPI"
    tmp=$(mktemp -d "$root/fetch.XXXXXX")
    echo "llama-cpp-python==$version --hash=sha256:$sha256" >"$tmp/requirements.txt"
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps \
        --no-binary llama-cpp-python --require-hashes -r "$tmp/requirements.txt" \
        -d "$tmp" >&2; then
        rm -rf "$tmp"
        die "pip could not fetch llama-cpp-python $version with SHA-256 $sha256"
    fi
    mv "$tmp/$archive" "$root/$archive"
    rm -rf "$tmp"
    hash_ok "$root/$archive" || die "$root/$archive: SHA-256 is not $sha256"
}

# Unpacked beside the target and renamed, so that a stopped run leaves no half a source tree.
unpack() {
    [ -e "$root/source/CMakeLists.txt" ] && return 0
    tmp=$(mktemp -d "$root/unpack.XXXXXX")
    tar -xzf "$root/$archive" -C "$tmp" "llama_cpp_python-$version/vendor/llama.cpp"
    rm -rf "$root/source"
    mv "$tmp/llama_cpp_python-$version/vendor/llama.cpp" "$root/source"
    rm -rf "$tmp"
}

# OpenMP is off: Debian's clang has no runtime for it by default, and llama.cpp's own thread pool
# is the one its --threads, --poll and --cpu-mask options act on. The web page is left out because
# the build would fetch it over the network.
configure() {
    [ -e "$build/build.ninja" ] && return 0
    cmake -S "$root/source" -B "$build" -G Ninja \
        -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
        -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF \
        -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF >"$build.log" 2>&1 ||
        die "cmake failed; see $build.log"
}

compile() {
    nice ninja -C "$build" -j "${JOBS:-2}" "$@" >>"$build.log" 2>&1 ||
        die "the build of $* failed; see $build.log"
}

if ! built $programs $more; then
    check_tools
    mkdir -p "$root"
    exec 9>"$root/lock" # a second run waits for the first and then finds its work done
    flock 9
    fetch
    unpack
    configure
    say "building $programs $more (log: $build.log)"
    compile $programs
    [ -z "$more" ] || compile $more
fi
ln -sfn "build-$isa/bin" "$root/bin"
echo "$root/bin"
