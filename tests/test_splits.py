"""The SHA-256 group rule against a plain second implementation, the paper's counts and a published digest."""

import csv
import hashlib
import math
import os
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thundersync.splits import list_digest, normalised_group, source_family, split_groups


@pytest.mark.parametrize(("groups", "development"), [(131, 7), (3474, 174), (20, 1), (21, 2), (100, 5), (1, 1), (0, 0)])
def test_five_percent_rounded_up(groups, development):
    """Table 4: 131 repositories leave 7, 3,474 source families leave 174; whole twentieths are not rounded further."""
    split = split_groups(f"group-{i}" for i in range(groups))
    assert len(split.development) == development
    assert len(split.training) == groups - development


@pytest.mark.parametrize("count", [10, 30, 70, 110])
def test_a_decimal_fraction_is_exact(count):
    """0.1 * 30 is 3.0000000000000004 in floating point, which a naive ceil would take for 4."""
    assert len(split_groups(map(str, range(count)), 0.1).development) == count // 10


@given(st.sets(st.text("abcXYZ/_-", min_size=1).filter(str.strip)), st.integers(0, 100))
def test_agrees_with_a_plain_sort(groups, percent):
    names = sorted({g.strip().lower() for g in groups}, key=lambda g: int(hashlib.sha256(g.encode()).hexdigest(), 16))
    count = math.ceil(Fraction(percent, 100) * len(names))
    split = split_groups(sorted(groups), percent / 100)
    assert (list(split.development), list(split.training)) == (names[:count], names[count:])


@given(st.permutations([f"owner/repo{i}" for i in range(8)]), st.integers(0, 7))
def test_order_case_space_and_repetition_do_not_matter(groups, repeated):
    variants = [f"  {g.upper()} " for g in groups] + [groups[repeated]]
    assert split_groups(variants, 0.3) == split_groups(groups, 0.3)


def test_mirror_names_are_mapped_to_their_origin():
    assert normalised_group("swesmith/Pallets__Flask.bc098406") == "pallets/flask"
    assert normalised_group("swesmith/a__b__c.d.0123abcd") == "a/b__c.d"
    assert normalised_group("Pallets/Flask") == "pallets/flask"
    assert normalised_group("swesmith/no-commit__repo") == "swesmith/no-commit__repo"


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="fraction"):
        split_groups(["a"], 1.5)
    with pytest.raises(ValueError, match="empty"):
        split_groups(["a", "  "])


@pytest.mark.parametrize(
    "name", ["sort-logs", "sort-logs-evol", "sort-logs-evol-2", "sort-logs_evolved", "sort-logs__evolution_v3"]
)
def test_evolved_tasks_share_a_family(name):
    assert source_family(name) == "sort-logs"


@pytest.mark.parametrize("name", ["revolve", "evolve-state", "git-evolution-report", "task-2", "devol2"])
def test_other_names_are_their_own_family(name):
    assert source_family(name) == name


def test_digest_is_of_the_sorted_lines():
    assert list_digest(["b", "a"]) == hashlib.sha256(b"a\nb").hexdigest()


def test_digest_of_swe_bench_verified():
    path = Path(os.environ.get("THUNDERSYNC_DATA", "."), "swe_bench_verified_instances.csv")
    if not path.exists():
        pytest.skip("set THUNDERSYNC_DATA to the folder of swe_bench_verified_instances.csv")
    with path.open() as stream:
        ids = [row["instance_id"] for row in csv.DictReader(stream)]
    assert list_digest(ids) == "fad0fdea4fc2315e9b78cdf80882a32e32393297052e502e0e63c79ad648fb85"
