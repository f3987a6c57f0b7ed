# Run the command as one rank of srun: VARIABLE RANKS COMMAND...
# Without its variable of PMI, MPI would take every rank for a job of its own, and the job would end with 0.
if eval "[ -z \"\${$1:-}\" ]" || [ "${SLURM_NTASKS:-1}" != "$2" ]; then
    echo "launch: this rank of $2 has no $1 from srun (see srun --mpi=list), or srun made ${SLURM_NTASKS:-1} ranks" >&2
    exit 65
fi
shift 2
exec "$@"
