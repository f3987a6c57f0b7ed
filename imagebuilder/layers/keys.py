"""The layer of an image that has its ssh keys baked in (`ssh: {keys: baked}`), for closed networks.

One key pair for all nodes: the entrypoint takes a lone private key for a job's whole secret, lets in who has
it and makes it the host key too. It is random, so this is the one layer that another host makes differently;
on this host the store keeps it under the layer's key, and the same lock gives the same image again.
"""

from __future__ import annotations

from imagebuilder.keys import make_pair
from imagebuilder.layers.files import build_files_layer
from imagebuilder.plan import Entry, FilesLayer, KeysLayer
from imagebuilder.store import LayerRecord, Store


def build_keys_layer(layer: KeysLayer, store: Store) -> LayerRecord:
    """Make the keys, and a layer of them; on this host they are nowhere else.

    Raises:
        EnvironmentFault: there is no ssh-keygen.
        StoreError: the blob cannot be written.

    """
    with store.work() as folder:
        private = folder / "id_ed25519"
        make_pair(private, layer.image)
        entries = (
            Entry(path=layer.folder, kind="dir", mode=0o750),
            # The image's user has the group 0, whoever it is; nobody else may read it.
            Entry(path=f"{layer.folder}/{private.name}", kind="file", mode=0o640, text=private.read_text()),
            Entry(
                path=f"{layer.folder}/{private.name}.pub",
                kind="file",
                mode=0o644,
                text=private.with_suffix(".pub").read_text(),
            ),
        )
    return build_files_layer(FilesLayer(name=layer.title, entries=entries), store)
