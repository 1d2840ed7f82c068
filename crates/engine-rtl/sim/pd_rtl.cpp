// The Verilator model of pd_stack behind a few C functions. An instance belongs to one thread.
// SPDX-License-Identifier: Apache-2.0
#include "Vpd_stack.h"
#include "pins.h"
#include "verilated.h"
#if VM_TRACE
#include "verilated_fst_c.h"
#endif
#include <cstring>
#include <memory>

namespace {

constexpr uint64_t HALF_CYCLE_PS = 2000; // 250 MHz

struct Card {
    VerilatedContext context;
    std::unique_ptr<Vpd_stack> top;
#if VM_TRACE
    std::unique_ptr<VerilatedFstC> trace;
#endif

    void eval() {
        top->eval();
#if VM_TRACE
        if (trace) trace->dump(context.time());
#endif
        context.timeInc(HALF_CYCLE_PS);
    }
};

template <typename Wire, typename Field> void to_wire(Wire &wire, const Field &field) {
    static_assert(sizeof(Wire) <= sizeof(Field), "a field has room for its wire");
    std::memcpy(&wire, &field, sizeof(Wire));
}

template <typename Field, typename Wire> void from_wire(Field &field, const Wire &wire) {
    static_assert(sizeof(Wire) <= sizeof(Field), "a field has room for its wire");
    std::memcpy(&field, &wire, sizeof(Wire));
}

} // namespace

// All that the library shows.
#pragma GCC visibility push(default)
extern "C" {

uint64_t pd_rtl_pins_bytes() { return sizeof(pd_pins); }

uint32_t pd_rtl_data_bytes() { return sizeof(Vpd_stack::req_data_o); }

// A card in reset. `trace` is a file for the waveform, or null. Null if this library writes none.
void *pd_rtl_new(const char *trace) {
    auto card = std::make_unique<Card>();
    card->context.traceEverOn(trace != nullptr);
    card->top = std::make_unique<Vpd_stack>(&card->context, "pd_stack");
#if VM_TRACE
    if (trace) {
        card->trace = std::make_unique<VerilatedFstC>();
        card->top->trace(card->trace.get(), 99);
        card->trace->open(trace);
        if (!card->trace->isOpen()) return nullptr;
    }
#else
    if (trace) return nullptr;
#endif
    return card.release();
}

// One clock cycle: applies the inputs, samples the outputs just before the rising edge, and clocks.
void pd_rtl_cycle(void *self, pd_pins *pins) {
    auto &card = *static_cast<Card *>(self);
    auto &top = *card.top;
    top.rst_ni = pins->rst_n;
    top.cfg_requester_id_i = pins->requester_id;
    top.cfg_max_payload_i = pins->max_payload;
    top.cfg_max_read_req_i = pins->max_read_req;
    top.cfg_ext_tag_i = pins->ext_tag;
    top.cfg_bus_master_i = pins->bus_master;
    top.cfg_msix_enable_i = pins->msix_enable;
    top.cfg_msix_mask_i = pins->msix_mask;
    top.req_ready_i = pins->req.ready;
    top.bar_cpl_ready_i = pins->bar_cpl.ready;
    top.cpl_valid_i = pins->cpl.valid;
    if (pins->cpl.valid) {
        top.cpl_sop_i = pins->cpl.sop;
        top.cpl_eop_i = pins->cpl.eop;
        to_wire(top.cpl_hdr_i, pins->cpl.hdr);
        to_wire(top.cpl_data_i, pins->cpl.data);
    }
    top.bar_valid_i = pins->bar.valid;
    if (pins->bar.valid) {
        top.bar_sop_i = pins->bar.sop;
        top.bar_eop_i = pins->bar.eop;
        to_wire(top.bar_hdr_i, pins->bar.hdr);
        to_wire(top.bar_data_i, pins->bar.data);
    }
    top.clk_i = 0;
    card.eval();
    pins->cpl.ready = top.cpl_ready_o;
    pins->bar.ready = top.bar_ready_o;
    pins->req.valid = top.req_valid_o;
    if (top.req_valid_o) {
        pins->req.sop = top.req_sop_o;
        pins->req.eop = top.req_eop_o;
        from_wire(pins->req.hdr, top.req_hdr_o);
        from_wire(pins->req.data, top.req_data_o);
        pins->req.strb = top.req_strb_o;
    }
    pins->bar_cpl.valid = top.bar_cpl_valid_o;
    if (top.bar_cpl_valid_o) {
        from_wire(pins->bar_cpl.hdr, top.bar_cpl_hdr_o);
        from_wire(pins->bar_cpl.data, top.bar_cpl_data_o);
    }
    top.clk_i = 1;
    card.eval();
}

void pd_rtl_delete(void *self) {
    auto *card = static_cast<Card *>(self);
#if VM_TRACE
    if (card->trace) card->trace->close();
#endif
    card->top->final();
    delete card;
}
}
#pragma GCC visibility pop
