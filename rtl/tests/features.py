"""What the hardware promises, and the hits of tests (folder: feature) that show it. A promise without a hit fails the whole run."""

FEATURES = {
    "copies of one byte to the largest": ["pd_stack: copy of one byte", "pd_stack: copy of the maximum"],
    "any byte alignment": ["pd_stack: source not aligned to a DW", "pd_stack: destination not aligned to a DW"],
    "all queues at once": ["pd_stack: all queues busy"],
    "queues round robin": ["pd_rr_pick: wrap", "pd_controller: queue with more left"],
    "entries fetched in batches": ["pd_stack: batch of 16", "pd_controller: batch of 16", "pd_controller: batch of one"],
    "full queues": ["pd_stack: queue full", "pd_ptr_calc: CQ full", "pd_stack: CQ not consumed holds the SQ"],
    "wrap-around of queues and indices": ["pd_stack: queue wrapped", "pd_state_regs: index past 65,536", "pd_ptr_calc: end of the ring",
                                          "pd_ptr_calc: pointers past 65,536", "pd_data_buffer: beat over the end"],
    "4 KB boundaries": ["pd_stack: write up to a 4 KB boundary", "pd_stack: read up to a 4 KB boundary", "pd_dma: copy over a page"],
    "payload sizes": ["pd_stack: MPS 128", "pd_stack: MPS 256", "pd_stack: MPS 512", "pd_stack: write of the maximum payload size"],
    "read request sizes": [*(f"pd_stack: MRRS {128 << n}" for n in range(4)), "pd_stack: read of the maximum request size"],
    "read completion boundaries": ["pd_stack: RCB 64", "pd_stack: RCB 128"],
    "completions split and out of order": ["pd_stack: completion in pieces", "pd_stack: completions out of order", "pd_dma: completions out of order"],
    "32 tags and more": ["pd_stack: 32 tags", "pd_dma: more than 32 tags", "pd_dma_tags: all tags out"],
    "bad type, length and address": ["pd_stack: command with BadType", "pd_stack: command with BadLength", "pd_stack: command with BadAddress"],
    "completion time-out": ["pd_stack: completion lost", "pd_dma_tags: timed out", "pd_stack: late completion dropped"],
    "tags back after a time-out": ["pd_dma_tags: dead tag answered late", "pd_dma_tags: dead tag due again"],
    "poisoned completion": ["pd_stack: completion poisoned", "pd_dma: poison"],
    "unsupported request and completer abort": ["pd_stack: completion with ur", "pd_stack: completion with ca"],
    "unexpected completion": ["pd_stack: completion unexpected", "pd_dma: unexpected completion"],
    "a failed copy writes nothing": ["pd_dma: copy that failed"],
    "entries that cannot be read": ["pd_stack: queue in error", "pd_controller: batch not read"],
    "queue disabled in flight": ["pd_stack: queue disabled in flight", "pd_state_regs: enable refused in flight"],
    "device stopped and reset in flight": ["pd_stack: device stopped in flight", "pd_stack: device reset in flight"],
    "bus master off": ["pd_stack: bus master off", "pd_dma: bus master off"],
    "MSI-X with coalescing": ["pd_stack: interrupts shared", "pd_msix: shared", "pd_msix: interval waited for"],
    "masks and pending bits": ["pd_stack: interrupt masked", "pd_msix: held by the vector's mask", "pd_msix: held by the function's mask", "pd_msix: pending bit read"],
    "on a PCIe root complex": ["pd_stack: copy on a root complex", "pd_stack: refused by a root complex", "pd_stack: interrupt on a root complex"],
}


def table(reports):
    """(lines, promises without a hit) of the reports: folder -> feature -> hits."""
    lines, missing = [], []
    for promise, shown_by in FEATURES.items():
        hits = [reports.get(folder, {}).get(feature, 0) for folder, feature in (entry.split(": ", 1) for entry in shown_by)]
        lines.append(f"{promise:44} {min(hits):8}")
        if not min(hits):
            missing.append(promise)
    return lines, missing
