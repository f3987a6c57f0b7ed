#!/bin/sh
# Waits until the name of a host has an address: `imagebuilder-await HOST`. ssh_config runs it before a login to a node.
# It waits IMAGEBUILDER_WAIT seconds at most, and then leaves it to ssh to report the name.
limit=${IMAGEBUILDER_WAIT:-60}
start=$(date +%s)
said=
until getent ahosts -- "$1" >/dev/null 2>&1; do
    waited=$(($(date +%s) - start))
    [ "$waited" -lt "$limit" ] || break
    if [ -z "$said" ] && [ "$waited" -ge 3 ]; then
        said=yes
        echo "imagebuilder-await: $1 has no address yet; waiting for it up to $limit s" >&2
    fi
    sleep 0.5
done
