# Prints the bytes of memory that this machine can give to a build: its own, or less if a control group has a limit.
# $1 is the root of this host's files, for tests.
set -eu
top=${1-}

{
    awk '/^MemAvailable:/ { print $2 * 1024 }' "$top/proc/meminfo"
    # Both versions of control groups; a limit of any group above counts. Cached files can be dropped.
    sed -n 's|^0::|/sys/fs/cgroup|p; s|^[0-9]*:\([^:]*,\)*memory\(,[^:]*\)*:|/sys/fs/cgroup/memory|p' \
        "$top/proc/self/cgroup" | while read -r group; do
        while [ "${group#/sys/fs/cgroup}" != "$group" ]; do
            for limit in max limit_in_bytes; do
                case $limit in max) used=current ;; *) used=usage_in_bytes ;; esac
                [ ! -r "$top$group/memory.$limit" ] ||
                    cat "$top$group/memory.$limit" "$top$group/memory.$used" "$top$group/memory.stat" |
                    awk 'NR == 1 && !/^[0-9]+$/ { exit } NR == 1 { free = $1 } NR == 2 { free -= $1 }
                        $1 == "inactive_file" || $1 == "total_inactive_file" { cached = $2 }
                        END { if (NR > 1) print (free + cached > 0 ? free + cached : 0) }'
            done
            group=${group%/*}
        done
    done
} | awk '{ $1 += 0 } NR == 1 || $1 < least { least = $1 } END { printf "%.0f\n", least }'
