//! Counters of the driver, in the counter region ([`pd_abi::counters`]).
use pd_abi::counters::{AgentCounters, Gauges, Header};
use pd_shm::counters::{Counter, CounterRegion};
use std::mem::offset_of;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

macro_rules! metrics {
    ($($name:ident,)+) => {
        /// The counters of one agent, written by its thread alone. [`AgentCounters`] documents each.
        #[derive(Debug)]
        pub struct Metrics {
            region: Arc<CounterRegion>,
            $(pub $name: Counter,)+
        }

        impl Metrics {
            /// Returns the counters of an agent: 0 is the conductor, 1 the first mover.
            pub fn new(region: &Arc<CounterRegion>, agent: usize) -> Self {
                let at = region.shape().agent(agent as u32);
                Self {
                    region: Arc::clone(region),
                    $($name: Counter::new(region, at + offset_of!(AgentCounters, $name)),)+
                }
            }
        }
    };
}

pd_abi::agent_counters!(metrics);

impl Metrics {
    /// Adds to a counter.
    pub fn add(counter: &Counter, count: u64) {
        counter.add(count);
    }

    /// Returns the region of the counters.
    pub fn region(&self) -> &CounterRegion {
        &self.region
    }

    /// Sets the gauges. For the conductor alone.
    pub fn set_gauges(&self, gauges: &Gauges) {
        self.region.set_gauges(gauges);
    }
}

/// Makes a region for these numbers of movers, clients and connections.
///
/// # Errors
/// Errors of making memory.
pub fn region(
    movers: usize,
    clients_max: usize,
    connections_max: usize,
    memory_budget_bytes: u64,
) -> rustix::io::Result<Arc<CounterRegion>> {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    CounterRegion::create(Header {
        movers: movers as u32,
        // Numbers of clients that leave stay in use a while longer. A client with a number beyond is not counted.
        clients: (2 * clients_max).min(pd_abi::counters::CLIENTS_MAX as usize) as u32,
        connections: connections_max.min(pd_abi::counters::CONNECTIONS_MAX as usize) as u32,
        started_ns: started.as_nanos() as u64,
        memory_budget_bytes,
        ..Header::default()
    })
}
