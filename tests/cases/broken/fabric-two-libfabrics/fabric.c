/* In place of another release of libfabric. */
int fi_version(void)
{
    return 0x10012;
}
