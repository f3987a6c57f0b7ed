# Sourced by the other hooks: how to run a command in the new root, $root.
# shellcheck shell=sh disable=SC2154

# Nothing of the host gets in: no variables, no files, no processes, no network, not even its name. From the
# first command on, nothing in the root is trusted: what hooks do with it afterwards they do inside, too.
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 TZ=UTC \
        DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true \
        SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" PYTHONHASHSEED=0 PERL_HASH_SEED=0 \
        perl "$root/imagebuilder/hooks/confine.pl" inside "$root" "$@"
}
