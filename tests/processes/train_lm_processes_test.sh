#!/usr/bin/env bash
# train_lm_processes_test.sh TRAIN_LM LAUNCH PYTHON_SITE|none: a job of several processes learns what one process with as many ranks
# does, bit for bit, and reports the same, for every launcher.
set -uo pipefail
program=$PWD/$1 launch=$PWD/$2 site=$3
passed=0 failed=0 skipped=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp"
export OMP_NUM_THREADS=1 DTENSOR_TIMEOUT=60 TMPDIR=$work/tmp
limit=150 # seconds, of every job

check() { # check NAME COMMAND...
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    for f in out err; do sed "s/^/  $f | /" "$work/$f" | cut -c1-300 | tail -40; done
  fi
}
skip() {
  skipped=$((skipped + 1))
  echo "SKIPPED: $*"
}
seq 1 400 | sed 's/$/ bottles of beer on the wall, take one down and pass it around./' > "$work/text"

# What is printed, less the line that names the world, and the peak memory: between processes messages need buffers.
report() { grep -v -e '^text: ' -e '^Peak memory' "$1"; }
peak() { sed -n 's/^Peak memory of distributed tensors per rank: \([0-9]*\) bytes$/\1/p' "$1"; }
# of_one_process ARGUMENTS...: what the others are compared with
of_one_process() {
  arguments=(--text "$work/text" --steps 5 --sample 30 "$@")
  timeout $limit "$program" "${arguments[@]}" --world local --losses "$work/one.losses" > "$work/one.out" 2> "$work/err"
  cp "$work/one.out" "$work/out"
  check "one process: $*" test -s "$work/one.losses"
}
# job NAME STARTER...: the same, started by STARTER; lines may begin with "[rank 0] " and other marks of launchers
job() {
  local name=$1
  shift
  rm -f "$work/losses"
  timeout -k 5 $limit "$@" "$program" "${arguments[@]}" --losses "$work/losses" > "$work/raw" 2> "$work/err"
  local code=$?
  sed -E 's/^\[(rank |default)0\]:? ?//' "$work/raw" > "$work/out"
  check "$name: ends well" test $code = 0
  check "$name: is a job of 4 processes" grep -q 'of processes(4, rank 0, gloo, cpu)$' "$work/out"
  check "$name: the same losses, bit for bit" cmp -s "$work/losses" "$work/one.losses"
  check "$name: the same report" test "$(report "$work/out")" = "$(report "$work/one.out")"
  check "$name: at least as much memory" test "$(peak "$work/out")" -ge "$(peak "$work/one.out")"
}
refuses() { # refuses NAME CODE PATTERN COMMAND...
  local name=$1 code=$2 pattern=$3
  shift 3
  timeout -k 5 $limit "$@" > "$work/out" 2> "$work/err"
  check "$name: exit code" test $? = "$code"
  check "$name: says why" grep -qE -- "$pattern" "$work/err"
}

of_one_process --mesh dp=2,tp=2 --double
job "launch, dp=2,tp=2, float64" "$launch" -n 4 --timeout $limit --
of_one_process --mesh tp=4 --vocab word
job "launch, tp=4, words" "$launch" -n 4 --timeout $limit --
of_one_process --mesh dp=4 --batch 6
job "launch, dp=4, an uneven batch" "$launch" -n 4 --timeout $limit --
of_one_process --mesh dp=2,tp=2
job "launch, dp=2,tp=2" "$launch" -n 4 --timeout $limit --
refuses "a mesh of another size" 2 'train_lm: --mesh dp=3 has 3 ranks, but 4 were started' \
  "$launch" -n 4 -- "$program" --text "$work/text" --mesh dp=3
refuses "an unknown world" 2 "train_lm: --world moon: must be 'local', 'env' or 'auto'" "$program" --world moon
refuses "half a launcher" 1 'RANK is not set \(launcher: torchrun' env WORLD_SIZE=4 "$program" --text "$work/text"

# As srun would start them, which also shows rank 0 serving the store at one address.
cat > "$work/srun" << 'END'
#!/usr/bin/env bash
export SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=127.0.0.1 SLURM_STEP_TASKS_PER_NODE=4 SLURM_NODEID=0
for rank in 1 2 3; do SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & done
SLURM_PROCID=0 SLURM_LOCALID=0 "$@"
code=$?
wait
exit $code
END
chmod +x "$work/srun"
job "Slurm's variables" "$work/srun"

if [ "$site" = none ]; then
  skip "torchrun: the LibTorch in use has no Python half"
else
  python=python3
  for extension in "$site"/torch/_C.cpython-3*.so; do
    version=${extension##*cpython-3} version=${version%%-*}
    python=python3.$version
  done
  torchrun=(env -u PYTHONDONTWRITEBYTECODE PYTHONPATH="$site" PYTHONNOUSERSITE=1 "$python" -m torch.distributed.run --no-python
            --nproc_per_node 4 --standalone --local-addr 127.0.0.1)
  if ! command -v "$python" > /dev/null; then
    skip "torchrun: torch was built for $python, which is not installed"
  else
    job "torchrun" "${torchrun[@]}"
    refuses "torchrun's report has the cause" 1 "DTENSOR_TIMEOUT is 'soon'" \
      env DTENSOR_TIMEOUT=soon "${torchrun[@]}" "$program" --text "$work/text"
    check "by the file for errors" grep -q 'error_file: /' "$work/err"
  fi
fi

if ! command -v mpirun > /dev/null; then
  skip "mpirun is not installed"
elif mpirun --version 2> /dev/null | grep -q 'Open MPI'; then
  job "mpirun (Open MPI)" mpirun --allow-run-as-root --oversubscribe -n 4
else
  job "mpirun (MPICH)" mpirun -n 4
fi
# mpirun's ranks make that folder, for all jobs.
find "$TMPDIR" -path '*dtensor*' ! -name "dtensor-$(id -u)" > "$work/out"
check "no store is left" test ! -s "$work/out"

echo "[dtensor] $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
