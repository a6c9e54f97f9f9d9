#!/bin/bash
# Trains with SLURM on machines that may be taken away: sbatch deploy/jobs/slurm.sh
# SLURM itself starts a preempted job again (--requeue). Two minutes before its time is over, TERM lets training save; then, and
# after the loss of a machine, this script puts the job into the queue again. The same command continues bit for bit. When
# training has ended, results.json is there; an error that needs you has status 2, and the job ends.
#SBATCH --job-name=train --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=8
#SBATCH --time=4:00:00 --requeue --open-mode=append --signal=TERM@120
run=/shared/runs/big
srun transformer train big --data.train-source /shared/train.en --data.train-target /shared/train.de \
    --data.validation-source /shared/valid.en --data.validation-target /shared/valid.de \
    --run-dir "$run" --training.save-minutes 30
status=$?
if [ "$status" != 2 ] && [ ! -e "$run/results.json" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
