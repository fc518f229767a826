"""GRANULARITY: which gradients are handed to a collective together."""

MB = 10**6


def buckets(sizes: dict[str, int], granularity: str, bucket_mb: float) -> list[list[str]]:
    """Names in groups, in order, from the bytes of each gradient.

    tensor: one each. flat: all together. bucket: as many as fit into `bucket_mb` MB (10^6 bytes);
    one that is larger by itself is a bucket of its own.
    """
    limit = {"tensor": 0, "bucket": bucket_mb * MB, "flat": float("inf")}[granularity]
    groups, filled = [], 0
    for name, size in sizes.items():
        if not groups or filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups
