# mmdebstrap's setup hook: unpack the packages that dpkg needs to run, without executing anything.
# $1 is the new root. The build's files are in /imagebuilder there.
set -eu
root=$1

# All supported suites have their programs below /usr; these links must exist before the first package.
for folder in bin sbin lib lib64; do
    mkdir -p "$root/usr/$folder"
    ln -s "usr/$folder" "$root/$folder"
done

# On a disk, writing plain archives would cost more than it saves.
ahead() { [ -z "${IMAGEBUILDER_MEMORY-}" ] || perl "$root/imagebuilder/hooks/ahead.pl" "$1" "$root"; }

ahead first
# Numeric owners, because names would be looked up on the host.
while read -r name; do
    dpkg-deb --fsys-tarfile "$root/imagebuilder/debs/$name" |
        tar -x -C "$root" --keep-directory-symlink --numeric-owner -f -
done <"$root/imagebuilder/rounds/00"
ahead start
