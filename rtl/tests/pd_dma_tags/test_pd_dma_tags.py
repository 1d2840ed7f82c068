"""pd_dma_tags with a model of the receiver: tags are handed out once, timed out when due and not before, dead until answered or due again."""

import cocotb
from cocotb.triggers import FallingEdge

from common import coverage
from common.module import start
from common.settings import LONG, parameter, rng as rng_of

coverage.declare("answered", "timed out", "dead tag answered late", "dead tag due again", "all tags out", "32 tags", "ended while it is looked at")
UNIT = 256


@cocotb.test()
async def tags(dut):
    rng = rng_of("tags")
    count = parameter("TAGS", 128)
    await start(dut, init_i=0, ext_tag_i=1, timeout_i=0, alloc_ready_i=0, alloc_info_i=0, look_tag_i=0, state_tag_i=0, end_valid_i=0,
                end_tag_i=0, end_dead_i=0, free_valid_i=0, free_tag_i=0)
    for limit, timeout in ((count, 2), (32, 1), (count, 3)):
        dut.ext_tag_i.value, dut.timeout_i.value, dut.init_i.value = limit == count, timeout, 1
        await FallingEdge(dut.clk_i)
        dut.init_i.value = 0
        out, dead, info, frees, looked, kill_wait = {}, {}, {}, [], None, 0
        for cycle in range(60000 if LONG else 9000):
            draining = cycle > (54000 if LONG else 5500)
            # Now many reads without an answer, now every one answered.
            answer = 0.05 if cycle // 1500 % 2 else 0.5
            get = not draining and rng.random() < 0.4
            if looked is not None:
                assert int(dut.look_info_o.value) == info[looked], "what was said of a tag"
            tag = int(dut.alloc_tag_o.value) if dut.alloc_valid_o.value else None
            dut.alloc_ready_i.value, dut.alloc_info_i.value = get, (word := rng.getrandbits(40))
            state = rng.randrange(count)
            dut.state_tag_i.value = state
            # The end of one tag a cycle, in the receiver's way: a time-out when asked, or an answer.
            kill = int(dut.kill_tag_o.value) if dut.kill_valid_o.value else None
            end, died = None, 0
            if kill is not None:
                born, allowed = (out[kill], timeout) if kill in out else (dead[kill], 2 * timeout)
                assert cycle - born >= (allowed - 1) * UNIT, f"tag {kill} is timed out {cycle - born} cycles after its read"
                kill_wait += 1
                if kill_wait == 3:
                    end, died, kill_wait = kill, int(kill in out), 0
                elif rng.random() < 0.2 and kill in out:
                    end, kill_wait = kill, 0
                    coverage.hit("ended while it is looked at")
            elif out and rng.random() < answer:
                end = rng.choice(sorted(out))
            elif dead and rng.random() < 0.01:
                end = rng.choice(sorted(dead))
                coverage.hit("dead tag answered late")
            dut.end_valid_i.value, dut.end_tag_i.value, dut.end_dead_i.value = end is not None, end or 0, died
            looked = rng.choice(sorted(out)) if out else None
            if looked is not None:
                dut.look_tag_i.value = looked
            free = frees.pop(0) if frees and rng.random() < 0.7 else None
            dut.free_valid_i.value, dut.free_tag_i.value = free is not None, free or 0
            if tag is not None and get:
                assert tag < limit and tag not in out and tag not in dead and tag not in frees
                out[tag], info[tag] = cycle, word
            if end is not None:
                if died:
                    dead[end] = out.pop(end)
                    coverage.hit("timed out")
                else:
                    if end in dead and kill == end:
                        coverage.hit("dead tag due again")
                    coverage.hit("answered")
                    out.pop(end, None), dead.pop(end, None)
                    frees.append(end)
            if len(out) + len(dead) + len(frees) == limit:
                coverage.hit("all tags out" if limit == count else "32 tags")
            await FallingEdge(dut.clk_i)
            if looked not in out:
                looked = None
            assert bool(dut.state_out_o.value) == (state in out) and bool(dut.state_dead_o.value) == (state in dead)
            assert bool(dut.idle_o.value) == (not out)
        assert not out and not dead and not frees, "tags for ever"
        dut.free_valid_i.value = dut.end_valid_i.value = 0
        await FallingEdge(dut.clk_i)
    coverage.report()
