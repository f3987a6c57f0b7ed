# mmdebstrap's customize hook: what is secret, of this host or of this moment goes away.
# $1 is the new root.
set -eu
root=$1

rm -f "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
install -m 0644 "$root/imagebuilder/sources" "$root/etc/apt/sources.list.d/$IMAGEBUILDER_SOURCES"
rm -rf "$root/imagebuilder"

# Keys of the host that sshd would be: every container makes its own.
rm -f "$root"/etc/ssh/ssh_host_*
# What a container's engine provides, copied from this host or left unset by the bootstrap.
rm -f "$root/etc/hostname" "$root/etc/hosts" "$root/etc/resolv.conf" "$root/etc/fstab"
# An empty one is made anew at the first boot: machine-id(5).
[ ! -e "$root/etc/machine-id" ] || : >"$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id"

find "$root/var/log" -type f -delete
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root/var/cache/ldconfig/aux-cache"
rm -f "$root"/var/lib/dpkg/*-old "$root"/var/cache/debconf/*-old
for file in passwd group shadow gshadow subuid subgid; do
    rm -f "$root/etc/$file-"
done
# The third field is the day of the last change of the password. Zero would ask for a new one at login.
sed -i -E 's/^([^:]*:[^:]*:)[^:]*:/\1:/' "$root/etc/shadow"
