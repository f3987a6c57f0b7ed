# Makes a project's wheel: lays out a root, and runs the build backend in it, where it sees nothing else.
# $1 is Python's release. The backend's output goes to a file, because it is of any size.
set -eu
confine() {
    env -i PATH=/build/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/build/home LC_ALL=C.UTF-8 TZ=UTC \
        SOURCE_DATE_EPOCH=0 PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 PYTHONUTF8=1 \
        perl hooks/confine.pl "$@"
}
umask 022
# A fixed stack size in KiB, so that the host's does not matter.
ulimit -S -s 8192
confine tools "$PWD" sh hooks/unpack.sh "$1"
code=0
confine alone "$PWD/root" /build/venv/bin/python -s /build/wheel.py >said 2>&1 || code=$?
if [ "$code" != 0 ]; then
    tail -c 6000 said >&2
    exit "$code"
fi
# This may be a link: the code that reads it checks that.
mv root/build/product.whl product.whl
