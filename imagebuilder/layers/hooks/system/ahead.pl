# Unpacks packages before dpkg reads them, on several processors: dpkg reads plain archives faster.
#
#     perl ahead.pl first ROOT   the first round, which is unpacked twice
#     perl ahead.pl start ROOT   begins with the others in the background
#     perl ahead.pl stop ROOT    ends that, and returns when no process of it is left
#
# In the background it begins with the last package, and ends at the one that dpkg has reached. dpkg finds each
# package either as it was or as a plain archive with the same members, so it need not wait, and a package that
# cannot be unpacked here stays as it is. The folder of the packages is read-only for programs in the root
# (confine.pl).
use strict;
use warnings;
use Fcntl qw(:flock F_SETFD SEEK_CUR SEEK_SET);
use POSIX ();

my ($what, $root) = @ARGV;
my $folder = "$root/imagebuilder";
my $MOST = 4;  # dpkg, one process, is not faster than a few that unpack
my $processors = `nproc` || 1;

# Every process in the background holds this lock. Its file has the number of their process group.
open my $lock, '+>>', "$folder/hooks/ahead.lock" or die "ahead: $folder/hooks/ahead.lock: $!\n";
my %work = (first => \&first, start => \&start, stop => \&stop);
$work{$what}->();

sub first {
    my ($first) = rounds();
    replace_all($processors, @$first) if $first;
    return;
}

sub start {
    flock $lock, LOCK_SH or die "ahead: lock: $!\n";
    truncate $lock, 0;
    my $pid = fork // die "ahead: fork: $!\n";
    return syswrite $lock, $pid if $pid;
    POSIX::setsid();
    # mmdebstrap's hooks have an open socket, and mmdebstrap waits until everybody has closed it.
    open STDIN, '<', '/dev/null';
    open STDOUT, '>', '/dev/null';
    open STDERR, '>', '/dev/null';
    for my $number (3 .. 255) { POSIX::close($number) unless $number == fileno $lock }
    fcntl $lock, F_SETFD, 0;  # dpkg-deb inherits the lock
    my ($first, @others) = rounds();
    replace_all($processors - 1 || 1, reverse map { @$_ } @others);
    POSIX::_exit(0);
}

sub stop {
    seek $lock, 0, SEEK_SET;
    my $group = <$lock>;
    # The group may not exist yet, or no more.
    until (flock $lock, LOCK_EX | LOCK_NB) {
        kill 'KILL', -$group if $group;
        select undef, undef, undef, 0.01;
    }
    return;
}

sub rounds {
    return map {
        open my $round, '<', "$folder/rounds/$_" or die "ahead: $_: $!\n";
        chomp(my @names = <$round>);
        [@names]
    } sort grep { /^\d+$/ } entries("$folder/rounds");
}

sub entries {
    opendir my $listed, $_[0] or return ();
    return readdir $listed;
}

sub replace_all {
    my ($most, @names) = @_;
    $most = $MOST if $most > $MOST;
    my $busy = 0;
    for my $name (@names) {
        $busy-- if $busy == $most && wait > 0;
        # The root is not trusted; it can only end this early.
        my $package = $name =~ s/\.deb$//r;
        last if grep { /^\Q$package\E(?::[a-z0-9-]+)?\.list$/ } entries("$root/var/lib/dpkg/info");
        defined(my $pid = fork) or last;
        if (!$pid) {
            replace("$folder/debs/$name");
            POSIX::_exit(0);
        }
        $busy++;
    }
    while (wait > 0) { }
    return;
}

# Write a package as an archive without compression, ar(5) and deb(5), and put it in the package's place.
sub replace {
    my ($deb) = @_;
    open my $plain, '>', "$deb.plain" or return;
    syswrite $plain, "!<arch>\n" . header('debian-binary', 4) . "2.0\n";
    for my $part (['control.tar', '--ctrl-tarfile'], ['data.tar', '--fsys-tarfile']) {
        my $start = sysseek $plain, 0, SEEK_CUR;
        syswrite $plain, header($part->[0], 0);
        defined(my $pid = fork) or return;
        if (!$pid) {
            open STDOUT, '>&', $plain;
            exec 'dpkg-deb', $part->[1], $deb or POSIX::_exit(1);
        }
        waitpid $pid, 0;
        return unlink "$deb.plain" if $?;
        my $end = sysseek $plain, 0, SEEK_CUR;
        sysseek $plain, $start, SEEK_SET;
        syswrite $plain, header($part->[0], $end - $start - 60);
        sysseek $plain, $end, SEEK_SET;
        syswrite $plain, "\n" if ($end - $start) % 2;
    }
    close $plain;
    rename "$deb.plain", $deb;
    return;
}

sub header {
    my ($name, $size) = @_;
    return sprintf "%-16s%-12d%-6d%-6d%-8s%-10d`\n", $name, 0, 0, 0, '100644', $size;
}
