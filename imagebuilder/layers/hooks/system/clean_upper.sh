# Runs in the new root on a base from a registry: cleans up as on a bootstrapped system, and writes the
# differences from the base as a layer.
set -eu

[ ! -e /imagebuilder/policy ] || rm /usr/sbin/policy-rc.d
# sshd's host keys, also those of the base: every container makes its own.
rm -f /etc/ssh/ssh_host_*
# An empty machine-id is filled at the first boot: machine-id(5).
[ ! -s /etc/machine-id ] || : >/etc/machine-id
rm -f /var/lib/dbus/machine-id
# Empty the third field, the day of the last password change. Zero would require a new password at login.
sed -i -E 's/^([^:]*:[^:]*:)[^:]*:/\1:/' /etc/shadow

# Use the Python and tar of the image, which the lock names.
python3 -I -S -B /imagebuilder/hooks/difference.py
tar --create --file /imagebuilder/layer.tar --directory / --null --no-recursion \
    --files-from /imagebuilder/paths --numeric-owner --mtime=@0 --format=pax \
    --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime,delete=mtime \
    --xattrs --xattrs-include=security.capability
