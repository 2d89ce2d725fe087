#!/usr/bin/env bash
# The committed figures: about 35 minutes on an idle machine with 2 cores. Writes benchmarks/results/*/speed.{json,png}.
set -euo pipefail
cd "$(dirname "$0")/.."
bench() { name=$1; shift; .venv/bin/undilute bench --output "benchmarks/results/$name" "$@"; }
bench forward --lengths 1024,4096 --no-backward --dense 1024 --repeat 5
bench training --lengths 1024,4096 --rules ssmax,sink,adaptive,sparsemax,entmax15,entmax,top-k,sigmoid --decode 0 --dense 1024 --repeat 5
bench long --lengths 16384 --no-backward --rules ssmax,sink,adaptive,sparsemax,entmax15,entmax,sigmoid,sa-softmax,softpick,top-k --decode 0 --repeat 3
bench long-training --lengths 16384 --rules sparsemax,entmax15,entmax --decode 0 --repeat 3
bench focus --lengths 1024,4096,16384 --rules entmax15,focus --dense 1024 --repeat 3
bench focus-spreads --lengths 4096 --spreads diffuse,sharp --rules entmax15,focus --decode 0 --dense 1024 --repeat 3
bench spreads --lengths 4096 --spreads diffuse,sharp --no-backward --rules sparsemax,entmax15,entmax,top-k --decode 0 --repeat 3
.venv/bin/undilute bench-diagnosis --lengths 2048,8192 --repeat 3 --output benchmarks/results/diagnosis
