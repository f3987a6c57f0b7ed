from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from imagebuilder import plan
from imagebuilder.catalog import select
from imagebuilder.plan import Entry
from imagebuilder.plan.rootfs import COMPAT, image_files, sshd_quoted, state_folder
from imagebuilder.recipe import Recipe, Ssh
from imagebuilder.recipe.annotations import About
from tests.unit import samples

TRICKY = 'it\'s "two"  $(touch /tmp/never) `id` $HOME \\ #1 = % {{ x }}'


def files(user: str = "root", port: int = 22, env: dict[str, str] | None = None) -> dict[str, Entry]:
    recipe = Recipe(
        name="x",
        base="debian:trixie",
        python="3.13",
        pins={"openmpi": "5.0.7"},
        env=env or {},
        labels={},
        providers={},
        about=About(),
        ssh=Ssh(user=user, port=port),
    )
    return {
        entry.path: entry for entry in image_files(recipe, plan.environment(select(recipe), samples.lock()))
    }


def setting(text: str, name: str) -> list[str]:
    return [line.split(None, 1)[1] for line in text.splitlines() if line.split(None, 1)[:1] == [name]]


def test_the_same_recipe_gives_the_same_files() -> None:
    assert files() == files()


def test_every_file_ends_with_one_newline_and_holds_no_template() -> None:
    for entry in files("trainer", 2222).values():
        if entry.kind == "file":
            assert entry.text.endswith("\n")
            assert not entry.text.endswith("\n\n")
            assert "{%" not in entry.text
            assert "}}" not in entry.text


def test_scripts_are_executable_and_nothing_else_is() -> None:
    for entry in files().values():
        assert entry.mode == (0o755 if entry.kind == "dir" or entry.text.startswith("#!") else 0o644)


def test_the_entrypoint_is_the_one_that_the_plan_names_and_the_same_in_every_image() -> None:
    path = "/usr/local/bin/imagebuilder-entrypoint"
    assert files()[path] == files("trainer", 2222, {"A": "b"})[path]


@pytest.mark.parametrize("script", sorted(path for path in files() if path.startswith("/usr/local/bin/")))
def test_scripts_parse(script: str) -> None:
    text = files()[script].text
    shell = text.splitlines()[0].removeprefix("#!")
    subprocess.run((shell, "-n"), input=text.encode(), check=True)


def test_user_and_port_reach_both_ends_of_a_connection() -> None:
    made = files("trainer", 2222)
    assert setting(made["/etc/imagebuilder/sshd_config"].text, "Port") == ["2222"]
    assert setting(made["/etc/imagebuilder/sshd_config"].text, "AllowUsers") == ["trainer"]
    client = made["/etc/ssh/ssh_config.d/imagebuilder.conf"].text
    assert setting(client, "Port") == ["2222"]
    assert all(
        line.startswith("Match user trainer") for line in client.splitlines() if line.startswith("Match")
    )
    assert setting(files()["/etc/ssh/ssh_config.d/imagebuilder.conf"].text, "Port") == []


def test_only_an_image_with_a_user_of_its_own_gives_names_to_other_ids() -> None:
    link = "/var/lib/extrausers/passwd"
    assert files("trainer", 2222)[link].text == "/tmp/imagebuilder-trainer/passwd"
    assert link not in files()


def test_images_set_what_the_hooks_of_runtimes_look_for() -> None:
    recipe = samples.recipe(pins={"torch": "2.10", "cuda": "12.8"})
    env = plan.environment(select(recipe), samples.lock(pins={"torch": "2.10.0", "cuda": "12.8.90"}))
    # The locked version, not the pin: builds of torchvision read it, too.
    assert (env["PYTORCH_VERSION"], env["NVIDIA_GDRCOPY"]) == ("2.10.0", "enabled")
    assert env["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.8"
    plain = plan.environment(select(samples.recipe(pins={"openmpi": "5.0.7"})), samples.lock())
    assert not {"PYTORCH_VERSION", "NVIDIA_GDRCOPY"} & plain.keys()


def test_sshd_takes_keys_only() -> None:
    text = files()["/etc/imagebuilder/sshd_config"].text
    for name in ("UsePAM", "PasswordAuthentication", "KbdInteractiveAuthentication", "PermitEmptyPasswords"):
        assert setting(text, name) == ["no"]
    assert setting(text, "PermitRootLogin") == ["prohibit-password"]
    assert setting(text, "AcceptEnv") == []


def test_no_file_holds_a_key_or_turns_host_checking_off() -> None:
    for entry in files("trainer", 2222).values():
        assert "PRIVATE KEY" not in entry.text
        assert "StrictHostKeyChecking no" not in entry.text
        assert "/dev/null" not in "".join(setting(entry.text, "UserKnownHostsFile"))


def test_private_folders_are_in_no_home() -> None:
    assert state_folder("root") == "/run/imagebuilder"
    assert state_folder("trainer") == "/tmp/imagebuilder-trainer"


def test_sshd_reads_back_what_was_quoted() -> None:
    # Inside of double quotes sshd and a POSIX shell agree on backslash and double quote.
    assert shlex.split(sshd_quoted(TRICKY)) == [TRICKY]


def test_variables_of_the_image_are_set_for_sessions_in_one_line() -> None:
    # sshd takes the first SetEnv and no other.
    text = files(env={"TRICKY": TRICKY})["/etc/ssh/sshd_config.d/imagebuilder.conf"].text
    (line,) = setting(text, "SetEnv")
    values = dict(word.split("=", 1) for word in shlex.split(line))
    assert values["TRICKY"] == TRICKY
    assert values["PATH"] == plan.PATH


def login_shell(profile: str, tmp_path: Path, **environment: str) -> dict[str, str]:
    """Source a profile as Debian's /etc/profile does: after PATH was set anew."""
    script = tmp_path / "imagebuilder.sh"
    script.write_text(profile.replace(COMPAT, "/dev/null"))
    command = f"PATH=/usr/bin:/bin; . {shlex.quote(str(script))}; env -0"
    shell = subprocess.run(
        ("/bin/sh", "-c", command), env=environment, capture_output=True, check=True, cwd=tmp_path
    )
    return dict(item.split("=", 1) for item in os.fsdecode(shell.stdout).split("\0") if item)


def test_a_login_shell_gets_the_image_s_variables(tmp_path: Path) -> None:
    profile = files(env={"TRICKY": TRICKY})["/etc/profile.d/imagebuilder.sh"].text
    values = login_shell(profile, tmp_path, PATH="/usr/bin:/bin")
    assert values["TRICKY"] == TRICKY
    assert values["PATH"] == plan.PATH
    assert values["VIRTUAL_ENV"] == plan.VENV


def test_a_login_shell_keeps_what_the_container_was_started_with(tmp_path: Path) -> None:
    profile = files(env={"LEVEL": "image"})["/etc/profile.d/imagebuilder.sh"].text
    mine = f"/opt/mine:{plan.PATH}"
    values = login_shell(profile, tmp_path, PATH=mine, LEVEL="mine", LANG="")
    assert (values["PATH"], values["LEVEL"], values["LANG"]) == (mine, "mine", "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/usr/lib:/usr/lib/x86_64-linux-gnu/pmix2/lib:", None),
        ("/usr/lib:/usr/lib/x86_64-linux-gnu/pmix2/lib:/a:/b", "/a:/b"),
        ("/usr/local/lib:/usr/local/lib:", None),
        ("/usr/local/lib:/usr/local/lib:/a", "/a"),
        ("/usr/local/lib", "/usr/local/lib"),
        (
            "/a:/usr/lib:/usr/lib/x86_64-linux-gnu/pmix2/lib:",
            "/a:/usr/lib:/usr/lib/x86_64-linux-gnu/pmix2/lib:",
        ),
        (None, None),
    ],
)
def test_ranks_get_the_library_path_without_mpirun_s_addition(
    given: str | None, expected: str | None
) -> None:
    script = files()["/usr/local/bin/imagebuilder-mpi-node"].text.replace(COMPAT, "/dev/null")
    environment = {"PATH": "/usr/bin:/bin", **({"LD_LIBRARY_PATH": given} if given else {})}
    shell = subprocess.run(
        ("/bin/sh", "-c", script, "sh", "env", "-0"),
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    values = dict(item.split("=", 1) for item in shell.stdout.split("\0") if item)
    assert values.get("LD_LIBRARY_PATH") == expected


NOTE = b'\x7fELF..{"format":1,"CUDA version":"12.9","driver":[535,550,570],"device":[8,9]}..'
DRIVER = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jan  7 20:29:23 UTC 2025\nGCC version: 13.3.0\n"
)
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (root@host)\n"
REQUIRED = "cuda>=12.8 brand=tesla,driver>=535,driver<536 brand=tesla,driver>=550,driver<551"


@pytest.mark.parametrize(
    ("driver", "note", "required", "added"),
    [
        (DRIVER.format("535.54.03"), NOTE, "", True),
        (OPEN_DRIVER.format("550.54.15"), NOTE, "", True),
        # The same branch, older and newer than cuda-compat's own driver.
        (DRIVER.format("570.26"), NOTE, "", True),
        (DRIVER.format("570.133.20"), NOTE, "", False),
        (DRIVER.format("570.86.15"), NOTE, "", False),
        (DRIVER.format("580.65.06"), NOTE, "", False),
        # Older than cuda-compat works with, and a branch that it leaves out.
        (DRIVER.format("470.57.02"), NOTE, "", False),
        (DRIVER.format("545.23.06"), NOTE, "", False),
        # Without the note, the variable of NVIDIA's images says it; without both, any older driver counts.
        (DRIVER.format("535.54.03"), b"\x7fELF", REQUIRED, True),
        (DRIVER.format("545.23.06"), b"\x7fELF", REQUIRED, False),
        (DRIVER.format("545.23.06"), b"\x7fELF", "cuda>=12.8", True),
        (DRIVER.format("575.51.03"), b"\x7fELF", "cuda>=12.8", False),
        # No driver, and none that it knows.
        (None, NOTE, "", False),
        ("NVRM version: something else\n", NOTE, "", False),
        ("", NOTE, "", False),
    ],
)
def test_cuda_compat_comes_first_only_for_drivers_that_it_is_made_for(
    driver: str | None, note: bytes, required: str, added: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "cuda/compat"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.570.86.15").write_bytes(note)
    (folder / "libcuda.so.1").symlink_to("libcuda.so.570.86.15")
    if driver is not None:
        (tmp_path / "version").write_text(driver)
    expected = f"{folder}:/opt/mine" if added else "/opt/mine"
    assert library_path(tmp_path, folder, NVIDIA_REQUIRE_CUDA=required) == expected


def test_cuda_compat_is_added_once_and_alone_where_no_path_was_set(tmp_path: Path) -> None:
    folder = tmp_path / "compat"
    folder.mkdir()
    (folder / "libcuda.so.570.86.15").write_bytes(NOTE)
    (tmp_path / "version").write_text(DRIVER.format("535.54.03"))
    assert library_path(tmp_path, tmp_path / "none", folder, LD_LIBRARY_PATH="") == str(folder)
    again = f"/opt/mine:{folder}"
    assert library_path(tmp_path, folder, LD_LIBRARY_PATH=again) == again
    # The file as it is, on a host without a driver.
    assert files()[COMPAT].text.splitlines()[-1] == (
        "imagebuilder_use_compat /proc/driver/nvidia/version /usr/local/cuda/compat /usr/local/cuda-*/compat"
    )


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_an_image_without_cuda_compat_keeps_its_library_path(shell: str, tmp_path: Path) -> None:
    assert library_path(tmp_path, tmp_path / "compat", shell=shell) == "/opt/mine"


def library_path(tmp_path: Path, *folders: Path, shell: str = "sh", **environment: str) -> str:
    """Run the script's function as the script does, but with another file and other folders."""
    lines = files()[COMPAT].text.splitlines()[:-1]
    words = shlex.join(["imagebuilder_use_compat", str(tmp_path / "version"), *map(str, folders)])
    script = "\n".join([*lines, words, 'printf %s "$LD_LIBRARY_PATH"'])
    variables = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/opt/mine", **environment}
    result = subprocess.run(
        (shell, "-euc", script), env=variables, capture_output=True, check=True, text=True
    )
    assert result.stderr == ""
    return result.stdout
