# Run the unpacked Python of the image in namespaces that contain only this folder. Its own loader finds its
# own libraries, and none of this host. $1 is the program's name; the rest are its arguments.
set -eu
name=$1
shift

home=
loader=
libraries=
for root in "$PWD/root" "$PWD/base"; do
    [ ! -e "$root/usr/bin/$name" ] || home=${home:-$root/usr}
    # Do not use the links in /lib64: they may lead to the host's libraries.
    for folder in "$root"/lib/*-linux-gnu* "$root"/usr/lib/*-linux-gnu*; do
        [ -d "$folder" ] || continue
        libraries=$libraries${libraries:+:}$folder
        for file in "$folder"/ld-linux*.so.*; do
            [ ! -e "$file" ] || loader=${loader:-$file}
        done
    done
done
if [ -z "$home" ] || [ -z "$loader" ]; then
    echo "the packages and the base have no $name, or no loader for it" >&2
    exit 1
fi
# A fixed stack size in KiB, because the nesting that compiles must not depend on the host.
ulimit -S -s 8192
# A fixed hash seed, so that strings have the same hashes on every host.
exec env -i PATH=/usr/bin:/bin LC_ALL=C.UTF-8 TZ=UTC PYTHONHOME="$home" PYTHONHASHSEED=0 PYTHONUTF8=1 \
    perl hooks/confine.pl bare "$PWD" "$loader" \
    --inhibit-cache --library-path "$libraries" "$home/bin/$name" -S -s -B "$@"
