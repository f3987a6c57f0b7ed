# mmdebstrap's setup hook on a base from a registry: remove the files that mmdebstrap made in the root, so
# that it has only the base's files. $1 is the new root.
set -eu
root=$1

# mmdebstrap mounts into dev, proc and sys, and has temporary files in tmp.
find "$root" -xdev -mindepth 1 -maxdepth 1 \
    ! -name dev ! -name proc ! -name sys ! -name tmp ! -name imagebuilder -exec rm -rf {} +
