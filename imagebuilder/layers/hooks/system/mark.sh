# mmdebstrap's setup hook after a base was unpacked: files that change later have a later time than this mark.
# $1 is the new root.
set -eu
root=$1

. "$root/imagebuilder/hooks/inside.sh"

# File times have the resolution of the kernel's tick, at most 10 ms; so wait before and after the mark.
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
