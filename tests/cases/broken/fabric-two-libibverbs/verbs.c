/* In place of another release of libibverbs. */
int ibv_fork_init(void)
{
    return 0;
}
