# Unpack the packages of the image's Python into root, and the base's files for it into base.
# Runs in the folder that has the packages.
set -eu
mkdir root base
for deb in packages/*.deb; do
    [ ! -e "$deb" ] || dpkg-deb --extract "$deb" root
done
[ ! -e base.tar ] || tar -x --no-same-owner -C base -f base.tar
