# Makes a project's wheel: lays out a root, and runs the build backend in it, where it sees nothing else.
# $1 is Python's release. The backend's output goes to a file, because it is of any size.
set -eu
confine() {
    sh hooks/environment.sh perl hooks/confine.pl "$@"
}
# The root without the project is kept as root.tar: of all that a build needs, only the project changes often.
if [ ! -e root.tar ]; then
    confine tools "$PWD" sh hooks/unpack.sh "$1"
    # Compiled modules start faster. What does not compile is not needed.
    confine alone "$PWD/root" "/usr/bin/python$1" -s -m compileall -q -j 0 "/usr/lib/python$1" /build/venv \
        >/dev/null 2>&1 || true
    confine tools "$PWD" tar -c -f root.tar root
    rm -rf root
fi
code=0
confine tools "$PWD" sh hooks/run.sh || code=$?
if [ "$code" != 0 ]; then
    [ ! -e said ] || tail -c 6000 said >&2
    exit "$code"
fi
