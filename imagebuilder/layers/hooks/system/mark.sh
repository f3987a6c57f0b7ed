# mmdebstrap's setup hook after a base was unpacked: what changes from now on has a later time than this mark.
# $1 is the new root.
set -eu
root=$1

. "$root/imagebuilder/hooks/inside.sh"

# File systems keep times by the kernel's tick, which is at most 10 ms: stay clear of it on both sides.
sleep 0.1
touch "$root/imagebuilder/mark"
sleep 0.1

# No service starts while packages are installed.
# shellcheck disable=SC2016
inside sh -euc '[ -e /usr/sbin/policy-rc.d ] || {
    printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d
    chmod 0755 /usr/sbin/policy-rc.d
    touch /imagebuilder/policy
}'
