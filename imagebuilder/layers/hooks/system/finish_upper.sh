# mmdebstrap's customize hook on a base from a registry: write the layer. $1 is the new root.
set -eu
root=$1

. "$root/imagebuilder/hooks/inside.sh"

inside sh /imagebuilder/hooks/clean_upper.sh
