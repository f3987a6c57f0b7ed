# Inside the new root on a base from a registry: clean up as for a system of our own, and write the difference
# to the base as a layer.
set -eu

[ ! -e /imagebuilder/policy ] || rm /usr/sbin/policy-rc.d
# Keys of the host that sshd would be: every container makes its own, and those of the base go too.
rm -f /etc/ssh/ssh_host_*
# An empty one is made anew at the first boot: machine-id(5).
[ ! -s /etc/machine-id ] || : >/etc/machine-id
rm -f /var/lib/dbus/machine-id
# The third field is the day of the last change of the password. Zero would ask for a new one at login.
sed -i -E 's/^([^:]*:[^:]*:)[^:]*:/\1:/' /etc/shadow

# With the tools that the lock names.
python3 -I -S -B /imagebuilder/hooks/difference.py
tar --create --file /imagebuilder/layer.tar --directory / --null --no-recursion \
    --files-from /imagebuilder/paths --numeric-owner --mtime=@0 --format=pax \
    --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime,delete=mtime \
    --xattrs --xattrs-include=security.capability
