# mmdebstrap's customize hook: clean up, and remove the build's files. $1 is the new root.
set -eu
root=$1

. "$root/imagebuilder/hooks/inside.sh"

inside sh /imagebuilder/hooks/clean.sh "$IMAGEBUILDER_SOURCES"
rm -rf "$root/imagebuilder"
