#!/usr/bin/env bash
# tools/calibrate measures, and what it writes is a cost model that tools/plan takes.
set -uo pipefail
program=$1 plan=$2 launch=$3
. tests/tools/checks.sh
run() { "$program" "$@" >"$work/out" 2>"$work/err"; }
model() { python3 -c "import json, sys; d = json.load(open(sys.argv[1])); sys.exit(0 if ($1) else 1)" "$work/model.json"; }

run --quick --ranks 4 --out "$work/model.json"
check "runs" test $? = 0
check "says how far it is" grep -q 'all_reduce in groups of 4' "$work/err"
for collective in all_reduce all_gather reduce_scatter all_to_all broadcast scatter gather permute barrier; do
  check "a line for $collective" prints "^$collective +within a node +2,4 +[0-9.]+ +[0-9.]+ .* % at [0-9]+"
done
check "a line for copies" prints '^copy: [0-9.]+ GB/s'
for dtype in float32 float64 bfloat16 float16; do
  check "a line for products in $dtype" prints "^matrix products: [0-9.]+ GFLOP/s per rank in $dtype "
done
check "a line for starts" prints '^start of an operator: [0-9.]+ us'
check "a line for operators in steps" prints '^aten::gelu +[0-9.e+]+: [0-9.]+ us, '
check "operators with positive times for ascending amounts" model \
  'len(d["operators"]) > 60 and all(s > 0 for row in d["operators"].values() for _, s in row) and all([a for a, _ in row] == sorted({a for a, _ in row}) for row in d["operators"].values())'
check "the speeds of three dtypes besides float32, and a start" model \
  'sorted(d["flops_by_dtype"]) == ["bfloat16", "float16", "float64"] and len({d["flops_per_second"], *d["flops_by_dtype"].values()}) == 4 and 0 < d["operator_latency"] < 1e-2'
check "all numbers are there and positive" model \
  'all(c[k] > 0 for l in ("within_node", "between_nodes") for c in d[l].values() for k in ("latency", "hop_latency", "bandwidth")) and len(d["within_node"]) == 9 and d["copy_bandwidth"] > 0 and 0 < d["flops_per_second"] != 1e14'
check "ranks of one process read each other's memory" model 'not d["uses_staging_buffers"] and d["ranks_per_node"] == 4'
"$plan" --mesh tp=4 --shape 1024,1024 --dtype f32 --from "S(0)" --to "S(1)" --cost_model "$work/model.json" >"$work/out" 2>"$work/err"
check "a plan with it" test $? = 0
check "an estimate from it" prints 'all_to_all\(tp\).* (us|ms)$'

run --quick --ranks 4 --ranks_per_node 2 --out "$work/model.json"
check "two nodes are two levels" prints '^all_reduce +between nodes '
check "which are both measured" model \
  'd["ranks_per_node"] == 2 and len({15e-6, d["within_node"]["all_reduce"]["latency"], d["between_nodes"]["all_reduce"]["latency"]}) == 3'
run --quick --ranks 3
check "three ranks, nothing written" prints '^Not written'

"$launch" -n 2 -- "$program" --quick --from_env --out "$work/job.json" >"$work/out" 2>"$work/err"
check "ranks in two processes: one model is written" test $? = 0 -a -s "$work/job.json"
check "ranks in two processes: one says so" test "$(grep -c "Written to" "$work/out")" = 1
check "ranks in two processes: they pack what they send" python3 -c "import json, sys; d = json.load(open('$work/job.json')); sys.exit(not (d['uses_staging_buffers'] and d['ranks_per_node'] == 2 and len(d['operators']) > 60))"
check "one process is refused" refuses '--from_env: one process; start at least two' --quick --from_env
check "a device beside processes is refused" refuses '--device: the ranks of a launcher have theirs' --from_env --device cuda:0
check "one rank" refuses '--ranks 1: give 2 to 1024' --ranks 1
check "an unknown device" refuses '--device gpu7: not a device' --device gpu7
check "too few bytes" refuses '--max_bytes 1KiB: give at least 64KiB' --max_bytes 1KiB
check "a file that cannot be written" refuses '--out /nowhere/at/all: cannot be written' --out /nowhere/at/all

finish
