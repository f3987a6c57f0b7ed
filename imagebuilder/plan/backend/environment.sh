# Runs a program in the environment that a build backend gets, whichever engine builds: the same variables, file
# modes and limits. C compilers write the names of source files without the folder of the build.
umask 022
# A fixed stack size in KiB, so that the host's does not matter.
ulimit -S -s 8192
exec env -i PATH=/build/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/build/home TMPDIR=/build/tmp LC_ALL=C.UTF-8 \
    TZ=UTC SOURCE_DATE_EPOCH=0 PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 PYTHONUTF8=1 \
    CFLAGS=-ffile-prefix-map=/build/work=. CXXFLAGS=-ffile-prefix-map=/build/work=. "$@"
