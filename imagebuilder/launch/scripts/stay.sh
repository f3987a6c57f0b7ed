# Run a command, and stay after it has ended well: what ends is started again.
"$@" || exit
echo "launch: the job has ended well; delete the LeaderWorkerSet" >&2
while :; do
    sleep 3600 &
    wait "$!"
done
