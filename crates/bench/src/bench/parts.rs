//! Parts of the work, by function. The kernel's names are those of Linux 5.14 to 6.18.

/// Parts of the kernel by the beginnings of its functions' names; the first that fits.
const KERNEL: [(&str, &[&str]); 7] = [
    (
        "copy",
        &[
            "_copy_",
            "copy_user",
            "copy_to_",
            "copy_from_",
            "copyout",
            "copyin",
            "rep_movs",
            "memcpy",
            "__memcpy",
            "skb_copy_datagram",
            "__skb_datagram_iter",
            "simple_copy_to_iter",
            "csum_partial",
            "__copy",
            "raw_copy",
        ],
    ),
    ("bridge and veth", &["br_", "veth_", "__br_", "nf_", "dev_forward", "__dev_forward", "nft_", "ipt_"]),
    (
        "TCP/IP stack",
        &[
            "tcp_",
            "__tcp",
            "ip_",
            "__ip_",
            "inet_",
            "sk_",
            "__sk_",
            "skb_",
            "__skb",
            "sock_",
            "__sock",
            "dev_",
            "__dev",
            "net_",
            "__net",
            "napi_",
            "__napi",
            "process_backlog",
            "netif_",
            "enqueue_to_",
            "validate_xmit",
            "fib_",
            "bictcp",
            "cubictcp",
            "bbr",
            "lock_sock",
            "release_sock",
            "__release_sock",
            "__lock_sock",
            "kfree_skb",
            "__kfree_skb",
            "consume_skb",
            "__build_skb",
            "__alloc_skb",
            "neigh_",
            "eth_",
            "packet_",
            "qdisc",
            "__qdisc",
            "dql_",
            "harmonize",
            "loopback_",
            "rps_",
            "get_rps",
        ],
    ),
    (
        "memory management",
        &[
            "kmem_",
            "kmalloc",
            "__kmalloc",
            "kfree",
            "__slab",
            "___slab",
            "slab_",
            "alloc_pages",
            "__alloc_pages",
            "free_",
            "__free",
            "get_page",
            "rmqueue",
            "page_",
            "__page",
            "put_page",
            "folio",
            "__folio",
            "clear_page",
            "handle_mm",
            "do_anonymous",
            "__handle_mm",
            "refill_",
            "mod_",
            "__mod",
            "get_from_free",
            "mem_cgroup",
            "try_charge",
            "obj_cgroup",
            "prep_new",
            "zone_",
            "do_user_addr",
            "asm_exc_page",
            "lru_",
        ],
    ),
    (
        "scheduling and waiting",
        &[
            "sched",
            "__sched",
            "schedule",
            "__schedule",
            "try_to_wake",
            "ttwu",
            "futex",
            "__futex",
            "do_futex",
            "wake_",
            "__wake",
            "autoremove",
            "ep_",
            "do_epoll",
            "poll",
            "__poll",
            "do_poll",
            "pick_",
            "dequeue_",
            "enqueue_",
            "update_",
            "__update",
            "select_task",
            "finish_task",
            "__switch",
            "switch_",
            "context_switch",
            "wait_",
            "prepare_to",
            "finish_wait",
            "hrtimer",
            "__hrtimer",
            "native_smp",
            "tick_",
            "eventfd",
            "psi_",
            "set_next",
            "put_prev",
            "reweight",
            "place_entity",
            "check_preempt",
            "cpuacct",
            "rebalance",
            "load_bal",
        ],
    ),
    (
        "system calls",
        &[
            "entry_",
            "do_syscall",
            "syscall_",
            "__x64_sys",
            "x64_sys",
            "ksys",
            "vfs_",
            "__fget",
            "fdget",
            "rw_verify",
        ],
    ),
    (
        "interrupts",
        &[
            "handle_softirqs",
            "__do_softirq",
            "irq_",
            "__irq",
            "asm_sysvec",
            "sysvec_",
            "do_softirq",
            "run_ksoftirqd",
        ],
    ),
];

/// Functions of an idle core.
const IDLE: [&str; 8] = [
    "pv_native_safe_halt",
    "native_safe_halt",
    "default_idle",
    "acpi_safe_halt",
    "intel_idle",
    "do_idle",
    "cpuidle",
    "poll_idle",
];

/// Returns the part of a sample, by the thread's name, the file of its code, and the function; none if the
/// core was idle.
pub fn part(comm: &str, dso: &str, symbol: &str) -> Option<&'static str> {
    let name = symbol.trim_start_matches("[k]").trim_start_matches("[.]").trim();
    if IDLE.iter().any(|idle| name.starts_with(idle)) {
        return None;
    }
    if symbol.starts_with("[k]") || dso.contains("kernel") {
        let found = KERNEL.iter().find(|(_, starts)| starts.iter().any(|start| name.starts_with(start)));
        return Some(found.map_or("other kernel", |(part, _)| part));
    }
    if comm.starts_with("perf") {
        return Some("perf");
    }
    Some(program_part(comm, name))
}

fn program_part(comm: &str, name: &str) -> &'static str {
    let driver = ["pd-driver", "pd-mover", "pd-conductor"].iter().any(|thread| comm.starts_with(thread));
    let copies = ["copy", "memcpy", "memmove"].iter().any(|word| name.contains(word));
    match (driver, copies) {
        (true, true) => "copy",
        (true, false) => "driver",
        (false, _) if name.contains("pd_client") || name.contains("pd_shm") => "client library",
        // Rewriting and checksumming are inlined into whatever calls them, and peers do little else.
        (false, _) if comm.starts_with("pd") => "touching the bytes",
        _ => "other programs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_their_parts() {
        let kernel = |symbol: &str| part("pd", "[kernel.kallsyms]", symbol);
        assert_eq!(kernel("[k] rep_movs_alternative"), Some("copy"));
        assert_eq!(kernel("[k] tcp_ack"), Some("TCP/IP stack"));
        assert_eq!(kernel("[k] veth_xmit"), Some("bridge and veth"));
        assert_eq!(kernel("[k] kmem_cache_free"), Some("memory management"));
        assert_eq!(kernel("[k] something_else"), Some("other kernel"));
        assert_eq!(part("swapper", "[kernel.kallsyms]", "[k] default_idle"), None);
        assert_eq!(part("swapper", "[kernel.kallsyms]", "[k] br_forward"), Some("bridge and veth"));
        assert_eq!(part("pd-driver", "pd", "[.] pd_engine::cpu::copy::avx2"), Some("copy"));
        assert_eq!(part("pd-driver", "pd", "[.] pd_driver::mover::turn"), Some("driver"));
        assert_eq!(
            part("pd", "pd", "[.] twox_hash::xxhash3_64::Hasher::oneshot"),
            Some("touching the bytes")
        );
        assert_eq!(part("pd", "pd", "[.] pd_client::send::send"), Some("client library"));
    }
}
