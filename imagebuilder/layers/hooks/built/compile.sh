# mmdebstrap's customize hook: compile a component in the new root, and pack the files that it installed.
# $1 is the new root. The build puts sources, wheels, lower layers and build.sh (the steps) into
# /imagebuilder.
set -eu
root=$1

# shellcheck source=../shared/inside.sh
. "$root/imagebuilder/hooks/inside.sh"

for layer in "$root"/imagebuilder/below/*; do
    [ ! -e "$layer" ] ||
        inside tar -x -z -C / --keep-directory-symlink --numeric-owner -f "/imagebuilder/below/${layer##*/}"
done
inside /sbin/ldconfig
# An error message shows the output after this line, which is from the component's steps.
echo "compiling" >&2
mkdir "$root/imagebuilder/product"
inside sh -eu /imagebuilder/build.sh
# Only this tar leaves the root. The layer sets order, owners and times.
inside tar -c -C /imagebuilder/product --numeric-owner -f /imagebuilder/product.tar .
