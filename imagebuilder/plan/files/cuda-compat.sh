# Read by shells of this image: the entrypoint, mpirun's daemon, and login shells. Puts the folder of cuda-compat
# before LD_LIBRARY_PATH where the host's driver is older than the image's CUDA and cuda-compat works with it. NVIDIA's
# images have that folder. It is never in ld.so.conf: on a newer driver, CUDA would then end with error 803.

# Print the first folder whose libcuda suits a driver. Arguments: the file that describes the driver, and folders.
imagebuilder_compat_for() (
    file=$1
    shift
    for folder; do
        for library in "$folder"/libcuda.so.*.*; do
            [ -r "$library" ] && [ -r "$file" ] || continue
            own=${library##*/libcuda.so.}
            driver=$(sed -n 's/^NVRM version: .* \([0-9][0-9]*\.[0-9.]*\) .*/\1/p' "$file")
            case $driver,$own in
                ,* | *[!0-9.,]*) continue ;;
            esac
            # The driver branches that it works with: an ELF note lists them, as "driver":[535,550,570]. Older ones
            # have no note, but NVIDIA's images a variable with driver>=535,driver<536 for each branch. Without
            # either, every older driver counts, as for NVIDIA's container toolkit.
            branches=$(LC_ALL=C grep -a -o -m 1 '"driver":\[[0-9,]*\]' "$library" ||
                printf '%s\n' "${NVIDIA_REQUIRE_CUDA-}" | grep -o 'driver>=[0-9]*') || :
            [ -n "$branches" ] || branches=${driver%%.*}
            case " $(printf '%s' "$branches" | tr -c 0-9 ' ') " in
                *" ${driver%%.*} "*) ;;
                *) continue ;;
            esac
            # Older than the driver that it was made from.
            [ "$driver" != "$own" ] || continue
            [ "$(printf '%s\n' "$driver" "$own" | sort -V | head -n 1)" = "$driver" ] || continue
            printf '%s\n' "$folder"
            return
        done
    done
)

# Change LD_LIBRARY_PATH; the same arguments.
imagebuilder_use_compat() {
    set -- "$(imagebuilder_compat_for "$@")"
    case "$1,:${LD_LIBRARY_PATH-}:" in
        ,* | *":$1:"*) ;;
        *) export LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ;;
    esac
}
imagebuilder_use_compat /proc/driver/nvidia/version /usr/local/cuda/compat /usr/local/cuda-*/compat
