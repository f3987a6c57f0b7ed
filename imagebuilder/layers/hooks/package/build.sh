# Makes a project's wheel: lays out a root, and runs the build backend in it, where it sees nothing else.
# $1 is Python's release. The backend's output goes to a file, because it is of any size.
set -eu
confine() {
    sh hooks/environment.sh perl hooks/confine.pl "$@"
}
confine tools "$PWD" sh hooks/unpack.sh "$1"
code=0
confine alone "$PWD/root" /build/venv/bin/python -s /build/wheel.py >said 2>&1 || code=$?
if [ "$code" != 0 ]; then
    tail -c 6000 said >&2
    exit "$code"
fi
# This may be a link: the code that reads it checks that.
mv root/build/product.whl product.whl
