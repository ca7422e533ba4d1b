#!/bin/sh
# setup.sh - installs the Debian packages that quern needs; the one list of them.
# usage: tools/setup.sh run|test [BUILD_DIR]
#   run   what building and running needs (pip fetches the model; curl is for the
#         line that quern serve prints)
#   test  that, plus compilers, test libraries and the Python environment in BUILD_DIR/venv
# Prints nothing and changes nothing when everything is there.
set -eu

RUN_PACKAGES="gcc libc6-dev pkg-config meson ninja-build python3 python3-pip ca-certificates curl
    libmicrohttpd-dev libpcre2-dev libutf8proc-dev libjson-c-dev libarchive-dev nettle-dev
    libxxhash-dev libedit-dev libcurl4-openssl-dev libsqlite3-dev"
TEST_PACKAGES="libcmocka-dev clang libclang-rt-14-dev clang-format python3-venv xz-utils"

what=${1:-run}
build=${2:-build}
root=$(cd "$(dirname "$0")/.." && pwd)
case $what in
run) wanted=$RUN_PACKAGES ;;
test) wanted="$RUN_PACKAGES $TEST_PACKAGES" ;;
*)
    echo "setup.sh: '$what' is neither 'run' nor 'test'" >&2
    exit 2
    ;;
esac

say() { printf '%s\n' "setup: $*"; }

# Another distribution: nothing can be installed here, so let meson say what is missing.
if ! command -v dpkg-query >/dev/null 2>&1; then
    command -v meson >/dev/null 2>&1 && exit 0
    say "this is not a Debian system. Install by hand what corresponds to these packages:" >&2
    printf '  %s\n' $wanted >&2
    exit 1
fi

# shellcheck disable=SC2086
missing=$(
    present=$(dpkg-query -W -f '${Package} ${Status}\n' $wanted 2>/dev/null |
        sed -n 's/ install ok installed$//p')
    for p in $wanted; do
        case "
$present
" in *"
$p
"*) ;;
        *) printf '%s ' "$p" ;;
        esac
    done
)

if [ -n "$missing" ]; then
    line="apt-get install -y --no-install-recommends ${missing% }"
    say "missing Debian packages: ${missing% }"
    if [ "$(id -u)" = 0 ]; then
        sudo=
    elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        sudo=sudo
    else
        say "installing them needs root. Run this line as root (on a fresh machine after apt-get update), then try again:" >&2
        printf '  %s\n' "$line" >&2
        exit 1
    fi
    say "installing: ${sudo:+$sudo }$line"
    # A fresh machine has no package index yet; a stale one fails the install. Both are mended by
    # one update, which is skipped when it is not needed.
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    if ! $sudo $line; then
        $sudo apt-get update || true
        if ! $sudo $line; then
            say "the installation failed; see the messages above. The line was:" >&2
            printf '  %s\n' "${sudo:+$sudo }$line" >&2
            exit 1
        fi
    fi
fi

[ "$what" = test ] || exit 0

# Python packages of the tests: in the build folder only, made anew when the list changes.
venv=$build/venv
stamp=$venv/requirements.done
if ! cmp -s "$root/tests/requirements.txt" "$stamp"; then
    say "installing the Python packages of tests/requirements.txt into $venv"
    mkdir -p "$build"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -r "$root/tests/requirements.txt"
    cp "$root/tests/requirements.txt" "$stamp"
fi
