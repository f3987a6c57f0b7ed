/* In place of aws-ofi-nccl, which opens CUDA's runtime in this way. */
#include <dlfcn.h>

int ncclNetPlugin_v8(void)
{
    return dlopen("libcudart.so", RTLD_NOW) ? 0 : 2;
}
