# Make a project's wheel: lay out the root, and run the project's backend where it is all there is.
# $1 is Python's release. What the backend says goes to a file: it may say anything, and any amount.
set -eu
confine() {
    env -i PATH=/build/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/build/home LC_ALL=C.UTF-8 TZ=UTC \
        SOURCE_DATE_EPOCH=0 PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 PYTHONUTF8=1 \
        perl hooks/confine.pl "$@"
}
umask 022
# One stack, in KiB, whatever the host's.
ulimit -S -s 8192
confine tools "$PWD" sh hooks/unpack.sh "$1"
code=0
confine alone "$PWD/root" /build/venv/bin/python -s /build/wheel.py >said 2>&1 || code=$?
if [ "$code" != 0 ]; then
    tail -c 6000 said >&2
    exit "$code"
fi
# The file itself, or a link if it is one: who reads it looks.
mv root/build/product.whl product.whl
