"""Texts of metrics, read as Prometheus reads them."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

__all__ = ("Samples", "check_histograms", "samples")

#: Values by name and labels.
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """Every sample of a text; a row that comes twice is an error."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def check_histograms(text: str) -> int:
    """Buckets grow up to the one that holds all, which is the count; how many there were."""
    checked = 0
    for family in text_string_to_metric_families(text):
        if family.type != "histogram":
            continue
        rows: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
        counts: dict[frozenset[tuple[str, str]], float] = {}
        sums: dict[frozenset[tuple[str, str]], float] = {}
        for sample in family.samples:
            labels = dict(sample.labels)
            end = labels.pop("le", "")
            key = frozenset(labels.items())
            if sample.name.endswith("_bucket"):
                rows.setdefault(key, []).append((float(end), sample.value))
            elif sample.name.endswith("_count"):
                counts[key] = sample.value
            elif sample.name.endswith("_sum"):
                sums[key] = sample.value
        assert rows.keys() == counts.keys() == sums.keys()
        for key, buckets in rows.items():
            assert buckets == sorted(buckets), "ends and counts grow"
            assert [count for _, count in buckets] == sorted(count for _, count in buckets)
            assert buckets[-1] == (math.inf, counts[key])
            assert sums[key] >= 0
            assert sums[key] == 0 or counts[key]
            checked += 1
    return checked
