# Unpack the packages of the image's Python, and what a base has of it, each into a folder of its own.
# Runs in the folder that the build handed them in with.
set -eu
mkdir root base
for deb in packages/*.deb; do
    [ ! -e "$deb" ] || dpkg-deb --extract "$deb" root
done
[ ! -e base.tar ] || tar -x --no-same-owner -C base -f base.tar
