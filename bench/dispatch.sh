#!/usr/bin/env bash
# Counts the instructions per codec call with callgrind: called directly, and through the table of back ends.
# Each way runs with two numbers of rounds, A and B, so that the start-up cancels out. A round has two calls:
# (count(B) - count(A)) / (B - A) / 2.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "SKIPPED dispatch: valgrind is not installed"; exit 0; }
cargo build --release --quiet -p pagefold-codec --example dispatch
binary=${CARGO_TARGET_DIR:-target}/release/examples/dispatch
few=200 many=1200

count() {
    local out
    out=$(mktemp)
    valgrind --tool=callgrind --callgrind-out-file="$out" "$binary" "$1" "$2" >/dev/null 2>&1
    awk '/^(summary|totals):/ { print $2; exit }' "$out"
    rm -f "$out"
}

per_call() {
    local a b
    a=$(count "$1" $few)
    b=$(count "$1" $many)
    awk -v a="$a" -v b="$b" -v n=$(((many - few) * 2)) 'BEGIN { printf "%.2f", (b - a) / n }'
}

direct=$(per_call direct)
table=$(per_call table)
awk -v d="$direct" -v t="$table" 'BEGIN {
    printf "instructions per call: direct %.2f, through the table %.2f, difference %+.2f (%+.4f %%)\n", d, t, t - d, 100 * (t - d) / d
}'
