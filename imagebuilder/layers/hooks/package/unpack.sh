# Lays out a root for a build backend: the image's Python, unpacked and not installed, and a venv with the build
# requirements. Runs in its own namespaces, where no link of a package leads to the host.
# $1 is Python's release. The build has put packages/, python.tar (from a base) and requirements.tar.gz here.
set -eu
umask 022
mkdir root
for folder in bin sbin lib lib64; do
    mkdir -p "root/usr/$folder"
    ln -s "usr/$folder" "root/$folder"
done
for deb in packages/*.deb; do
    [ ! -e "$deb" ] ||
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink --no-same-owner \
            --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale -f -
done
[ ! -e python.tar ] || tar -x -C root --keep-directory-symlink --no-same-owner -f python.tar
# Programs look for their loader under these names. A base's python.tar does not have them.
for loader in root/usr/lib/*-linux-gnu*/ld-linux*.so.*; do
    name=${loader##*/}
    for folder in root/usr/lib root/usr/lib64; do
        [ ! -e "$loader" ] || [ -e "$folder/$name" ] || [ -L "$folder/$name" ] ||
            ln -s "${loader#root}" "$folder/$name"
    done
done
mkdir -p root/build/home root/build/tmp root/build/project root/build/venv/bin
ln -s "/usr/bin/python$1" root/build/venv/bin/python
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >root/build/venv/pyvenv.cfg
[ ! -e requirements.tar.gz ] || tar -x -z -C root --no-same-owner -f requirements.tar.gz
