# Runs a command in separate namespaces, with a separate root, where it sees nothing of this host.
#
#     perl confine.pl tools FOLDER COMMAND...   with the host's programs, and a folder to work in
#     perl confine.pl bare FOLDER COMMAND...    with only a folder that has the program; no capabilities
#     perl confine.pl alone ROOT COMMAND...     in a system that is unpacked and not installed; no capabilities
#     perl confine.pl inside ROOT COMMAND...    in a system, with the capabilities that an installation needs
#     perl confine.pl around FOLDER             no command: like `tools`, for all processes with these mounts
#
# `tools`, `bare` and `alone` create a user namespace, in which root is another user than on the host. `inside` and
# `around` run in an existing one, `around` from a hook of mmdebstrap. pivot_root(2) moves every process of the mount
# namespace, so mmdebstrap itself cannot follow a link out of the new root later.
#
# This is Perl because mmdebstrap needs it too, and its container has no Python. It is not a shell because after
# pivot_root no program of the host is left that could drop capabilities.
use strict;
use warnings;
use Errno qw(EINVAL EPERM);
use File::Find qw(find);
use POSIX ();

require "syscall.ph";

# linux/sched.h, linux/mount.h, linux/prctl.h, linux/capability.h, linux/keyctl.h
use constant {
    NEW_NS => 0x20000, NEW_CGROUP => 0x2000000, NEW_UTS => 0x4000000, NEW_IPC => 0x8000000,
    NEW_USER => 0x10000000, NEW_PID => 0x20000000, NEW_NET => 0x40000000,
    MS_RDONLY => 1, MS_NOSUID => 2, MS_NODEV => 4, MS_NOEXEC => 8, MS_REMOUNT => 32, MS_BIND => 4096,
    MS_REC => 16384, MS_PRIVATE => 1 << 18, DETACH => 2,
    SET_PDEATHSIG => 1, CAPBSET_DROP => 24, SET_NO_NEW_PRIVS => 38,
    CAPABILITY_VERSION_3 => 0x20080522, JOIN_SESSION_KEYRING => 1,
};

# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETFCAP: an installation sets owners, modes, users
# and file capabilities. Nothing for mounts, chroot, devices, ptrace or the network.
my @INSTALLING = (0, 1, 3, 4, 5, 6, 7, 31);
# A range of ids that no user of the host has: above those of systemd's containers (see "Users, Groups, UIDs and
# GIDs" in its documentation), below 2^31, because programs read larger ids as negative numbers.
my ($FIRST, $COUNT) = (0x70000000, 0x0fffffff);
my $LEAST = 65536;
my @DEVICES = qw(null zero full random urandom tty);
# Paths that container engines hide from containers or make read-only (runtime-spec: maskedPaths, readonlyPaths).
my @MASKED = qw(proc/acpi proc/asound proc/interrupts proc/kcore proc/keys proc/latency_stats proc/sched_debug
    proc/scsi proc/timer_list proc/timer_stats sys/devices/virtual/powercap sys/firmware sys/fs/selinux);
my @READ_ONLY = qw(proc/bus proc/fs proc/irq proc/sys proc/sysrq-trigger);

my ($how, $root, @command) = @ARGV;
die "confine: tools|bare|alone|inside FOLDER COMMAND..., or around FOLDER\n"
    unless $how eq 'around' ? !@command : @command && $how =~ /^(?:tools|bare|alone|inside)$/;
# Whether the command sees the host's programs, with the capabilities that they need.
my $has_tools = $how eq 'tools' || $how eq 'around';
my $is_system = $how eq 'inside' || $how eq 'alone';

# Close inherited files: mmdebstrap's hooks have an open socket to a process outside.
close_others();
exit around() if $how eq 'around';
my $others = NEW_NS | NEW_PID | NEW_NET | NEW_IPC | NEW_UTS | NEW_CGROUP;
exit($how eq 'inside' ? in_namespaces($others) : as_another_user($others));

sub in_namespaces {
    my ($flags) = @_;
    kernel('unshare', $flags);
    return finished(child(\&as_first));
}

# Create the user namespace. This process stays outside and writes the namespace's ids.
sub as_another_user {
    my ($flags) = @_;
    my $is_root = $> == 0;
    my %map = map { $_ => $is_root ? ids($_) : '0 ' . ($_ eq 'uid' ? $> : $) + 0) . " 1\n" } qw(uid gid);
    hand_over(map { (split ' ', $map{$_})[1] } qw(uid gid)) if $is_root;
    pipe(my $made, my $making) and pipe(my $mapped, my $mapping) or fail('pipe');
    my $pid = child(sub {
        close $_ for $made, $mapping;
        # Enter the folder as the host's user, because the namespace's root may not be able to reach its path.
        chdir $root or fail("cannot enter $root");
        kernel('unshare', NEW_USER | $flags);
        syswrite $making, '.';
        sysread $mapped, my $go, 1 or POSIX::_exit(1);
        for my $set (qw(setgid setuid)) { kernel($set, 0) }
        end_with_parent();  # a change of the user id has reset this
        # In namespaces that an ordinary user made, the kernel lets nobody change groups.
        kernel('setgroups', 0, 0) if $is_root && !grep { $_ eq 'deny' } lines('/proc/self/setgroups');
        return finished(child(\&as_first));
    });
    close $_ for $making, $mapped;
    if (sysread $made, my $is_made, 1) {
        write_to("/proc/$pid/setgroups", "deny") unless $is_root;
        write_to("/proc/$pid/${_}_map", $map{$_}) for qw(gid uid);
        syswrite $mapping, '.';
    }
    return finished($pid);
}

sub around {
    chdir $root or fail("cannot enter $root");
    kernel('mount', 'none', '/', 0, MS_REC | MS_PRIVATE, 0);
    enter_folder();
    return 0;
}

# The first process of the PID namespace: all its other processes end with it.
sub as_first {
    $SIG{$_} = sub { exit 1 } for qw(TERM INT HUP);
    kernel('mount', 'none', '/', 0, MS_REC | MS_PRIVATE, 0);
    kernel('sethostname', 'localhost', 9);
    $is_system ? enter_system() : enter_folder();
    # Leave the caller's session keyring. Some kernels have no keyrings, so an error is ignored.
    syscall(&SYS_keyctl, JOIN_SESSION_KEYRING, 0);
    give_up($how eq 'inside' ? @INSTALLING : ()) unless $how eq 'tools';
    my $pid = child(sub {
        $SIG{$_} = 'DEFAULT' for qw(TERM INT HUP);
        no warnings 'exec';
        exec { $command[0] } @command or fail("cannot run $command[0]");
    });
    while ((my $ended = wait) != $pid) { last if $ended < 0 }
    return $? & 127 ? 128 + ($? & 127) : $? >> 8;
}

# The system is untrusted: it is from a registry, or its packages have already run programs.
sub enter_system {
    $how eq 'inside' ? chdir_into_mount($root) : chdir_into_stage();
    for my $folder (qw(dev proc sys)) {
        fail("/$folder of the image is no folder") if -l $folder or -e _ && !-d _;
        -d $folder or mkdir $folder, 0755 or fail("cannot make /$folder");
    }
    add_kernel_folders();
    for my $path (@MASKED) {
        next unless -e $path;
        -d _ ? tmpfs($path, MS_RDONLY, 'mode=555') : kernel('mount', '/dev/null', $path, 0, MS_BIND, 0);
    }
    for my $path (@READ_ONLY) { attach($path, $path, 1) if -e $path }
    # The hooks also run outside of this root, and one of them writes packages, so programs in the root must not
    # change or replace them.
    for my $path (qw(imagebuilder imagebuilder/hooks imagebuilder/debs)) {
        attach($path, $path, $path =~ m{/}) if -d $path && !-l $path;
    }
    pivot();
}

# Make a root that has only the folder, at its own path, and for `tools` and `around` the host's programs.
sub enter_folder {
    my $stage = '/tmp';
    tmpfs($stage, MS_NOSUID | MS_NODEV, 'mode=755');
    if ($has_tools) {
        opendir my $top, '/' or fail('/');
        for my $name (grep { /^(?:usr|etc|s?bin|lib\w*)$/ } readdir $top) {
            if (-l "/$name") { symlink readlink("/$name"), "$stage/$name" or fail("/$name") }
            else { mkdir "$stage/$name" and attach("/$name", "$stage/$name", 1) }
        }
    }
    make_folders($stage, $root);
    kernel('mount', '.', "$stage$root", 0, MS_BIND, 0);
    # The new system is in memory where the build has found room for it (room.sh).
    if ($how eq 'tools' && ($ENV{IMAGEBUILDER_MEMORY} // '') =~ /^([1-9]\d*)$/) {
        make_folders("$stage$root", 'roots');
        tmpfs("$stage$root/roots", MS_NOSUID | MS_NODEV, "mode=755,size=$1");
    }
    chdir $stage or fail($stage);
    for my $folder (qw(dev proc sys tmp)) { -d $folder or mkdir $folder or fail($folder) }
    chmod 01777, 'tmp';
    add_kernel_folders();
    pivot();
    chdir $root or fail("cannot enter $root");
    return;
}

sub add_kernel_folders {
    tmpfs('dev', MS_NOSUID, 'mode=755');
    for my $name (@DEVICES) {
        next unless -c "/dev/$name";
        write_to("dev/$name", '');
        kernel('mount', "/dev/$name", "dev/$name", 0, MS_BIND, 0);
    }
    for my $link (['ptmx', 'pts/ptmx'], ['fd', '/proc/self/fd'], ['stdin', '/proc/self/fd/0'],
        ['stdout', '/proc/self/fd/1'], ['stderr', '/proc/self/fd/2']) {
        symlink $link->[1], "dev/$link->[0]" or fail("/dev/$link->[0]");
    }
    mkdir "dev/$_" or fail("/dev/$_") for qw(pts shm);
    kernel('mount', 'devpts', 'dev/pts', 'devpts', MS_NOSUID | MS_NOEXEC, 'newinstance,mode=620,ptmxmode=666');
    tmpfs('dev/shm', MS_NOSUID | MS_NODEV, 'mode=1777');
    # In a container with masked proc and sys, the kernel refuses new mounts of them: use the masked ones.
    for my $type (['proc', 'proc', 0], ['sysfs', 'sys', MS_RDONLY]) {
        my ($name, $folder, $flags) = @$type;
        next if try('mount', $name, $folder, $name, MS_NOSUID | MS_NODEV | MS_NOEXEC | $flags, 0);
        fail("the kernel refuses mount $folder") unless $! == EPERM;
        kernel('mount', "/$folder", $folder, 0, MS_BIND | MS_REC, 0);
    }
    # Forbid nested user namespaces, whose root would have all capabilities. With a masked proc the open fails.
    if (!$has_tools && open my $limit, '>', 'proc/sys/user/max_user_namespaces') { print $limit '0' }
    return;
}

sub chdir_into_mount {
    my ($folder) = @_;
    kernel('mount', $folder, $folder, 0, MS_BIND, 0);
    chdir $folder or fail("cannot enter $folder");
    return;
}

# Bind the current folder to a path of this namespace: its root may be unable to reach the folder's own.
sub chdir_into_stage {
    my $stage = '/tmp';
    tmpfs($stage, MS_NOSUID | MS_NODEV, 'mode=755');
    mkdir "$stage/root" or fail("$stage/root");
    kernel('mount', '.', "$stage/root", 0, MS_BIND, 0);
    chdir "$stage/root" or fail("$stage/root");
    return;
}

# Make this folder the root, and unmount the host's root, which chroot would leave mounted.
sub pivot {
    kernel('pivot_root', '.', '.');
    kernel('umount2', '.', DETACH);
    chdir '/' or fail('/');
    return;
}

sub give_up {
    my %kept = map { $_ => 1 } @_;
    for my $number (0 .. 63) {
        next if $kept{$number} || try('prctl', CAPBSET_DROP, $number, 0, 0, 0);
        last if $! == EINVAL;
        fail("capability $number");
    }
    my @halves = (0, 0);
    $halves[$_ >> 5] |= 1 << ($_ & 31) for @_;
    my $sets = pack 'L6', map { $_, $_, 0 } @halves;
    kernel('capset', pack('LL', CAPABILITY_VERSION_3, 0), $sets);
    kernel('prctl', SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return;
}

# The host's ids for the namespace: root's range in /etc/subuid, or an unused range. In a container of a rootless
# engine neither exists, but there root is already an ordinary user of the host.
sub ids {
    my ($kind) = @_;
    my @here = map { [split] } lines("/proc/self/${kind}_map");
    my @ranges = map { [(split /:/)[1, 2]] } grep { /^(?:root|0):\d+:\d+$/ } lines("/etc/sub$kind");
    for my $range (grep { $_->[0] && $_->[1] >= $LEAST } @ranges, [$FIRST, $COUNT]) {
        my ($first, $count) = @$range;
        return "0 $first $count\n" if grep { $_->[0] <= $first && $first + $count <= $_->[0] + $_->[2] } @here;
    }
    return join '', map { "$_->[0] $_->[0] $_->[2]\n" } @here;
}

# Give the folder to the namespace's root. Files in it keep their owners, and become readable.
sub hand_over {
    my @owner = @_;
    find({ no_chdir => 1, wanted => sub {
        my ($mode, $links) = (lstat $_)[2, 3];
        if (-d _) { chmod $mode & 07777 | 0055, $_ or fail($_) if ($mode & 0055) != 0055 }
        elsif (!-f _ || $mode & 0004) { }
        elsif ($links == 1) { chmod $mode & 07777 | 0044, $_ or fail($_) }
        else { own_copy($_) }
    } }, $root);
    chown @owner, $root or fail("cannot hand $root over");
    return;
}

# Replace a hard link by a copy, so that the mode of the store's file does not change.
sub own_copy {
    my ($path) = @_;
    system('cp', '--', $path, "$path.copy") == 0 or fail("cannot copy $path");
    chmod 0644, "$path.copy" and rename "$path.copy", $path or fail("cannot copy $path");
    return;
}

sub close_others {
    opendir my $open, '/proc/self/fd' or fail('/proc/self/fd');
    my @numbers = grep { /^\d+$/ && $_ > 2 } readdir $open;
    closedir $open;
    POSIX::close($_) for @numbers;
    return;
}

sub attach {
    my ($from, $to, $read_only) = @_;
    kernel('mount', $from, $to, 0, MS_BIND | MS_REC, 0);
    return unless $read_only;
    # Repeat the mount's existing flags, because without them the kernel would refuse to clear them.
    my $place = $to =~ m{^/} ? $to : POSIX::getcwd() . "/$to";
    my %flags = (nosuid => MS_NOSUID, nodev => MS_NODEV, noexec => MS_NOEXEC);
    my ($options) = map { (split)[5] } grep { (split)[4] eq $place } reverse lines('/proc/self/mountinfo');
    my $kept = 0;
    $kept |= $flags{$_} // 0 for split /,/, $options // '';
    kernel('mount', 'none', $to, 0, MS_REMOUNT | MS_BIND | MS_RDONLY | $kept, 0);
    return;
}

sub tmpfs {
    my ($place, $flags, $options) = @_;
    kernel('mount', 'tmpfs', $place, 'tmpfs', $flags, $options);
    return;
}

sub make_folders {
    my ($place, $path) = @_;
    for my $name (grep { length } split m{/}, $path) {
        $place .= "/$name";
        -d $place or mkdir $place, 0755 or fail("cannot make a place for $path");
    }
    return;
}

sub child {
    my ($work) = @_;
    my $pid = fork // fail('fork');
    return $pid if $pid;
    end_with_parent();
    my $code = eval { $work->() };
    print STDERR $@ if $@;
    POSIX::_exit($code // 1);
}

sub end_with_parent {
    kernel('prctl', SET_PDEATHSIG, POSIX::SIGKILL(), 0, 0, 0);
    return;
}

sub finished {
    my ($pid) = @_;
    waitpid $pid, 0;
    return $? & 127 ? 128 + ($? & 127) : $? >> 8;
}

sub lines {
    my ($path) = @_;
    open my $file, '<', $path or return ();
    chomp(my @lines = <$file>);
    return @lines;
}

sub write_to {
    my ($path, $text) = @_;
    open my $file, '>', $path or fail("cannot write $path");
    print $file $text;
    close $file or fail("cannot write $path");
    return;
}

# Perl's syscall needs variables, and passes a number or a string depending on how a variable was last used.
sub try {
    my ($name, @words) = @_;
    my $number = do { no strict 'refs'; &{"SYS_$name"}() };
    return syscall($number, @words) != -1;
}

sub kernel {
    my ($name, @words) = @_;
    try($name, @words) or fail("the kernel refuses $name" . ($name eq 'mount' ? " $words[1]" : ''));
    return;
}

sub fail {
    my ($what) = @_;
    die "confine: $what: $!\n";
}
