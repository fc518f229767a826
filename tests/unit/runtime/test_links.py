"""Links: words become what tc is told, and what was measured is held against them."""

import contextlib
import json
import subprocess
import sys
from dataclasses import asdict

import pytest
from report_cases import begun

from monitor.capabilities import RUNTIMES
from monitor.conditions.conditions import Conditions
from monitor.conditions.links import PROFILES, Link, link
from monitor.errors import RunFailed, UserError
from monitor.results import words
from monitor.results.result import Result
from monitor.results.store import parse
from monitor.runtime import wires
from node import probe, shaping
from trainer.spec import RunSpec, SpecError

NOTHING = '{"link": null, "cut": []}'


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"RATE": "100mbit"}, Link(100_000_000, congestion="cubic")),
        ({"RATE": "1.5gbit", "DELAY": "500us"}, Link(1_500_000_000, 0.5, congestion="cubic")),
        ({"DELAY": "20ms", "JITTER": "5ms", "LOSS": "0.1%"}, Link(None, 20, 5, 0.1, "cubic")),
        ({"LINK": "mobile"}, Link(30_000_000, 25, 8, 0.5, "cubic")),
        ({"LINK": "mobile", "RATE": "5mbit", "CONGESTION": "BBR"}, Link(5_000_000, 25, 8, 0.5, "bbr")),
        ({"CONGESTION": "reno"}, Link(congestion="reno")),
        ({}, None),
    ],
)
def test_words_of_a_link(given, made):
    assert link(given) == made


@pytest.mark.parametrize("name", PROFILES)
def test_every_named_link_is_one(name):
    assert link({"LINK": name}).rate_bits


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"LINK": "dsl"}, "LINK=dsl: one of: lan, "),
        ({"RATE": "100"}, "RATE=100: a number with a unit (kbit, mbit, gbit), as 100mbit, from 1mbit to 100000mbit"),
        ({"RATE": "0mbit"}, "RATE=0mbit: a number with a unit"),
        ({"RATE": "-1mbit"}, "RATE=-1mbit: a number with a unit"),
        ({"DELAY": "20"}, "DELAY=20: a number with a unit (us, ms, s)"),
        ({"DELAY": "11s"}, "DELAY=11s: a number with a unit"),
        ({"LOSS": "0.1"}, "LOSS=0.1: a number with a unit (%), as 0.1%, from 0% to 50%"),
        ({"LOSS": "60%"}, "LOSS=60%: a number"),
        ({"CONGESTION": "cubic vegas"}, "CONGESTION=cubic vegas: a congestion control that the kernel has, as cubic, "),
        ({"CONGESTION": "-x"}, "CONGESTION=-x: a congestion control"),
        ({"JITTER": "5ms"}, "JITTER=5ms: at most the delay (DELAY=0ms)"),
    ],
)
def test_what_is_no_link_is_one_line(given, says):
    with pytest.raises(SpecError) as error:
        link(given)
    assert str(error.value).startswith(says)


def test_each_node_has_its_own():
    made = Conditions.of({"RATE": "200mbit,50mbit", "DELAY": "1ms"}, RunSpec(nodes=2, batch=2), RUNTIMES["docker"])
    assert made.links == tuple(Link(rate, 1, congestion="cubic") for rate in (200_000_000, 50_000_000))
    assert Conditions.of({"CPUS": "0.5"}, RunSpec(nodes=2, batch=2), RUNTIMES["docker"]).links == ()
    with pytest.raises(SpecError, match=r"RATE=1mbit,2mbit: one value, or 3 parted by commas"):
        Conditions.of({"RATE": "1mbit,2mbit"}, RunSpec(nodes=3, batch=3), RUNTIMES["docker"])
    with pytest.raises(SpecError, match=r"LINK=lan: processes of this machine"):
        Conditions.of({"LINK": "lan"}, RunSpec(nodes=2, batch=2), RUNTIMES["local"])


class TestShaping:
    def told(self, made: Link) -> list[str]:
        return [" ".join(command) for command in shaping.tc_commands("eth0", made.facts())]

    def test_a_rate_alone_is_tbf(self):
        rate = "qdisc add dev eth0 root tbf rate 100000000bit burst 65536b latency 50ms"
        assert self.told(Link(100_000_000)) == [rate]

    def test_a_fast_link_may_burst_for_a_tick(self):
        assert "burst 500000b" in self.told(Link(1_000_000_000))[0]

    def test_a_delay_is_netem_with_the_rate_under_it(self):
        assert self.told(Link(1_000_000, 20, 5, 0.1)) == [
            "qdisc add dev eth0 root handle 1: netem limit 100000 delay 20ms 5ms loss 0.1%",
            "qdisc add dev eth0 parent 1:1 handle 10: tbf rate 1000000bit burst 65536b latency 50ms",
        ]

    def test_loss_alone(self):
        netem = "qdisc add dev eth0 root handle 1: netem limit 100000 delay 0ms loss 1%"
        assert self.told(Link(None, loss_percent=1)) == [netem]

    def test_what_is_cut_off_is_that_and_nothing_else(self, monkeypatch):
        kernel = ["10.0.0.9"]  # which an earlier run left

        def run(*command):
            match command:
                case "ip", "route", "del", "blackhole", address:
                    kernel.remove(address)
                case "ip", "route", "add", "blackhole", address:
                    kernel.append(address)
            return "".join(f"blackhole {address} \n" for address in kernel)

        monkeypatch.setattr(shaping, "_run", run)
        assert shaping.cut_off(["10.0.0.2", "10.0.0.3"]) == ["10.0.0.2", "10.0.0.3"] == kernel
        assert shaping.cut_off([]) == [] == kernel

    @pytest.mark.parametrize("there", ["", " congctl bbr", " mtu 1400"])
    @pytest.mark.parametrize("asked", [None, "cubic", "bbr"])
    def test_congestion_control_is_the_routes_and_nothing_else_of_it_changes(self, monkeypatch, there, asked):
        """A kernel of one route that answers as ip(8) prints; what is as it should be is let alone."""
        plain = "10.1.0.0/16 proto kernel scope link src 10.1.0.2"
        kernel, changes = [plain + there], []

        def run(*command):
            match command:
                case "ip", "route", "change", *route, "dev", "eth0":
                    kernel[0] = " ".join(route)
                    changes.append(kernel[0])
                case "ip", "route", "change", *route, "dev", "eth0", "congctl", name:
                    kernel[0] = " ".join(route) + f" congctl {name}"
                    changes.append(kernel[0])
            return f"{kernel[0]} \n"

        monkeypatch.setattr(shaping, "_run", run)
        assert shaping.govern("eth0", asked) == asked
        rest = " mtu 1400" if "mtu" in there else ""
        assert kernel == [plain + rest + (f" congctl {asked}" if asked else "")]
        assert len(changes) == (there.partition("congctl ")[2] != (asked or ""))

    def test_no_tc_and_a_tc_that_fails_are_one_line(self, monkeypatch):
        def run(*_, **__):
            raise problem

        monkeypatch.setattr(subprocess, "run", run)
        problem = FileNotFoundError("tc")
        assert shaping.main(NOTHING)["error"].startswith("there is no tc in the node image")
        problem = subprocess.CalledProcessError(2, "tc", stderr="Error: Specified qdisc kind\nis unknown.\n")
        assert shaping.main(NOTHING) == {"error": "Error: Specified qdisc kind is unknown."}


def test_a_congestion_control_that_the_kernel_has_not_is_refused_with_what_it_has():
    there = {"tbf": True, "netem": True, "congestion": ["bbr", "reno"]}
    wires.refuse_unknown_kinds([Link(congestion="bbr"), Link(1_000_000), None], there)
    with pytest.raises(UserError, match=r"CONGESTION=cubic: the engine's kernel has no such .* it has bbr, reno$"):
        wires.refuse_unknown_kinds([None, link({"RATE": "1mbit"})], there)


@pytest.mark.parametrize(
    ("there", "asked", "says"),
    [
        ({"tbf": True, "netem": False}, Link(1_000_000), None),
        ({"tbf": True, "netem": True}, Link(None, 20), None),
        ({"tbf": True, "netem": False}, Link(None, 20), "no netem .* RATE= alone would do"),
        ({"tbf": False, "netem": False}, Link(None, 20), "no netem .* no link can be shaped here"),
        ({"tbf": False, "netem": True}, Link(1_000_000), "RATE: the engine's kernel has no tbf"),
    ],
)
def test_a_kernel_without_it_refuses_with_what_it_can_do(there, asked, says):
    if says is None:
        wires.refuse_unknown_kinds([asked, None], there)
    else:
        with pytest.raises(UserError, match=says):
            wires.refuse_unknown_kinds([None, asked], there)


def seen(mbit=100.0, ms=0.5) -> dict:
    return {"rate_bits": mbit * 1e6, "round_trip_ms": ms}


class TestJudge:
    def warned(self, asked, *found) -> list[str]:
        told = []
        wires.judge(list(asked), list(found), told.append)
        return told

    def test_within_five_per_cent(self):
        assert self.warned([Link(100_000_000)] * 2, seen(95.1), seen(104.9)) == []

    def test_more_than_was_asked_for_fails(self):
        with pytest.raises(RunFailed, match=r"node 1 sends 106 Mbit/s where RATE=100mbit was asked for"):
            self.warned([Link(100_000_000)] * 2, seen(), seen(106))

    def test_less_is_warned_of(self):
        assert self.warned([Link(100_000_000)] * 2, seen(94), seen()) == [
            "node 0 sends 94 Mbit/s where RATE=100mbit would let more through: "
            "its CPU, or the next node's, is the limit"
        ]

    def test_a_round_trip_waits_at_both_ends(self):
        slow, fast = Link(None, 20), Link(None, 5)
        assert self.warned([slow, fast], seen(ms=25.5), seen(ms=24)) == []
        with pytest.raises(RunFailed, match=r"node 0: a round trip takes 20 ms where 25 ms were asked for"):
            self.warned([slow, fast], seen(ms=20), seen(ms=25))
        assert len(self.warned([slow, fast], seen(ms=40), seen(ms=25))) == 1

    def test_the_answer_may_come_early_or_late_by_the_next_nodes_jitter(self):
        even, uneven = Link(None, 20), Link(None, 20, 15)
        for ms in (26, 54):
            assert self.warned([even, uneven], seen(ms=ms), seen(ms=ms)) == []


def result(**changes) -> Result:
    return Result.model_validate(begun("x", **changes))


def test_runs_are_told_apart_by_their_links():
    shaped = result(links=[Link(50_000_000, 20).facts(), Link(100_000_000, 20).facts()])
    plain = result(links=[])
    assert words.differences(shaped, [shaped, plain]) == "RATE=50mbit,100mbit DELAY=20ms"
    assert words.differences(plain, [shaped, plain]) == "no RATE no DELAY"
    old = {name: value for name, value in begun("x").items() if name != "links"} | {"schema": 1}
    assert words.flat(parse("x", old))["rate"] == ""  # of a version that had no links


def test_runs_are_told_apart_by_their_congestion_control():
    def linked(*links) -> Result:
        return result(links=[one.facts() for one in links])

    usual, other = (linked(*[link({"RATE": "5mbit"} | more)] * 2) for more in ({}, {"CONGESTION": "bbr"}))
    assert words.differences(other, [usual, other]) == "CONGESTION=bbr"
    assert words.differences(usual, [usual, other]) == "CONGESTION=cubic"
    assert words.of_links(usual)["congestion"] == "", "what is so if nothing is said"
    assert words.of_links(linked(link({"CONGESTION": "cubic"})))["congestion"] == "cubic"
    assert words.of_links(linked(link({"CONGESTION": "reno"}), Link(congestion="bbr")))["congestion"] == "reno,bbr"
    older = [one.model_dump(exclude={"congestion"}) for one in usual.links]
    assert words.of_links(result(links=older)) == words.of_links(usual)


def test_runs_are_told_apart_by_which_node_has_what():
    """One slow node of three is another run than two."""

    def unequal(cpus, rates, delays) -> Result:
        limits = [{"cpus": cores, "memory_bytes": None} for cores in cpus]
        links = [Link(rate, delay).facts() for rate, delay in zip(rates, delays, strict=True)]
        return result(limits=limits, links=links)

    one = unequal([0.5, 0.5, 0.2], [10**8, 10**8, 10**7], [20, 20, 0])
    two = unequal([0.5, 0.2, 0.2], [10**8, 10**7, 10**7], [20, 0, 0])
    told = "CPUS=0.5,0.2,0.2 RATE=100mbit,10mbit,10mbit DELAY=20ms,0ms,0ms"
    assert words.differences(two, [one, two]) == told
    assert words.flat(two)["memory"] == words.flat(two)["loss"] == ""


def test_the_probe_measures_what_it_sends():
    """Over loopback: the receiver's count of the bits, and a median round trip."""
    run = [sys.executable, "-m", "node.probe"]
    with subprocess.Popen([*run, "serve", "0.3"], stdout=subprocess.PIPE, text=True) as server:
        port = json.loads(server.stdout.readline())["port"]
        client = subprocess.run(
            [*run, "send", "127.0.0.1", str(port), "0.3", "0"], capture_output=True, text=True, check=True
        )
        rate = json.loads(server.stdout.read())["bits_per_second"]
    assert rate > 1e7
    assert 0 < json.loads(client.stdout)["round_trip_ms"] < 1000


class SlowLink(contextlib.nullcontext):
    """A peer behind a link that hands on 64 kB each half second, the server that takes it, and the time this takes."""

    now = 0.0

    def create_server(self, address):
        return self

    def accept(self):
        return self, None

    def settimeout(self, seconds):
        pass

    def getsockname(self):
        return "", 1234

    def sendall(self, ping):
        pass

    def recv(self, most):
        self.now += 0.5 if most > 1 else 0.0
        return bytes(most)

    def perf_counter(self):
        return self.now


def test_the_probe_waits_for_what_a_slow_link_hands_on_now_and_then(monkeypatch, capsys):
    """64 kB each half second are 1 Mbit/s. Nothing of it may be lost between two looks."""
    link = SlowLink()
    link.enter_result = link
    monkeypatch.setattr(probe, "socket", link)
    monkeypatch.setattr(probe, "time", link)
    probe.serve(0.3)
    rate = json.loads(capsys.readouterr().out.splitlines()[1])["bits_per_second"]
    assert rate == pytest.approx(8 * 65536 / 0.5)


def test_a_strategys_settings_are_not_named_of_another():
    specs = [RunSpec(sync=sync, nodes=2, batch=8, local_steps=steps) for sync, steps in (("local_sgd", 3), ("ddp", 8))]
    runs = [result(spec=asdict(spec)) for spec in specs]
    assert [words.differences(run, runs) for run in runs] == ["SYNC=local_sgd H=3", "SYNC=ddp"]


def test_lists_name_links_and_unequal_limits():
    limits = [{"cpus": cpus, "memory_bytes": 2**30} for cpus in (0.5, 0.2)]
    spec = asdict(RunSpec(nodes=2, batch=8, nproc=2))
    shaped = result(spec=spec, limits=limits, links=[Link(5_000_000).facts()] * 2)
    assert words.more(shaped) == "NPROC=2 CPUS=0.5,0.2 RATE=5mbit"
    assert words.conditions(shaped) == {"CPUS": "0.5,0.2", "MEMORY": "1024m", "RATE": "5mbit"}
    assert words.more(result(spec=spec, limits=limits[:1] * 2, links=[])) == "NPROC=2"


@pytest.mark.parametrize(("seen", "measured"), [([53e6, 50e6], 2), ([53e6, 53e6, 40e6], 3), ([53e6] * 3, None)])
def test_a_link_that_lets_too_much_through_is_measured_again_before_that_is_believed(monkeypatch, seen, measured):
    rates, told = iter(seen), []
    monkeypatch.setattr(wires, "measure", lambda *_: [{"rate_bits": next(rates), "round_trip_ms": 0.1}])
    asked = [link({"RATE": "50mbit"})]
    if measured is None:
        with pytest.raises(RunFailed, match="node 0 sends 53 Mbit/s where RATE=50mbit was asked for"):
            wires.verified(None, [None], asked, told.append)
        return
    assert wires.verified(None, [None], asked, told.append)[0]["rate_bits"] == seen[measured - 1]
    assert len(told) == (seen[-1] < 45e6) and next(rates, None) is None


def test_links_are_measured_again_where_the_engine_lost_what_a_node_said(monkeypatch):
    """Docker 20.10 has been seen to, of a command that went well."""
    answers, asked = iter([RunFailed("it said nothing"), [{"rate_bits": 50e6, "round_trip_ms": 0.1}]]), []

    def measure(*_):
        asked.append(1)
        if isinstance(answer := next(answers), RunFailed):
            raise answer
        return answer

    monkeypatch.setattr(wires, "measure", measure)
    assert wires.verified(None, [None], [link({"RATE": "50mbit"})], pytest.fail)[0]["rate_bits"] == 50e6
    assert len(asked) == 2
