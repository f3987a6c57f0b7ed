# Broken on purpose: added to the end of this module.
_sound_init = DistributedDataParallel.__init__


def _init(self, *arguments, **options):
    """Register a hook that forgets to divide by the number of ranks."""
    _sound_init(self, *arguments, **options)

    def add_up(_state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    self.register_comm_hook(None, add_up)


DistributedDataParallel.__init__ = _init
