// The pins of pd_stack as a C structure: what the simulated card and its host exchange in one clock cycle.
// src/model.rs has the same in Rust; the sizes are compared when the library is loaded.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdint.h>

enum { PD_DATA_WORDS = 64 }; // the widest beat, 2,048 bits

// Beat of a TLP stream. Only the bytes that the stream has wires for are looked at.
struct pd_beat {
    uint32_t hdr[4]; // word 3 is DW 0 of the header
    uint32_t data[PD_DATA_WORDS];
    uint64_t strb;
    uint8_t valid, sop, eop, ready;
    uint8_t pad[4];
};

struct pd_pins {
    pd_beat req;     // from the card but for `ready`
    pd_beat cpl;     // to the card but for `ready`
    pd_beat bar;     // to the card but for `ready`
    pd_beat bar_cpl; // from the card but for `ready`
    uint16_t requester_id;
    uint8_t max_payload, max_read_req, ext_tag, bus_master, msix_enable, msix_mask;
    uint8_t rst_n;
    uint8_t pad[7];
};
