"""What a machine says of itself: the memory that is free."""

from __future__ import annotations

import math

import pytest

from mhprobe.io.machine import free_memory

MACHINE = (
    "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 40 kB\nSwapFree: 8 kB\nHugePages_Free: 0\n"
)


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "meminfo").write_text(MACHINE)
    return tmp_path / "meminfo"


def test_files_that_linux_keeps_in_memory_are_room_and_so_is_swap(machine, tmp_path):
    assert free_memory(machine, tmp_path / "no container") == 48 * 1024


@pytest.mark.parametrize(("limit", "kilobytes"), [(30 * 1024, 14), (80 * 1024, 48), ("max", 48)])
def test_a_container_has_what_its_limit_leaves_and_its_cached_files(
    machine, tmp_path, limit, kilobytes
):
    for name, text in (
        ("max", limit),
        ("current", 20 * 1024),
        ("stat", "anon 5\ninactive_file 4096\nfile 9000\n"),
    ):
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    assert free_memory(machine, tmp_path) == kilobytes * 1024


def test_a_system_that_does_not_say_has_no_limit(tmp_path):
    assert free_memory(tmp_path / "nowhere", tmp_path) == math.inf
    assert free_memory() > 2**20
