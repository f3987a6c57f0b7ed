# mmdebstrap's customize hook on a base from a registry: clean up as for a system of our own, and write the
# difference to the base as a layer. $1 is the new root.
set -eu
root=$1

[ ! -e "$root/imagebuilder/policy" ] || rm "$root/usr/sbin/policy-rc.d"
# Keys of the host that sshd would be: every container makes its own, and those of the base go too.
rm -f "$root"/etc/ssh/ssh_host_*
# An empty one is made anew at the first boot: machine-id(5).
[ ! -s "$root/etc/machine-id" ] || : >"$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id"
# The third field is the day of the last change of the password. Zero would ask for a new one at login.
sed -i -E 's/^([^:]*:[^:]*:)[^:]*:/\1:/' "$root/etc/shadow"

# Inside, where links of the base lead to files of the base; with the tools that the lock names.
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 TZ=UTC chroot "$root" "$@"
}
inside python3 -I -S -B /imagebuilder/hooks/difference.py
inside tar --create --file /imagebuilder/layer.tar --directory / --null --no-recursion \
    --files-from /imagebuilder/paths --numeric-owner --mtime=@0 --format=pax \
    --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime,delete=mtime \
    --xattrs --xattrs-include=security.capability
