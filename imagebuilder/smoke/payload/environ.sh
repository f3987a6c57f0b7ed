#!/bin/sh
# Prints where this shell finds some tools, and the values of variables. $1 is the run's nonce, the rest are the
# variables' names. This is sh, because a shell that lost its PATH does not find python.
nonce=$1
shift
echo "@nonce $nonce"
for tool in python pip mpirun prted orted torchrun gcc; do
    printf '@tool %s=%s\n' "$tool" "$(command -v "$tool")"
done
for name in "$@"; do
    eval "[ -z \"\${$name+set}\" ] || printf '@env %s=%s\n' \"$name\" \"\$$name\""
done
