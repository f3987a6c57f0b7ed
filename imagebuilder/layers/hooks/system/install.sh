# mmdebstrap's essential hook: install the packages round by round, and make the user and the venv.
# $1 is the new root. The variables IMAGEBUILDER_* come from the build.
set -eu
root=$1

. "$root/imagebuilder/hooks/inside.sh"

umask 022
force=$IMAGEBUILDER_FORCE # for the first round; see layers/system/install.py
for round in "$root"/imagebuilder/rounds/*; do
    [ -e "$round" ] || break
    # The build chose the file names (a package's name and `.deb`), so they have no white space.
    # shellcheck disable=SC2016
    inside sh -c 'cd /imagebuilder/debs && exec dpkg --force-unsafe-io "$1" --install $(cat "../rounds/$2")' \
        - "$force" "${round##*/}"
    [ "$force" != --force-depends ] || force=--no-force-depends
done
[ -z "${IMAGEBUILDER_MEMORY-}" ] || perl "$root/imagebuilder/hooks/ahead.pl" stop "$root"
# dpkg has checked each package; apt checks that all dependencies are satisfied.
[ ! -x "$root/usr/bin/apt-get" ] || inside apt-get check -q

if [ "$IMAGEBUILDER_USER" != root ] && ! inside id -u "$IMAGEBUILDER_USER" >/dev/null 2>&1; then
    # Clusters that choose the user id run the container in group 0, so the group gets write permission.
    inside useradd --uid "$IMAGEBUILDER_UID" --gid 0 --create-home --home-dir "$IMAGEBUILDER_HOME" \
        --shell /bin/bash --no-log-init "$IMAGEBUILDER_USER"
    inside chmod 0770 "$IMAGEBUILDER_HOME"
fi
if [ "$IMAGEBUILDER_USER" != root ]; then
    # A user id that the cluster chose gets its name from a file that the entrypoint writes (plan/rootfs.py).
    inside sed -i -E '/extrausers/!s/^passwd:[[:space:]]*/&extrausers /' /etc/nsswitch.conf
    # Kubeflow Trainer's MPI runtime starts sshd with this file.
    # shellcheck disable=SC2016
    inside sh -c 'echo "Include /etc/ssh/sshd_config.d/imagebuilder.conf" >"$1/.sshd_config"' - \
        "$IMAGEBUILDER_HOME"
fi
# No password. This is `*` and not `!`: sshd without PAM treats `!` as a locked account and refuses keys too.
for user in root "$IMAGEBUILDER_USER"; do
    inside usermod --password '*' --shell /bin/bash "$user"
done

# Roots for compiling and bases may have no venv.
# shellcheck disable=SC2016
[ -z "$IMAGEBUILDER_VENV" ] ||
    inside sh -c 'umask 002 && python3 -m venv --without-pip "$1" && chmod -R g=u "$1"' - "$IMAGEBUILDER_VENV"
