# Serve ssh until node 0 tells the job's exit code: PORT (empty where the entrypoint has started sshd) STATE
if [ -n "$1" ]; then
    /usr/sbin/sshd -D -e -p "$1" -f "$2/sshd_config" &
fi
trap 'exit 143' INT TERM
until [ -s "$2/end" ]; do
    sleep 1
done
exit "$(cat "$2/end")"
