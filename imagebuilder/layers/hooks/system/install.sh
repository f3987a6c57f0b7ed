# mmdebstrap's essential hook: install the packages round by round, and make the user and the venv.
# $1 is the new root. The variables IMAGEBUILDER_* come from the build.
set -eu
root=$1

. "$root/imagebuilder/hooks/inside.sh"

umask 022
force=$IMAGEBUILDER_FORCE # of the first round; see `layers.system`
for round in "$root"/imagebuilder/rounds/*; do
    [ -e "$round" ] || break
    # File names were made by the build: a package's name and `.deb`, no white space.
    # shellcheck disable=SC2016
    inside sh -c 'cd /imagebuilder/debs && exec dpkg --force-unsafe-io "$1" --install $(cat "../rounds/$2")' \
        - "$force" "${round##*/}"
    [ "$force" != --force-depends ] || force=--no-force-depends
done
# dpkg has looked at each package; apt looks at whether they fit together.
[ ! -x "$root/usr/bin/apt-get" ] || inside apt-get check -q

if [ "$IMAGEBUILDER_USER" != root ] && ! inside id -u "$IMAGEBUILDER_USER" >/dev/null 2>&1; then
    # Group 0 is the convention of clusters that choose the user id: what root's group may write, all may.
    inside useradd --uid "$IMAGEBUILDER_UID" --gid 0 --create-home --home-dir "$IMAGEBUILDER_HOME" \
        --shell /bin/bash --no-log-init "$IMAGEBUILDER_USER"
    inside chmod 0750 "$IMAGEBUILDER_HOME"
fi
# No password: but `*`, because sshd without PAM takes `!` for a locked account and refuses its keys too.
for user in root "$IMAGEBUILDER_USER"; do
    inside usermod --password '*' --shell /bin/bash "$user"
done

# A root in which something is compiled, or that is a base, may do without.
# shellcheck disable=SC2016
[ -z "$IMAGEBUILDER_VENV" ] ||
    inside sh -c 'umask 002 && python3 -m venv --without-pip "$1" && chmod -R g=u "$1"' - "$IMAGEBUILDER_VENV"
