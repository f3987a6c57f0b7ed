# mmdebstrap's setup hook: unpack what dpkg itself needs to run; nothing is executed.
# $1 is the new root. What the build handed in lies under /imagebuilder there.
set -eu
root=$1

# Every suite known here keeps its programs below /usr; the links have to stand before the first package.
for folder in bin sbin lib lib64; do
    mkdir -p "$root/usr/$folder"
    ln -s "usr/$folder" "$root/$folder"
done

# Owners by number: names would be looked up on the host.
while read -r name; do
    dpkg-deb --fsys-tarfile "$root/imagebuilder/debs/$name" |
        tar -x -C "$root" --keep-directory-symlink --numeric-owner -f -
done <"$root/imagebuilder/rounds/00"
