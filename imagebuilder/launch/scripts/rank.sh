# Run the command as one rank of mpirun: RANKS RANKS_ON_THIS_NODE COMMAND...
# Without this, an mpirun that does not know the list of hosts starts all ranks on one node, and ends with 0.
all=${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-1}}
here=${OMPI_COMM_WORLD_LOCAL_SIZE:-${MPI_LOCALNRANKS:-1}}
if [ "$all" != "$1" ] || [ "$here" != "$2" ]; then
    echo "launch: this job should have $1 ranks, $2 on each node, but mpirun made $all, $here on $(hostname)" >&2
    exit 65
fi
shift 2
exec "$@"
