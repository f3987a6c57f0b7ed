# mmdebstrap's customize hook: compile a component in the new root, and pack what it installed.
# $1 is the new root. The build handed in sources, wheels, below (layers), and build.sh with all its steps.
set -eu
root=$1

# shellcheck source=../shared/inside.sh
. "$root/imagebuilder/hooks/inside.sh"

for layer in "$root"/imagebuilder/below/*; do
    [ ! -e "$layer" ] ||
        inside tar -x -z -C / --keep-directory-symlink --numeric-owner -f "/imagebuilder/below/${layer##*/}"
done
inside /sbin/ldconfig
# What comes after this line is the component's own; an error shows it.
echo "compiling" >&2
mkdir "$root/imagebuilder/product"
inside sh -eu /imagebuilder/build.sh
# The one thing that leaves this root. Order, owners and times are the layer's own concern.
inside tar -c -C /imagebuilder/product --numeric-owner -f /imagebuilder/product.tar .
