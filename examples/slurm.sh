#!/bin/bash
# Four machines of eight GPUs under Slurm: sbatch examples/slurm.sh
# Two minutes before its time is up the run saves, stops, and is put back into the queue; it then goes on.
#SBATCH --job-name=dadlm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=dadlm-%j.log
#SBATCH --signal=TERM@120
set -u

# A folder that all machines see. The text was prepared before, once:
#   dadlm data prepare hf:Skylion007/openwebtext --tokenizer gpt2 --out "$SHARED/cache" --workers 32
SHARED=${SHARED:?name a shared folder}

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Slurm signals torchrun, which tells its eight processes; they agree on the step, save, and have 100 s for it.
srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id "$SLURM_JOB_ID" \
    --shutdown-timeout 100 \
    -m dadlm.cli train paper-bd3lm --init-from "$SHARED/runs/paper-mdlm" \
    --data.cache "$SHARED/cache" --out "$SHARED/runs/paper-bd3lm" \
    --train.parallel ddp --train.accumulate 1

# A finished run returns 0; a stopped one does not, and the same script goes on with it.
code=$?
if [ "$code" -ne 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 50 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
