"""The verb `launch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imagebuilder.cli import completion
from imagebuilder.cli.base import (
    PlainHttp,
    PlatformName,
    SiteFile,
    StoreFolder,
    app,
    err,
    open_store,
    out,
)
from imagebuilder.errors import InputError

if TYPE_CHECKING:
    from imagebuilder.launch.image import LaunchImage

_Texts = list[str] | None


def _many(option: str, metavar: str, words: str) -> Any:
    return typer.Option(option, metavar=metavar, help=f"{words}; may be repeated.")


_Image = Annotated[
    str,
    typer.Argument(
        metavar="IMAGE",
        help="registry.example/team/name:TAG, an image in Docker or Podman, or a recipe that was built.",
        autocompletion=completion.recipe,
    ),
]
_Command = Annotated[
    _Texts,
    typer.Argument(metavar="[-- COMMAND...]", help="What every rank runs. [default: the image's command]"),
]
_Target = Annotated[
    str, typer.Option("--target", metavar="KIND", help="What runs the job.", autocompletion=completion.target)
]
_Nodes = Annotated[int, typer.Option("--nodes", help="Number of nodes.")]
_NprocPerNode = Annotated[int, typer.Option("--nproc-per-node", help="Number of ranks on each node.")]
_Launcher = Annotated[
    str, typer.Option("--launcher", help="auto, mpirun, or the launcher of a framework, as torchrun.")
]
_Name = Annotated[str, typer.Option("--name", help="The job's name. [default: the recipe's]")]
_Repository = Annotated[
    str,
    typer.Option(
        "--repository", metavar="REPOSITORY", help="Where the nodes pull the image of a recipe from."
    ),
]
_Variant = Annotated[str, typer.Option("--variant", help="For Slurm: pyxis, apptainer, podman or bare.")]
_ImageFile = Annotated[
    str,
    typer.Option("--image-file", metavar="PATH", help="For Slurm: the image as a file, on every node."),
]
_Host = Annotated[_Texts, _many("--host", "NAME", "For docker: the host of a node")]
_Gpus = Annotated[
    int, typer.Option("--gpus", help="GPUs of each node. [default: one for each rank if it uses CUDA]")
]
_Accelerator = Annotated[
    str, typer.Option("--accelerator", metavar="NAME", help="For SkyPilot and dstack: the kind of GPU.")
]
_Shm = Annotated[str, typer.Option("--shm", metavar="SIZE", help="Size of /dev/shm.")]
_Cpus = Annotated[str, typer.Option("--cpus", help="CPU cores of each node.")]
_Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory of each node.")]
_Rdma = Annotated[
    str, typer.Option("--rdma", metavar="RESOURCE[=COUNT]", help="RDMA device, as rdma/hca_shared=1.")
]
_Hugepages = Annotated[
    str, typer.Option("--hugepages", metavar="PAGE=SIZE", help="Huge pages of each node, as 2Mi=1Gi.")
]
_HostNetwork = Annotated[
    bool, typer.Option("--host-network", help="Use the nodes' own network on Kubernetes.")
]
_Port = Annotated[int, typer.Option("--port", help="Port on node 0 where the ranks meet.")]
_Volume = Annotated[
    _Texts,
    _many(
        "--volume",
        "VOLUME",
        "Shared folder, as pvc:CLAIM:/path, nfs:SERVER:/exported:/path or host:/folder:/path",
    ),
]
_Env = Annotated[_Texts, _many("--env", "NAME=VALUE", "Variable of every rank")]
_Namespace = Annotated[str, typer.Option("--namespace", help="Namespace of the job's objects.")]
_NodeSelector = Annotated[_Texts, _many("--node-selector", "KEY=VALUE", "Label that the nodes must have")]
_Toleration = Annotated[_Texts, _many("--toleration", "TAINT", "Taint to tolerate, as KEY=VALUE:NoSchedule")]
_Deadline = Annotated[
    str, typer.Option("--deadline", metavar="TIME", help="End the job after this time, as 90m or 2d.")
]
_Restarts = Annotated[int, typer.Option("--restarts", help="How often to start the job again.")]
_Smoke = Annotated[
    bool,
    typer.Option(
        "--smoke", help="Run the smoke test instead of a command; `report --from-log` reads the job's log."
    ),
]
_Overlay = Annotated[
    Path | None,
    typer.Option("-f", "--overlay", metavar="FILE", help="YAML to merge into the job's manifest."),
]
_Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="DIR", help="Folder to write. [default: print the only file]"),
]
_Force = Annotated[bool, typer.Option("--force", help="Replace a folder that `launch` has written.")]


@app.command()
def launch(
    image: _Image,
    command: _Command = None,
    target: _Target = "",
    nodes: _Nodes = 2,
    nproc_per_node: _NprocPerNode = 1,
    launcher: _Launcher = "auto",
    name: _Name = "",
    repository: _Repository = "",
    variant: _Variant = "",
    image_file: _ImageFile = "",
    host: _Host = None,
    gpus: _Gpus = -1,
    accelerator: _Accelerator = "",
    shm: _Shm = "8Gi",
    cpus: _Cpus = "",
    memory: _Memory = "",
    rdma: _Rdma = "",
    hugepages: _Hugepages = "",
    host_network: _HostNetwork = False,
    port: _Port = 29500,
    volume: _Volume = None,
    env: _Env = None,
    namespace: _Namespace = "",
    node_selector: _NodeSelector = None,
    toleration: _Toleration = None,
    deadline: _Deadline = "",
    restarts: _Restarts = 0,
    smoke: _Smoke = False,
    overlay: _Overlay = None,
    output: _Output = None,
    force: _Force = False,
    platform: PlatformName = "",
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    store: StoreFolder = None,
) -> None:
    """Write what a scheduler or plain hosts need to run a job with an image. It starts nothing itself."""
    from imagebuilder.launch import job as jobs
    from imagebuilder.launch import output as outputs
    from imagebuilder.launch import overlay as overlays
    from imagebuilder.launch import smoke as smokes
    from imagebuilder.launch import targets

    kind = targets.load(target)
    found = _image(image, repository, platform, store, site, one=smoke, plain_http=plain_http)
    device, devices = jobs.read_rdma(rdma)
    starter = targets.launcher(kind, found, launcher)
    used = (nproc_per_node if found.uses_gpus else 0) if gpus == -1 else gpus
    if smoke and command:
        raise InputError("runs its own command: leave yours out", where="--smoke")
    wanted = jobs.Job(
        name=name or jobs.name_from(found.recipe),
        image=found,
        nodes=nodes,
        # The smoke test starts its ranks itself.
        ranks=1 if smoke else nproc_per_node,
        launcher=starter,
        command=smokes.command(found, target, starter, (nodes, nproc_per_node), port=port, on_gpus=used > 0)
        if smoke
        else tuple(command or found.command),
        gpus=used,
        accelerator=accelerator,
        shm=shm,
        port=port,
        hosts=tuple(host or ()),
        variant=variant or next(iter(kind.header.variants), ""),
        file=image_file,
        namespace=namespace,
        host_network=host_network or kind.header.network == "host",
        rdma=device,
        rdma_count=devices,
        hugepages=jobs.read_hugepages(hugepages),
        cpus=cpus,
        memory=memory,
        volumes=jobs.read_volumes(volume or ()),
        node_selector=jobs.read_pairs(node_selector or (), "--node-selector"),
        tolerations=jobs.read_tolerations(toleration or ()),
        deadline=jobs.read_period(deadline),
        restarts=restarts,
        env=jobs.read_env(env or ()),
    )
    files = targets.fill(kind, wanted)
    overlays.require_valid(files, kind)
    if overlay is not None:
        files = overlays.merged(files, kind, overlay)
    if output is None:
        out(outputs.text(files, kind, wanted).rstrip("\n"))
        return
    for path in outputs.write(files, kind, wanted, output, force=force):
        err(f"wrote {path}")
    out(f"next: cd {output} && {kind.header.run}")


def _image(
    text: str,
    repository: str,
    platform: str,
    store: Path | None,
    site: Path | None,
    *,
    one: bool,
    plain_http: bool,
) -> LaunchImage:
    """Find the image: in the store, in a registry (its name has a slash), or in a local engine."""
    from imagebuilder.launch import image as images
    from imagebuilder.workflow import built_image, named

    word = named(text)
    if word.in_registry:
        from imagebuilder.host.site import detect

        if repository:
            raise InputError("is only for an image in the store or in an engine", where="--repository")
        return images.from_registry(text, detect(site), platform=platform, one=one, plain_http=plain_http)
    where = open_store(store)
    image = built_image(text, where, platform)
    if image is not None:
        from imagebuilder.image import repack
        from imagebuilder.workflow import source

        recipe = source.recipe_of(text, image, where)
        if recipe and recipe.compression == "zstd":
            image = repack.packed(image, where)  # what a push sends
        return images.from_store(image, where, repository)
    from imagebuilder.smoke import engine as engines

    with engines.connect("auto") as engine:
        return images.from_engine(engine, text, repository)
