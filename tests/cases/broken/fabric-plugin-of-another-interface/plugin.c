/* In place of a plugin for NCCL 2.5. */
int ncclNetPlugin_v3 = 0;
