/* In place of a plugin that was linked with another libfabric, by its RPATH. */
#include <dlfcn.h>

__attribute__((constructor)) static void begin(void)
{
    dlopen("/opt/amazon/efa/lib/libfabric.so.1", RTLD_NOW);
}
