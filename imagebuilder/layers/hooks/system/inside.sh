# Sourced by the other hooks: runs a command in the new root, $root.
# shellcheck shell=sh disable=SC2154

# The command sees nothing of the host: no variables, files, processes or network, and not its name. After the
# first command, the files in the root are untrusted, so hooks also use this function for their own work
# there.
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 TZ=UTC \
        DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true \
        SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" PYTHONHASHSEED=0 PERL_HASH_SEED=0 \
        perl "$root/imagebuilder/hooks/confine.pl" inside "$root" "$@"
}
