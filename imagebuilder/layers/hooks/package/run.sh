# Unpacks the root, adds the project's files, and runs the build backend in it. In these namespaces /tmp is in memory.
set -eu
place=$PWD
# A root with a compiler is too large for the memory of a small machine.
[ "$(du -s -c root.tar project | tail -n 1 | cut -f 1)" -gt 262144 ] || place=/tmp
tar -x --no-same-owner -C "$place" -f root.tar
root=$place/root
cp -R -P --preserve=mode project/. "$root/build/project"
find "$root/build/project" -exec touch -h -d @0 {} +
cp hooks/wheel.py "$root/build/wheel.py"
# Once more without variables: the shell of this script has set PWD, which differs between builds.
sh hooks/environment.sh perl hooks/confine.pl alone "$root" /build/venv/bin/python -s /build/wheel.py >said 2>&1
# This may be a link, which stays one: the code that reads it checks that.
mv "$root/build/product.whl" product.whl
