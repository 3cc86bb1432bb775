#!/usr/bin/env bash
# train_lm_processes_test.sh TRAIN_LM LAUNCH PYTHON_SITE|none: a job of several processes learns what one process with as many ranks
# does, bit for bit, and reports the same, for every launcher. In the short form each launcher starts one of the models, in the long one
# tools/launch starts all of them, and each launcher the last.
set -uo pipefail
program=$PWD/$1 launch=$PWD/$2 site=$3
. tests/tools/checks.sh
skipped=0
mkdir "$work/tmp"
export OMP_NUM_THREADS=1 DTENSOR_TIMEOUT=60 TMPDIR=$work/tmp
limit=150 # seconds, of every job
steps=3
! is_long || steps=5

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
  arguments=(--text "$work/text" --steps $steps --sample 30 "$@")
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

two_dims=(--mesh dp=2,tp=2) double=(--mesh dp=2,tp=2 --double) words=(--mesh tp=4 --vocab word) uneven=(--mesh dp=4 --batch 6)
if is_long; then
  of_one_process "${double[@]}"
  job "launch, dp=2,tp=2, float64" "$launch" -n 4 --timeout $limit --
  of_one_process "${words[@]}"
  job "launch, tp=4, words" "$launch" -n 4 --timeout $limit --
  of_one_process "${uneven[@]}"
  job "launch, dp=4, an uneven batch" "$launch" -n 4 --timeout $limit --
  of_one_process "${two_dims[@]}"
  job "launch, dp=2,tp=2" "$launch" -n 4 --timeout $limit --
else
  of_one_process "${uneven[@]}"
  job "launch, dp=4, an uneven batch" "$launch" -n 4 --timeout $limit --
fi
refuses "a mesh of another size" 2 'train_lm: --mesh dp=3 has 3 ranks, but 2 were started' \
  "$launch" -n 2 -- "$program" --text "$work/text" --mesh dp=3
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
is_long || of_one_process "${words[@]}"
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
            --standalone --local-addr 127.0.0.1 --nproc_per_node)
  if ! command -v "$python" > /dev/null; then
    skip "torchrun: torch was built for $python, which is not installed"
  else
    job "torchrun" "${torchrun[@]}" 4
    refuses "torchrun's report has the cause" 1 "DTENSOR_TIMEOUT is 'soon'" \
      env DTENSOR_TIMEOUT=soon "${torchrun[@]}" 2 "$program" --text "$work/text"
    check "by the file for errors" grep -q 'error_file: /' "$work/err"
  fi
fi

is_long || of_one_process "${double[@]}"
export HOME=${HOME:-$work}  # Open MPI 5 does not start without one
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

finish
