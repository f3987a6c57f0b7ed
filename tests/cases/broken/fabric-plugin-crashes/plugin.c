/* In place of a plugin that cannot run on this processor. */
#include <stdlib.h>

__attribute__((constructor)) static void begin(void)
{
    abort();
}
