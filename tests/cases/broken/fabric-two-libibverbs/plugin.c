/* In place of a plugin that was linked with another libibverbs, by its RPATH. */
#include <dlfcn.h>

__attribute__((constructor)) static void begin(void)
{
    dlopen("/opt/vendor/lib/libibverbs.so.1", RTLD_NOW);
}
