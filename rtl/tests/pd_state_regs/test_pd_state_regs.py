"""pd_state_regs (with pd_ptr_calc) against a model; indices run through 65,536 more than once."""

import cocotb
from cocotb.triggers import FallingEdge

from common import abi, coverage
from common.module import start
from common.settings import LONG, parameter, rng as rng_of

coverage.declare("visit with entries", "visit without", "visit of a disabled queue", "index past 65,536", "batch cut at the ring's end", "batch cut by the CQ",
                 "retired", "failed", "enable refused in flight", "disabled", "all at once")

# Odd, so that batches meet the ring's end in every way.
BATCH = 13


class Model:
    def __init__(self):
        self.enabled = self.error = False
        self.batches = self.consumer = self.producer = self.cq = self.total = 0


@cocotb.test()
async def operations(dut):
    rng = rng_of("operations")
    queues, depth = parameter("QUEUES", 256), 1 << parameter("LOG2_DEPTH", 10)
    await start(dut, init_i=0, batch_max_i=BATCH, host_valid_i=0, visit_valid_i=0, retire_valid_i=0, retire_fail_i=0)
    dut.init_i.value = 1
    await FallingEdge(dut.clk_i)
    dut.init_i.value = 0
    while dut.init_busy_o.value:
        await FallingEdge(dut.clk_i)
    models = [Model() for _ in range(queues)]
    host = visit = retire = None
    done = 0
    word = lambda offset: offset // 4  # noqa: E731
    steps = 60000 if LONG else 20000
    while done < steps:
        if host is None and rng.random() < (0.04 if done // 200 % 2 else 0.002):
            number = rng.choice([0] * 7 + [rng.randrange(queues)])
            model = models[number]
            again = 3 if model.batches and done > steps * 0.9 else 0
            kind = rng.choices(["doorbell", "enable", "disable", "state"], [30, again if model.enabled else 30, 1 if done > steps * 0.9 else 0, 2])[0]
            if kind == "doorbell":
                # What a driver does: everything completed is consumed sooner or later, the SQ kept full, or overfull.
                cq = (model.cq + rng.randint(0, (model.consumer - model.cq) & 0xFFFF)) & 0xFFFF
                room = max(0, depth - ((model.producer - cq) & 0xFFFF))
                host = number, kind, ((model.producer + rng.choice([rng.randint(0, room), room, room, room + 9])) & 0xFFFF) | cq << 16
            else:
                host = number, kind, int(kind == "enable")
                if kind == "enable" and model.enabled and not model.batches:
                    host = None
        if visit is None and rng.random() < 0.8:
            visit = rng.choice([0] * 7 + [rng.randrange(queues)])
        if retire is None and rng.random() < 0.8:
            able = [i for i, model in enumerate(models) if model.batches]
            if able:
                retire = rng.choice(able), done > steps * 0.9 and rng.random() < 0.01
        if None not in (host, visit, retire):
            coverage.hit("all at once")
        dut.host_valid_i.value = host is not None
        if host:
            dut.host_queue_i.value, dut.host_wdata_i.value, dut.host_write_i.value = host[0], host[2], host[1] != "state"
            dut.host_word_i.value = word({"doorbell": abi.REG_QUEUE_DOORBELL, "state": abi.REG_QUEUE_STATE}.get(host[1], abi.REG_QUEUE_CONTROL))
        dut.visit_valid_i.value, dut.visit_queue_i.value = visit is not None, visit or 0
        dut.retire_valid_i.value = retire is not None
        if retire:
            dut.retire_queue_i.value, dut.retire_fail_i.value = retire
        ready = dut.host_ready_o.value, dut.visit_ready_o.value, dut.retire_ready_o.value
        assert sum(map(int, ready)) <= 1
        if ready[0] and host:
            model = models[host[0]]
            if host[1] == "doorbell":
                model.producer, model.cq = host[2] & 0xFFFF, host[2] >> 16
                assert dut.doorbell_valid_o.value and int(dut.doorbell_queue_o.value) == host[0]
            elif host[1] == "enable":
                if model.batches:
                    coverage.hit("enable refused in flight")
                else:
                    models[host[0]] = fresh = Model()
                    fresh.enabled, fresh.total = True, model.total
            elif host[1] == "disable":
                model.enabled = False
                coverage.hit("disabled")
            else:
                # Outputs follow the word asked for in the same cycle.
                assert int(dut.host_rdata_o.value) == model.consumer | model.batches << 16 | model.enabled << 30 | model.error << 31
            host, done = None, done + 1
        elif ready[1] and visit is not None:
            model = models[visit]
            slot = model.consumer % depth
            waiting, free = (model.producer - model.consumer) & 0xFFFF, depth - ((model.consumer - model.cq) & 0xFFFF)
            count = max(0, min(waiting, free, depth - slot, BATCH)) if model.enabled else 0
            assert int(dut.visit_count_o.value) == count, (visit, vars(model))
            assert bool(dut.visit_more_o.value) == (model.enabled and min(waiting, free) > count)
            if count:
                assert int(dut.visit_slot_o.value) == slot and bool(dut.visit_phase_o.value) == (not model.consumer & depth)
                coverage.hit("visit with entries")
                if depth - slot == count < BATCH:
                    coverage.hit("batch cut at the ring's end")
                if free == count < BATCH and waiting > count:
                    coverage.hit("batch cut by the CQ")
                model.batches, model.total = model.batches + 1, model.total + count
                if model.consumer + count > 0xFFFF:
                    coverage.hit("index past 65,536")
                model.consumer = (model.consumer + count) & 0xFFFF
            else:
                coverage.hit("visit without" if model.enabled else "visit of a disabled queue")
            visit, done = None, done + 1
        elif ready[2] and retire:
            model = models[retire[0]]
            model.batches -= 1
            if retire[1]:
                model.enabled, model.error = False, True
            coverage.hit("failed" if retire[1] else "retired")
            retire, done = None, done + 1
        await FallingEdge(dut.clk_i)
    coverage.report()
