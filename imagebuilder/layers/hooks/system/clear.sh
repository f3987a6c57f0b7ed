# mmdebstrap's setup hook on a base from a registry: remove what mmdebstrap has put into the root, so that the
# base's own files are all that is there. $1 is the new root.
set -eu
root=$1

# Its mounts go into the first three, and its own temporary files are in tmp.
find "$root" -xdev -mindepth 1 -maxdepth 1 \
    ! -name dev ! -name proc ! -name sys ! -name tmp ! -name imagebuilder -exec rm -rf {} +
