"""Environments of the peers: what is installed into them, and what happens when it can't be."""

import pytest

from comparison import environments
from comparison.contenders import CONTENDERS, SERVERS
from comparison.environments import SPECS, Environments, EnvironmentSetupError, EnvironmentSpec, required_here


def test_what_is_for_pictures_and_sound_is_left_out():
    listed = [
        "numpy",
        "requests>=2.33.0",
        'protobuf!=6.30.*,>=5.29.6; platform_machine != "s390x"',
        'torch==2.13.0; platform_system == "Darwin"',
        "torchvision",
        "torchaudio; platform_machine != 's390x'",
        "torchcodec>=0.14",
        'pandas; extra == "bench"',
        'six; python_version < "3"',
        "fastapi[standard]<0.137.0,>=0.133.0",
    ]
    assert required_here(listed) == ["numpy", "requests>=2.33.0", "protobuf!=6.30.*,>=5.29.6", "fastapi[standard]<0.137.0,>=0.133.0"]


def test_an_environment_is_made_once_and_again_when_it_is_to_hold_something_else(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Environments, "_pip", lambda self, folder, spec, arguments: asked.append(arguments))
    monkeypatch.setattr(environments.venv, "create", lambda folder, with_pip: (folder / "bin").mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(environments, "_required", lambda folder, package: ["numpy"])
    for version in ("1", "1", "2"):
        monkeypatch.setitem(SPECS, "peer", EnvironmentSpec(("torch==1",), apart=f"peer=={version}"))
        assert Environments(tmp_path, lambda line: None).python("peer") == tmp_path / "peer" / "bin" / "python"
    assert asked == [["torch==1"], ["--no-deps", "peer==1"], ["numpy"], ["torch==1"], ["--no-deps", "peer==2"], ["numpy"]]


def test_a_package_that_can_t_be_installed_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(SPECS, "peer", EnvironmentSpec((str(tmp_path / "no-such-package"),)))
    with pytest.raises(EnvironmentSetupError, match=r"^peer can't be installed: ERROR: .*no-such-package"):
        Environments(tmp_path, lambda line: None).python("peer")
    assert not (tmp_path / "peer" / environments.MARK).exists()


def test_every_contender_s_environment_and_runner_exist():
    runners = environments.Path(environments.__file__).parents[1] / "runners"
    for contender in CONTENDERS:
        assert contender.environment in ("", *SPECS)
        assert (runners / contender.runner).is_file()
    assert len({contender.key for contender in CONTENDERS}) == len(CONTENDERS)
    for server in SERVERS:
        assert server.contender in {contender.key for contender in CONTENDERS}
