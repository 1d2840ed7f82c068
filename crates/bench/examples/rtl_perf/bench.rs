//! Measurement of one figure: a card in a slot with the timing of a link, and a driver that keeps it busy or waits for it.
use crate::host::{Load, Moments, PerfHost};
use pd_abi::registers::{msix, queue, queue_offset};
use pd_engine_rtl::limit::{Commands, Generation, Lanes, Link};
use pd_engine_rtl::model::Hardware;
use pd_engine_rtl::{enable, open_queue, Port, Timing, CYCLE_NS};

/// Cycles before counting begins, and cycles counted.
const WARM_UP_CYCLES: u64 = 8_000;
const COUNT_CYCLES: u64 = 24_000;
const LATENCY_CYCLES_MAX: u64 = 100_000;

/// A link, and the hardware built for it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// As the tables say.
    pub name: &'static str,
    /// The link that carries the packets.
    pub link: Link,
    /// The model that `make rtl-perf` builds for it.
    pub model: &'static str,
}

/// All settings; the paper's first.
pub const SETTINGS: [Setting; 4] = [
    Setting { name: "gen3 2x8", link: Link::GEN3_2X8, model: "pd_stack_512" },
    Setting { name: "gen3 x16", link: Link::GEN3_X16, model: "pd_stack_512" },
    Setting { name: "gen4 2x8", link: Link::GEN4_2X8, model: "pd_stack_1024" },
    Setting { name: "gen5 x16", link: Link::new(Generation::Gen5, Lanes::X16, 1), model: "pd_stack_2048" },
];

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Payload per time.
    pub gbit_per_s: f64,
    /// The link's limit for the copy alone.
    pub limit_gbit_per_s: f64,
    /// The link's limit with this load's commands.
    pub batched_limit_gbit_per_s: f64,
    /// Register writes for each command.
    pub register_writes_per_command: f64,
    /// Register writes for each batch that the driver submitted.
    pub register_writes_per_batch: f64,
    /// Interrupts for each command.
    pub interrupts_per_command: f64,
}

/// Nanoseconds of one command on an idle card, by part.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Names and times, in order.
    pub parts: [(&'static str, f64); 8],
}

type Card = Port<PerfHost>;

fn start(setting: &Setting, load: Load) -> Result<Card, String> {
    let hardware = Hardware::load(setting.model)?;
    let timing = Timing::of(&setting.link);
    let mut port = Port::new(hardware.card(None)?, hardware.data_bytes(), timing, PerfHost::new(load));
    let queues = enable(&mut port)?;
    if queues < load.queues {
        return Err(format!("{} has {queues} queue pairs", setting.model));
    }
    for index in 0..load.queues {
        let (addr, data) = PerfHost::irq(index);
        let entry = msix::BLOCK.base + index * msix::BLOCK.stride;
        port.write(entry + msix::ADDRESS_LO, addr as u32);
        port.write(entry + msix::ADDRESS_HI, (addr >> 32) as u32);
        port.write(entry + msix::DATA, data);
        port.write(entry + msix::VECTOR_CONTROL, 0);
        open_queue(&mut port, index, PerfHost::sq(index), PerfHost::cq(index), Some(index));
    }
    // Everything above has arrived once a read is answered.
    port.read(queue_offset(0, queue::STATE)).ok_or("the card does not answer")?;
    Ok(port)
}

/// Runs the driver once: submits whole batches to the queues that completed something. Returns the doorbells rung.
fn drive(port: &mut Card) -> u64 {
    let mut rung = 0;
    for index in std::mem::take(&mut port.host.news) {
        if let Some((producer, consumer)) = port.host.submit(index) {
            let value = queue::DOORBELL_SQ_PRODUCER.with(producer.into())
                | queue::DOORBELL_CQ_CONSUMER.with(consumer.into());
            port.write(queue_offset(index, queue::DOORBELL), value);
            rung += 1;
            port.host.news.push(index);
        }
    }
    rung
}

fn sound(port: &Card) -> Result<(), String> {
    let counts = port.counts();
    match counts.refused + counts.malformed {
        0 => Ok(()),
        _ => Err(format!("the card did what it may not, or the bytes are wrong: {counts:?}")),
    }
}

/// Measures the throughput of a load.
///
/// # Errors
/// A sentence: no model, or a faulty card.
pub fn throughput(setting: &Setting, load: Load) -> Result<Figures, String> {
    let mut port = start(setting, load)?;
    // A doorbell takes the link's time, so that those of all queues do not ring at once.
    let warm_up = WARM_UP_CYCLES + u64::from(load.queues) * 40;
    let mut batches = 0;
    let mut before = (0, 0, 0, 0);
    let start = port.now();
    while port.now() < start + warm_up + COUNT_CYCLES {
        if port.now() == start + warm_up {
            let host = &port.host;
            before = (host.payload_bytes, host.commands, host.interrupts, port.counts().register_writes);
            batches = 0;
        }
        batches += drive(&mut port);
        port.cycle();
    }
    sound(&port)?;
    let host = &port.host;
    let commands = (host.commands - before.1) as f64;
    let register_writes = (port.counts().register_writes - before.3) as f64;
    Ok(Figures {
        gbit_per_s: (host.payload_bytes - before.0) as f64 * 8.0 / (COUNT_CYCLES as f64 * CYCLE_NS),
        limit_gbit_per_s: setting.link.copy_gbit_per_s(load.command_bytes, Commands::None),
        batched_limit_gbit_per_s: setting
            .link
            .copy_gbit_per_s(load.command_bytes, Commands::Batches(load.batch.min(16))),
        register_writes_per_command: register_writes / commands,
        register_writes_per_batch: register_writes / batches as f64,
        interrupts_per_command: (host.interrupts - before.2) as f64 / commands,
    })
}

/// Measures one command of `bytes` on an idle card, from the doorbell to the interrupt.
///
/// # Errors
/// As of [`throughput`].
pub fn latency(setting: &Setting, bytes: u32) -> Result<Latency, String> {
    let load = Load { queues: 1, command_bytes: bytes, batch: 1, in_flight_max: 1 };
    let mut port = start(setting, load)?;
    for _ in 0..1000 {
        port.cycle();
    }
    port.host.moments = Moments::default();
    let rung = port.now();
    drive(&mut port);
    while port.host.interrupts == 0 {
        port.cycle();
        if port.now() > rung + LATENCY_CYCLES_MAX {
            return Err("no interrupt".to_owned());
        }
    }
    sound(&port)?;
    let m = port.host.moments;
    let moments = [
        ("doorbell on the link", m.doorbell),
        ("doorbell to fetch", m.fetch),
        ("fetch of the entry", m.fetched),
        ("check and dispatch", m.read),
        ("read of the payload", m.read_done),
        ("write of the payload", m.written),
        ("completion and interrupt", m.interrupt),
        ("interrupt on the link", Some(port.host.interrupt_at)),
    ];
    let mut last = rung;
    let mut parts = [("", 0.0); 8];
    for (part, (name, moment)) in parts.iter_mut().zip(moments) {
        let moment = moment.ok_or_else(|| format!("{name}: never seen"))?;
        // Writes may start before the last read is answered.
        *part = (name, moment.saturating_sub(last) as f64 * CYCLE_NS);
        last = moment.max(last);
    }
    Ok(Latency { parts })
}
