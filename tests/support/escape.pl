#!/usr/bin/perl
# A program of an image that tries to get out. What it would do on the host is to write a file into a folder of
# the test's; it triggers nothing. It tells what it could do in a file that the test finds in the layer.
#
# The test puts the values in: a folder on the host, a word that is in a host's process's command line, the
# name of an abstract socket, and a port.
use strict;
use warnings;
use Fcntl qw(O_RDONLY O_WRONLY O_CREAT);
use Socket;
use POSIX ();

my ($witness, $process, $socket, $port, $report) = ('@WITNESS@', '@PROCESS@', '@SOCKET@', @PORT@, '@REPORT@');
my %number = (POSIX::uname())[4] eq 'aarch64'
    ? (unshare => 97, mount => 40, mknodat => 33)
    : (unshare => 272, mount => 165, mknodat => 259);
my @told;

noted('capabilities', line('/proc/self/status', qr/^CapEff:\s*(\S+)/));
noted('bounding', line('/proc/self/status', qr/^CapBnd:\s*(\S+)/));
noted('no new privileges', line('/proc/self/status', qr/^NoNewPrivs:\s*(\S+)/));
noted('root is', line('/proc/self/uid_map', qr/^\s*0\s+(\d+)/));
noted('host name', (POSIX::uname())[1]);
noted('devices', join ' ', sort map { s{^/dev/}{}r } grep { !-l && (-b || -c) } glob '/dev/*');

attempt('double chroot', sub {
    mkdir '/tmp/escape';
    chroot '/tmp/escape' or return 0;
    chdir '..' for 1 .. 64;
    chroot '.';
    return touched("$witness/double-chroot");
});
attempt('root of process 1', sub { touched("/proc/1/root$witness/process-1") });
attempt('root of any process', sub { grep { touched("$_$witness/process") } glob '/proc/[0-9]*/root' });
attempt('socket of mmdebstrap', sub {
    for my $fd (3 .. 63) {
        open my $out, '>&=', $fd or next;
        next unless -S $out;
        for my $message (message('openw', "$witness/hook-socket"), message('write', 'x'), message('close', '')) {
            syswrite $out, $message;
            select undef, undef, undef, 0.2;
        }
        # And a word of thanks for each is there now, for nobody: mmdebstrap would read it.
    }
    return 0;
}) if '@HOOKS@';
attempt('descriptors', sub { grep { -e "/proc/self/fd/$_" } 3 .. 63 });
attempt('block device', sub {
    my @disks = map { [(split)[0, 1]] } grep { /^\s*\d+\s+\d+/ } lines('/proc/partitions');
    for my $disk (@disks) {
        my $device = $disk->[0] << 8 | $disk->[1];
        my $path = '/tmp/disk';
        syscall($number{mknodat}, -100, $path, 0060600, $device);
        my $read = readable($path);
        unlink $path;
        return 1 if $read;
    }
    return 0;
});
attempt('mount', sub {
    my ($type, $place) = ('tmpfs', '/tmp/escape');
    mkdir $place;
    return syscall($number{mount}, $type, $place, $type, 0, 0) == 0;
});
attempt('user namespace', sub { syscall($number{unshare}, 0x10000000) == 0 });
attempt('core_pattern', sub { sysopen my $file, '/proc/sys/kernel/core_pattern', O_WRONLY });
attempt('sysrq', sub { sysopen my $file, '/proc/sysrq-trigger', O_WRONLY });
attempt('kernel memory', sub { readable('/proc/kcore') });
attempt('signal', sub {
    for my $folder (glob '/proc/[0-9]*') {
        next unless join("\0", lines("$folder/cmdline")) =~ /\Q$process\E/;
        return 1 if kill 'TERM', $folder =~ s{/proc/}{}r;
    }
    return 0;
});
attempt('abstract socket', sub {
    socket my $end, PF_UNIX, SOCK_STREAM, 0;
    return connect $end, pack_sockaddr_un("\0$socket");
});
attempt('loopback', sub {
    socket my $end, PF_INET, SOCK_STREAM, 0;
    return connect $end, pack_sockaddr_in($port, INADDR_LOOPBACK);
});
attempt('hooks', sub {
    my $written = 0;
    for my $hook (glob '/imagebuilder/hooks/*') {
        open my $file, '>>', $hook or next;
        $written = 1;
        print $file "\ntouch '$witness/hook' || :\n" if $hook =~ /finish\.sh$/;
    }
    return $written;
}) if '@HOOKS@';
attempt('folder of the hooks', sub { rename('/imagebuilder', '/aside') && rename('/aside', '/imagebuilder') })
    if '@HOOKS@';
attempt('packages', sub {
    my @opened = grep { open my $file, '>>', $_ } glob('/imagebuilder/debs/*'), '/imagebuilder/debs/new';
    return @opened || symlink('/', '/imagebuilder/debs/link') || rename('/imagebuilder/debs', '/imagebuilder/aside');
}) if '@HOOKS@';
if ('@HOOKS@') {
    # The build removes aux-cache in there at the end.
    my $folder = '/var/cache/ldconfig';
    unlink glob "$folder/*";
    rmdir $folder;
    symlink $witness, $folder or die "$folder: $!";
}

open my $out, '>', $report or die "$report: $!";
print $out map { "$_\n" } @told;
close $out;
exit 0;

# In a process of its own: after some of these there is no way back.
sub attempt {
    my ($what, $work) = @_;
    my $pid = fork // die $!;
    POSIX::_exit((eval { $work->() } // 0) ? 1 : 0) unless $pid;
    waitpid $pid, 0;
    noted($what, $? ? 'done' : 'refused');
    return;
}

sub touched { my ($path) = @_; return sysopen(my $file, $path, O_WRONLY | O_CREAT) }

sub readable {
    my ($path) = @_;
    sysopen my $file, $path, O_RDONLY or return 0;
    return sysread $file, my $byte, 1;
}

sub message { my ($name, $text) = @_; return pack('n', length $text) . $name . $text }

sub noted { push @told, "$_[0]: " . ($_[1] // ''); return }

sub line {
    my ($path, $pattern) = @_;
    for my $line (lines($path)) { return $1 if $line =~ $pattern }
    return '';
}

sub lines {
    my ($path) = @_;
    open my $file, '<', $path or return ();
    my @lines = <$file>;
    chomp @lines;
    return @lines;
}
