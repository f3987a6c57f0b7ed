/* In place of a second NCCL of 300 MB: the one function that tells its version. */
int ncclGetVersion(int *version)
{
    *version = 22602;
    return 0;
}
