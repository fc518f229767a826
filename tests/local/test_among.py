"""A wire among some ranks: each collective, its bytes, and that ranks may form groups in any order."""

from among_case import collectives


def test_collectives_among_some_ranks_number_them_anew(groups):
    for ranks in ([0], [1, 3], [0, 1], [1, 2, 3], [1, 3]):
        check(groups[4].run(collectives, ranks), ranks)


def check(told, ranks) -> None:
    n, total = len(ranks), len(ranks) * (len(ranks) + 1) / 2
    everyone = [float(i + 1) for i in range(n) for _ in range(12)]
    for rank, answer in enumerate(told):
        if rank not in ranks:
            assert answer is None
            continue
        me = ranks.index(rank)
        place, found, bytes = answer
        assert place == (me, n)
        gathered = everyone if me == n - 1 else []
        before = float((me - 1) % n + 1)
        assert found[:4] == [[total] * 12, [total] * 12, [float(n)] * 12, everyone]
        assert found[4:] == [gathered, [me + 1.0] * 12, *([[before] * 12] * (n > 1))]
        assert min(bytes) >= (n > 1) * 48
