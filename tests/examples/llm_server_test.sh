#!/usr/bin/env bash
# llm_server_test.sh PROGRAM LAUNCH: a sharded Llama serves requests that come and go with the tokens of one device, in one
# process and in four, and no rank holds a whole tensor while the weights are loaded.
set -uo pipefail
program=$PWD/$1 launch=$PWD/$2
. tests/tools/checks.sh
export OMP_NUM_THREADS=1 DTENSOR_TIMEOUT=60
model=$work/llama

run() { "$program" --checkpoint "$model" --double "$@" >"$work/out" 2>"$work/err"; }
job() { timeout -k 5 160 "$launch" -n 4 --timeout 150 -- "$program" --checkpoint "$model" --double "$@" >"$work/raw" 2>"$work/err"; code=$?; sed -E 's/^\[rank 0\] ?//' "$work/raw" >"$work/out"; return $code; }
answers() { grep -E '^(request|[0-9]+ tokens in)' "$work/out"; }
loads_parts() {  # at most 30 % of the weights on one of four ranks
  awk '/ bytes, at most / { for (i = 1; i < NF; ++i) { if ($i == "weights:") whole = $(i + 1); if ($i == "most") part = $(i + 1) } } END { exit !(part > 0 && part < 0.3 * whole) }' "$work/out"
}

cat >"$work/requests" <<'END'
# more than there are slots; short and long prompts; one that waits for a slot
0 6 17
0 9 3 141 59 26 53 58 97 93 23 84 62 64 33 83
1 1 250 250
2 12 5 7
9 4 1 2 3 4 5 6 7 8 9

40 5 258 0
END

run --write --requests "$work/requests"
check "in one process" test $? = 0
check "the tokens of one device" prints '^greedy tokens of 6 of 6 requests are those of one device$'
check "no misses" prints '^strategy cache: 0 misses'
check "prints the time" prints '^time per token: [0-9.]+ ms, on one device [0-9.]+ ms$'
check "loads parts" loads_parts
check "answers as many tokens as were asked for" test "$(sed -n 's/^request 3: .*: //p' "$work/out" | wc -w)" = 12
answers >"$work/one"
python3 - "$model" <<'END'
import json, struct, sys
with open(sys.argv[1] + "/model.safetensors", "rb") as f:
    names = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
assert names["model.layers.1.self_attn.k_proj.weight"]["shape"] == [32, 64], names
assert names["model.layers.0.mlp.down_proj.weight"]["shape"] == [64, 160], names
assert names["lm_head.weight"]["shape"] == names["model.embed_tokens.weight"]["shape"] == [259, 64], names
END
check "the file has Hugging Face's names and shapes" test $? = 0

job --requests "$work/requests"
check "in four processes" test $? = 0
answers >"$work/four"
check "the same answers as in one process" cmp -s "$work/one" "$work/four"
check "no misses in four processes" prints '^strategy cache: 0 misses'
check "loads parts in four processes" loads_parts
run --ranks 3 --slots 1 --chunk 1 --requests "$work/requests"
check "one slot on three ranks" test $? = 0
check "the same tokens" test "$(sed 's/.*: //;/tokens in/d' "$work/one")" = "$(answers | sed 's/.*: //;/tokens in/d')"
run --requests - <"$work/requests"
check "requests from standard input" test $? = 0
run
check "random requests" prints '^greedy tokens of 8 of 8'

echo '0 3 1 2 three' >"$work/wrong"
check "a line that is no request" refuses "line 1: '0 3 1 2 three' is not STEP" --requests "$work/wrong"
echo '0 3 1 2 -' >"$work/wrong"
check "a line that ends with a sign" refuses "line 1: '0 3 1 2 -' is not STEP" --requests "$work/wrong"
echo '0 3 5 99999999999999999999' >"$work/wrong"
check "an id of 20 digits" refuses "line 1: .* is not STEP" --requests "$work/wrong"
echo '0 3 259' >"$work/wrong"
check "an unknown id" refuses 'id 259 is not below the vocabulary of 259' --requests "$work/wrong"
echo '0 50 1' >"$work/wrong"
check "too many tokens" refuses '1 tokens and 50 new ones are more than the capacity, 48' --requests "$work/wrong"
check "no such file" refuses '--requests .*: it cannot be read' --requests "$work/nothing"
: >"$work/wrong"
check "no requests" refuses '--requests .*: there are none' --requests "$work/wrong"
check "no slots" refuses '--slots 0: must be at least 1' --slots 0
config() { sed "s/\"vocab_size\"/$1, \"vocab_size\"/" "$work/config.json" >"$model/config.json"; }  # with another field
cp "$model/config.json" "$work"
config '"attention_bias": true'
check "biases of attention" refuses '"attention_bias" is true: only false is supported' --requests "$work/requests"
config '"hidden_act": "gelu"'
check "another activation" refuses '"hidden_act" is "gelu": only "silu" is supported' --requests "$work/requests"
config '"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0}'
check "scaled rotary embeddings" refuses 'rotary embeddings are not supported, as in .*llama3' --requests "$work/requests"
sed 's/"llama"/"qwen2"/' "$work/config.json" >"$model/config.json"
check "another model" refuses '"model_type" is "qwen2": only "llama" is supported' --requests "$work/requests"
sed 's/"rope_theta": [0-9.]*/"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}/' "$work/config.json" >"$model/config.json"
run --requests "$work/requests"
check "a config with rope_parameters" test "$(answers)" = "$(cat "$work/one")"
cp "$work/config.json" "$model"
sed -i 's/"hidden_size": 64/"hidden_size": "wide"/' "$model/config.json"
check "a config with text for a number" refuses '"hidden_size" is "wide"' --requests "$work/requests"
rm "$model/config.json"
check "no config" refuses 'config.json.: it cannot be opened' --requests "$work/requests"

finish
