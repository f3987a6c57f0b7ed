# Run mpirun on node 0: PORT STATE SECONDS HOST... -- MPIRUN...
# Wait until every other node answers by ssh, run mpirun, and tell them its exit code.
port=$1 state=$2 end=$(($(date +%s) + $3)) seconds=$3
shift 3
hosts=
while [ "$1" != -- ]; do
    until why=$(ssh -p "$port" -o BatchMode=yes -o ConnectTimeout=5 -o ConnectionAttempts=1 "$1" true 2>&1); do
        if [ "$(date +%s)" -ge "$end" ]; then
            echo "launch: $1 does not answer by ssh on port $port after $seconds s: $why" >&2
            exit 66
        fi
        sleep 1
    done
    hosts="$hosts $1"
    shift
done
shift
"$@" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null' INT TERM
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
done
for host in $hosts; do
    ssh -p "$port" -o BatchMode=yes -o ConnectTimeout=5 -o ConnectionAttempts=1 "$host" \
        "echo $code >$state/end.new && mv $state/end.new $state/end" || true
done
exit "$code"
