//! Connections that stay on the kernel and processes that were refused, with the reasons, for administrators. Clients report in their
//! control regions, which are read on demand. No decision depends on these reports.
use super::Conductor;
use crate::admin::{KernelClient, RefusedReport};
use crate::ids::ClientId;
use crate::memory::ClientMemory;
use crate::refusal::{Refusal, Refused};
use pd_abi::limits::KERNEL_CONNECTIONS_MAX;
use pd_abi::{KernelReason, KERNEL_REASONS};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Most refused processes that are remembered.
const REFUSED_MAX: usize = 256;
/// Most refused processes of one user that are remembered. A further one displaces the user's oldest.
const REFUSED_OF_USER_MAX: usize = 64;

/// Connections on the kernel by reason, in the order of [`KernelReason::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; KERNEL_REASONS]);

impl Counts {
    /// Adds the growth of a client's counts since `said`. A count that goes back adds nothing.
    pub fn take(&mut self, said: &mut Self, memory: &ClientMemory) {
        for (index, (total, said)) in self.0.iter_mut().zip(&mut said.0).enumerate() {
            let now = u64::from(memory.kernel_count(index)).max(*said);
            *total += now - *said;
            *said = now;
        }
    }

    /// Returns the counts that are not zero, by label.
    pub fn by_label(&self) -> BTreeMap<String, u64> {
        let all = KernelReason::ALL.into_iter().zip(self.0);
        all.filter(|(_, count)| *count > 0)
            .map(|(reason, count)| (reason.label().to_owned(), count))
            .collect()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Kernel {
    counts: Counts,
    refused: VecDeque<(Refused, Duration)>,
    /// Number of processes that were not let in, by [`Refusal::index`].
    refusals: [u64; Refusal::ALL.len()],
}

impl Kernel {
    /// Records a refused process, in place of an earlier record of it.
    pub fn refuse(&mut self, refused: Refused, now: Duration) {
        if let Some(refusal) = refused.refusal {
            self.refusals[refusal.index()] += 1;
        }
        self.refused.retain(|(known, _)| known.pid != refused.pid);
        let of_user = |(known, _): &&(Refused, Duration)| known.uid == refused.uid;
        if self.refused.iter().filter(of_user).count() >= REFUSED_OF_USER_MAX {
            let oldest = self.refused.iter().position(|(known, _)| known.uid == refused.uid);
            oldest.and_then(|oldest| self.refused.remove(oldest));
        } else if self.refused.len() >= REFUSED_MAX {
            self.refused.pop_front();
        }
        self.refused.push_back((refused, now));
    }

    /// Returns the number of processes that were not let in, by label of the reason.
    pub fn refusals(&self) -> BTreeMap<String, u64> {
        let all = Refusal::ALL.iter().zip(self.refusals).filter(|(_, count)| *count > 0);
        all.map(|(refusal, count)| (refusal.label().to_owned(), count)).collect()
    }

    /// Returns the counts of all present and previous clients.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Conductor {
    /// Takes the counts that a client reports by now.
    pub(super) fn take_kernel_counts(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.report_kernel_counts(&mut self.kernel.counts);
    }

    /// Reports the connections on the kernel of a client, as it reports them itself.
    pub(super) fn kernel_client(&self, id: ClientId) -> Option<KernelClient> {
        let client = self.client(id).filter(|client| client.channels > 0)?;
        let memory = client.memory()?;
        let said = (0..KERNEL_CONNECTIONS_MAX).map(|index| memory.kernel_connection(index));
        let connections = said.filter_map(|word| {
            let reason = KernelReason::from_raw((word >> 32) as u32)?;
            Some((word as u32, reason as u32))
        });
        Some(KernelClient { pid: client.identity.pid, connections: connections.collect() })
    }

    /// Reports processes that were refused lately.
    pub(super) fn refused_lately(&self) -> Vec<RefusedReport> {
        let now = self.clock.now();
        let refused = self.kernel.refused.iter().map(|(refused, at)| RefusedReport {
            pid: refused.pid,
            uid: refused.uid,
            errno: refused.errno.raw_os_error(),
            why: refused.why.clone(),
            reason: refused.refusal.map(|refusal| refusal.label().to_owned()),
            seconds_ago: now.saturating_sub(*at).as_secs_f64(),
        });
        refused.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn one(pid: u32, uid: u32) -> Refused {
        Refused { pid, uid, errno: Errno::USERS, why: "too many".to_owned(), refusal: Some(Refusal::Full) }
    }

    #[test]
    fn who_is_refused_often_displaces_its_own() {
        let mut kernel = Kernel::default();
        kernel.refuse(one(1, 7), Duration::ZERO);
        for pid in 0..1000 {
            kernel.refuse(one(10_000 + pid, 8), Duration::ZERO);
        }
        assert_eq!(kernel.refused.len(), 1 + REFUSED_OF_USER_MAX);
        assert_eq!(kernel.refusals(), BTreeMap::from([("clients_max".to_owned(), 1001)]));
        for uid in 0..1000 {
            kernel.refuse(one(uid, 100 + uid), Duration::ZERO);
        }
        assert_eq!(kernel.refused.len(), REFUSED_MAX);
        kernel.refuse(one(999, 3), Duration::ZERO);
        assert_eq!(kernel.refused.iter().filter(|(refused, _)| refused.pid == 999).count(), 1);
    }
}
