#!/usr/bin/env bash
# Installs what is missing and runs every check and test: formatting, clippy, unit, command line, integration with real servers,
# doc tests, examples, a short fuzz smoke. Needs Debian and cargo; about 15 minutes on 2 cores from nothing.
#
# usage: tests/run.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# What is built from nothing isn't built faster by what would make the next build fast.
[ -e "${CARGO_TARGET_DIR:-target}" ] || export CARGO_INCREMENTAL=0
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto} RUST_BACKTRACE=${RUST_BACKTRACE:-1}

step() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }
have() { command -v "$1" >/dev/null 2>&1; }

step "tools"
packages=()
have cc || packages+=(gcc libc6-dev)
have g++ || packages+=(g++)
have make || packages+=(make)
have unzip || packages+=(unzip)
have openssl || packages+=(openssl)
have flock || packages+=(util-linux)
[ -e /etc/ssl/certs/ca-certificates.crt ] || packages+=(ca-certificates)
python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip python3-venv)
if [ ${#packages[@]} -gt 0 ]; then
  as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
  echo "installing ${packages[*]}"
  as_root apt-get -qq update
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "${packages[@]}" >/dev/null
fi
have cargo || { echo 'cargo is missing: install Rust first (rustup)' >&2; exit 2; }
cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
# nextest gives each test a time limit and its own process; without it cargo test does.
have cargo-nextest || cargo install --locked --quiet cargo-nextest || echo 'no cargo-nextest: using cargo test'

step "servers"
tests/servers.sh

step "format"
cargo fmt --check

step "clippy"
cargo clippy --locked --all-targets -- -D warnings

profile=default
[ -z "${CI:-}" ] || profile=ci
# Tests of one file are quick; those of a folder read much, from real servers.
small=()
for file in tests/*.rs; do small+=(--test "$(basename "$file" .rs)"); done
large=()
for file in tests/*/main.rs; do large+=(--test "$(basename "${file%/main.rs}")"); done

step "unit, command line and layout tests"
if have cargo-nextest; then
  cargo nextest run --locked --profile "$profile" --lib --bins "${small[@]}"
else
  cargo test --locked --lib --bins "${small[@]}"
fi

step "doc tests and examples"
cargo test --locked --doc
cargo build --locked --examples

# Optimised, or the comparing would take longer than what is compared; and with failpoints, which do nothing until a test asks
# for one: one build gives the program for all of them.
step "integration tests with real servers"
large+=(--features failpoints)
if have cargo-nextest; then
  cargo nextest run --locked --cargo-profile quick --profile "$profile" --test-threads 8 "${large[@]}"
else
  cargo test --locked --profile quick "${large[@]}" -- --test-threads 8
fi

step "fuzz smoke"
fuzz/smoke.sh 5

step "all passed"
