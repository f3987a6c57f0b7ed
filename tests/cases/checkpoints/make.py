"""Write the files beside this one. Needs torch and safetensors, which the tests do not: they read the files.

Those that are here were written with torch 2.13.0 (CPU) and safetensors 0.8.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

FOLDER = Path(__file__).resolve().parent
NUMBERS = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"),
)
NOT_IN_SAFETENSORS = ("uint16", "uint32", "uint64", "complex64", "complex128", "wide view")


def main() -> None:
    tensors = every_type() | views()
    torch.save(tensors, FOLDER / "tensors.pt")
    plain = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    expected = {
        name: {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "bytes": bytes(tensor.reshape(-1).view(torch.uint8).tolist()).hex() if tensor.numel() else "",
            "values": [repr(value) for value in wide(tensor).tolist()],
        }
        for name, tensor in plain.items()
    }
    (FOLDER / "tensors.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    kept = {name: tensor for name, tensor in plain.items() if name not in NOT_IN_SAFETENSORS}
    save_file(kept, FOLDER / "tensors.safetensors", metadata={"buffer_names": '["bool"]'})
    training()
    refused()


def every_type() -> dict[str, torch.Tensor]:
    base = torch.arange(12).reshape(3, 4)
    found = {}
    for name in NUMBERS:
        dtype = getattr(torch, name)
        found[name] = (base.float() / 7 if dtype.is_floating_point or dtype.is_complex else base).to(dtype)
    return found


def views() -> dict[str, torch.Tensor]:
    shared = torch.arange(200.0)
    cube = torch.arange(24).reshape(2, 3, 4)
    return {
        "view": shared[10:20],
        "view of the same": shared[100:130].reshape(10, 3)[:, 1:],
        "steps": shared[3:90:7],
        "turned": cube.float().permute(2, 0, 1),
        "turned half": cube.to(torch.bfloat16).permute(1, 2, 0),
        "wide view": cube.to(torch.complex128).permute(2, 1, 0),
        "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "expanded": torch.arange(3.0)[:, None].expand(3, 4),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 3),
        "parameter": nn.Parameter(torch.ones(2, 2)),
    }


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).to(torch.complex128 if tensor.is_complex() else torch.float64)


def training() -> None:
    """Write what a training script keeps, by each protocol; and a model in which some things were changed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 1, 4, 4)).sum().backward()
        optimizer.step()
        schedule.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "epoch": 3,
        "values": [0.25, None, "text", b"bytes", {1, 2}, 1 + 2j, 1 << 100, torch.Size([1, 2]), torch.float32],
        "device": torch.device("cuda:0"),
        "random": torch.tensor([1, 2, 3], dtype=torch.uint8),
    }
    for protocol in (2, 3, 4, 5):
        torch.save(state, FOLDER / f"training-protocol-{protocol}.pt", pickle_protocol=protocol)
    torch.save(model.state_dict(), FOLDER / "model.pt")
    torch.save(model.state_dict(keep_vars=True), FOLDER / "model-parameters.pt")
    changed = {name: value.clone() for name, value in model.state_dict().items()}
    changed["0.weight"][3, 0, 1, 2] += 0.5
    changed["1.running_mean"] += 1
    changed["1.num_batches_tracked"] += 1
    changed["3.weight"] = changed["3.weight"].half()
    changed["0.bias"] = changed["0.bias"][:2].clone()
    del changed["3.bias"]
    changed["new"] = torch.ones(2)
    torch.save(changed, FOLDER / "model-changed.pt")


def refused() -> None:
    """Write what torch can load, and what is not looked into."""
    model = nn.Linear(2, 2)
    torch.save(model, FOLDER / "refused-module.pt")
    torch.save(model.state_dict(), FOLDER / "refused-old-format.pt", _use_new_zipfile_serialization=False)
    torch.save(torch.tensor([1 + 2j]).conj(), FOLDER / "refused-conjugated.pt")
    torch.save(torch.eye(2).to_sparse(), FOLDER / "refused-sparse.pt")


if __name__ == "__main__":
    main()
