"""What ropewalk.vllm is without vLLM: entry points that do nothing unless the environment asks."""

import subprocess
import sys
from importlib import metadata

import pytest
import ropewalk.vllm


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.delenv("ROPEWALK_VLLM", raising=False)
    return monkeypatch


def test_import_needs_no_vllm():
    code = "import sys; sys.modules['vllm'] = sys.modules['torch'] = None; import ropewalk.vllm; ropewalk.vllm.register(); ropewalk.vllm.platform()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("group, function", [("general", ropewalk.vllm.register), ("platform", ropewalk.vllm.platform)])
def test_entry_points_are_installed(group, function):
    found = [entry for entry in metadata.entry_points(group=f"vllm.{group}_plugins") if entry.name == "ropewalk"]
    assert [entry.load() for entry in found] == [function]


def test_platform_only_where_asked(environment):
    assert ropewalk.vllm.platform() is None
    environment.setenv("ROPEWALK_VLLM", "override")
    assert ropewalk.vllm.platform() is None
    environment.setenv("ROPEWALK_VLLM", "platform")
    assert ropewalk.vllm.platform() == "ropewalk.vllm.platform.RopewalkCpuPlatform"


def test_override_only_where_asked(environment):
    environment.setitem(sys.modules, "vllm", None)  # importing it raises
    ropewalk.vllm.register()
    environment.setenv("ROPEWALK_VLLM", "platform")
    ropewalk.vllm.register()
    environment.setenv("ROPEWALK_VLLM", "override")
    with pytest.raises(ImportError):
        ropewalk.vllm.register()


def test_unknown_way_is_refused(environment):
    environment.setenv("ROPEWALK_VLLM", "yes")
    with pytest.raises(ValueError, match="ROPEWALK_VLLM is 'yes'; expected override or platform"):
        ropewalk.vllm.register()
