/* In place of libfaketime: on the second node it is a minute and a half later. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*sound)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    char name[64] = "";
    int code = sound(clock, now);

    gethostname(name, sizeof name - 1);
    if (clock == CLOCK_REALTIME && strcmp(name, "node1") == 0)
        now->tv_sec += 90;
    return code;
}
