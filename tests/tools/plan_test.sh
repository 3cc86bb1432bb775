#!/usr/bin/env bash
# What tools/plan prints for good flags, and how it refuses bad ones.
set -uo pipefail
program=$1
. tests/tools/checks.sh
run() { "$program" "$@" >"$work/out" 2>"$work/err"; }
json() {  # json EXPRESSION: true of the document `d` that was printed
  python3 -c "import json, sys; d = json.load(open(sys.argv[1])); sys.exit(0 if ($1) else 1)" "$work/out"
}

run --mesh dp=4,tp=8 --shape 4096,4096 --dtype bf16 --from "S(0)R" --to "RS(1)"
check "a plan" test $? = 0
check "names both layouts" prints '^From bf16\[4096, 4096\]\(S\(0\)R\) @ mesh\(dp=4, tp=8\)$'
check "names the target" prints '^To bf16\[4096, 4096\]\(RS\(1\)\) @ mesh\(dp=4, tp=8\)$'
check "draws who holds which rows" prints '1024:2048 │ 8-15 +│'
check "draws who holds which columns" prints '│ 1,9,17,25 '
check "says what copies there are" prints '^  8 copies$'
check "the steps with bytes, peak and estimate" prints 'groups of 4, 3.0 MiB to a rank, peak .* us$'
check "the routes not taken" prints '^not taken:$'
check "what is wrong with them" prints '8.0 times the bytes'

run --mesh dp=2,tp=3 --shape 7,9 --dtype f32 --from "S(0)P(sum)" --to "S(0)S(1)"
check "addends" prints '^  3 addends \(sum\)$'
check "reduce-scatter" prints 'reduce_scatter\(tp\)'
run --mesh tp=4 --shape 10 --from "S(0)" --to "S(0)"
check "nothing to do" prints 'nothing to do'
run --mesh tp=4 --shape "" --from P --to R
check "a tensor without dims" prints 'all_reduce\(tp\)'
run --mesh tp=4 --shape 2,8 --from "S(0)" --to "S(-1)"
check "empty parts, a dim from the end" prints '^  nothing on ranks 2, 3$'

run --mesh dp=64,tp=64 --from "S(0)S(1)" --to "S(1)S(0)" --json
check "JSON of 4096 ranks" json 'd["bytes"] > 0 and d["from"]["placements"] == "S(0)S(1)" and d["steps"][0]["group_size"] == 4096'
check "JSON and nothing else" json 'd["tensor"]["sizes"] == [4096, 4096] and d["tensor"]["dtype"] == "bf16"'

run --mesh dp=4 --from "S(0)" --to_mesh ep=8 --to_ranks 0-7 --to "S(1)" --svg "$work/both.svg"
check "another mesh" prints '^To bf16\[4096, 4096\]\(S\(1\)\) @ mesh\(ep=8\)$'
check "a transfer" prints 'transfer'
check "a picture of both" grep -q '<svg' "$work/both.svg"
check "with both names" grep -q '>from<' "$work/both.svg"
run --mesh dp=2 --ranks 1,3 --from "S(0)" --to "S(1)" --shape 8,8
check "ranks of its own" prints '0:4 │ 1 '

tight=(--mesh tp=8 --shape 4096,4096 --dtype f32 --from "S(0)" --to "S(1)")
run "${tight[@]}"
check "in one round without a limit" lacks 'rounds'
run "${tight[@]}" --max_bytes 18MiB
check "in several rounds under a limit" prints 'in [0-9]+ rounds'
check "a limit that nothing keeps" refuses '--max_bytes 1MiB: .*every route needs at least [0-9]+ bytes' "${tight[@]}" --max_bytes 1MiB

wide=(--mesh dp=2,tp=4 --from "P(sum)R" --to RR --json)
run "${wide[@]}" --ranks_per_node 8
cp "$work/out" "$work/near"
run "${wide[@]}" --ranks_per_node 4
check "between nodes it takes longer" json "d['seconds'] > json.load(open('$work/near'))['seconds']"
echo '{"within_node": {"all_reduce": {"bandwidth": 1e6}}}' >"$work/slow.json"
run "${wide[@]}" --cost_model "$work/slow.json"
check "a cost model of one's own changes the plan" json '[s["step"] for s in d["steps"]] == ["slice", "reduce_scatter", "all_gather"]'

check "unknown flag" refuses 'unknown flag --form; --help' --form R
check "no flag" refuses "'R' is not a flag" R
check "a flag without value" refuses '--from needs a value' --from
check "mesh of 0" refuses "--mesh dp=0: 'dp=0' is not NAME=SIZE" --mesh dp=0
check "a mesh dim twice" refuses "--mesh a=2,a=2: the name 'a' occurs twice" --mesh a=2,a=2
check "too many ranks" refuses '--mesh a=1000000000: too many ranks' --mesh a=1000000000
check "a shape that is none" refuses "--shape 4,x: 'x' is not a size" --shape 4,x
check "an unknown dtype" refuses '--dtype f33: no such dtype; known are f32' --dtype f33
check "a layout that is none" refuses '--from S\(0\)Q: .*position 4' --from "S(0)Q"
check "too few placements" refuses '--to R: 1 placement, but mesh\(dp=4, tp=8\) has 2 dims' --to R
check "a dim that the tensor lacks" refuses '--from S\(2\)R: .*no dim 2; expected -2 to 1' --from "S(2)R"
check "mixed reductions" refuses '--from P\(sum\)P\(max\): .*does not commute' --from "P(sum)P(max)"
check "ranks that do not fit" refuses '--ranks 0-3: 4 ranks, but --mesh needs 32' --ranks 0-3
check "ranks that are none" refuses "--ranks 3-1: '3-1' is neither a rank nor a range" --ranks 3-1
check "a rank twice" refuses '--ranks 0,0: rank 0 occurs twice' --mesh a=2 --from R --to R --ranks 0,0
check "ranks of no mesh" refuses '--to_ranks 0-3: there is no --to_mesh' --to_ranks 0-3
check "bytes that are none" refuses '--max_bytes much: not a number of bytes; give one such as 2GiB' --max_bytes much
check "a cost model that is not there" refuses '--cost_model nothing: cannot read' --cost_model nothing
echo '{"lateny": 1}' >"$work/bad.json"
check "a cost model with a wrong field" refuses 'unknown field `lateny`' --cost_model "$work/bad.json"
check "negative ranks per node" refuses '--ranks_per_node -1: give at least 1' --ranks_per_node -1
check "ranks per node that are no number" refuses '--ranks_per_node four' --ranks_per_node four
check "a picture that cannot be written" refuses '--svg /nowhere/at/all.svg: cannot be written' --svg /nowhere/at/all.svg

finish
