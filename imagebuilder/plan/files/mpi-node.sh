#!/bin/sh
# mpirun starts its daemon on the other nodes through this (PRTE_MCA_prte_launch_agent).
#
# Over ssh, PRRTE 3 puts its own two folders before LD_LIBRARY_PATH, and with an empty rest after the last colon
# the current folder too, on every node but the one that mpirun runs on: ranks would then find other libraries
# than the first one does. Debian's, and /usr/local's of an Open MPI that was compiled, are in the loader's own
# path, so that nothing is lost by taking them out.
for name in LD_LIBRARY_PATH DYLD_LIBRARY_PATH; do
    eval "value=\${$name-}"
    value=${value#/usr/lib:/usr/lib/*/pmix2/lib:}
    value=${value#/usr/local/lib:/usr/local/lib:}
    if [ -n "$value" ]; then
        export "$name=$value"
    else
        unset "$name"
    fi
done
unset name value
# For an sshd that an operator started without the entrypoint.
. /etc/imagebuilder/cuda-compat.sh
exec "$@"
