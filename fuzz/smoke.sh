#!/usr/bin/env bash
# Runs every fuzz target for a few seconds: libFuzzer with coverage feedback, on the stable toolchain, without a sanitizer.
#
# usage: fuzz/smoke.sh [SECONDS] [TARGET...]       default: 5 seconds each
# Longer and with AddressSanitizer: `cargo +nightly fuzz run TARGET` (cargo install cargo-fuzz); on stable `cargo fuzz run -s none TARGET`.
# A failing input is left in fuzz/artifacts/TARGET; fuzz/seeds/TARGET holds the inputs to start from,
# most of them recorded from real servers by fuzz/record.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
seconds=${1:-5}
[ $# -gt 0 ] && shift
names=${*:-$(sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.toml | grep -v keyferry-fuzz)}
host=$(rustc -vV | sed -n 's/^host: //p')

# What `cargo fuzz` passes too; a target is named so that build scripts and macros stay uninstrumented.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
bins=()
for name in $names; do bins+=(--bin "$name"); done
cargo build --release --target "$host" "${bins[@]}"

run() {
  local name=$1 out runs cov seeds=()
  mkdir -p "corpus/$name" "artifacts/$name"
  [ -d "seeds/$name" ] && seeds=("seeds/$name")
  if out=$("target/$host/release/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="artifacts/$name/" "corpus/$name" "${seeds[@]}" 2>&1); then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' <<<"$out")
    cov=$(grep -oE 'cov: [0-9]+' <<<"$out" | tail -1)
    echo "fuzz $name: $runs runs, ${cov:-no coverage}"
  else
    echo "fuzz $name: FAILED" >&2
    tail -25 <<<"$out" >&2
    return 1
  fi
}

# As many at once as there are processors.
failed=0
running=0
for name in $names; do
  if [ "$running" -ge "$(nproc)" ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
  run "$name" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
exit $failed
