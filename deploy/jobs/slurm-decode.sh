#!/bin/bash
# Decodes text/part-00.en to part-31.en, a file in each task of an array: sbatch deploy/jobs/slurm-decode.sh
# A task that is preempted, or whose time is over, is put into the queue again. The same command decodes the shards that are left.
#SBATCH --job-name=decode --array=0-31 --ntasks=1 --gpus=1 --cpus-per-task=8
#SBATCH --time=4:00:00 --requeue --open-mode=append --signal=TERM@30
part=$(printf 'part-%02d' "$SLURM_ARRAY_TASK_ID")
srun transformer decode-files /shared/runs/big --input "/shared/text/$part.en" --output "/shared/decoded/$part"
status=$?
if [ "$status" -gt 2 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
