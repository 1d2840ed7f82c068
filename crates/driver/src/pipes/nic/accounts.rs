//! Accounts of tenants: traffic of their pipes, tokens of their rates, and reports.
use super::Nic;
use crate::ids::{ClientId, TenantId};
use crate::messages::Payer;
use crate::pipes::report::{PipeReport, PipesReport, PortReport, TenantCounts, TenantPipes};
use crate::policy::rate::{Bucket, Meter};
use pd_pipe::{Direction, PipeCounts, PipeId, PortCounts, Shape, Tokens, Unit};
use std::sync::atomic::Ordering;
use std::time::Duration;

const CUT_OFF: &str = "a pipe ended: its client broke the protocol";

impl Nic {
    /// Gives a pipe the purse of its payer's tenant, if that has rates.
    pub(super) fn set_purse(&mut self, id: PipeId, payer: Payer) {
        let budget = self.tenant(payer.0).budget.as_ref();
        let limited = budget.is_some_and(|budget| budget.bytes.is_some() || budget.messages.is_some());
        if limited {
            self.rated.insert(payer.0);
        }
        self.agent.set_purse(id, limited.then_some(payer.0.index()));
        self.agent.set_payer(id, number_of(payer));
    }

    /// Adds the traffic of a pipe since the last time to its tenant's account.
    pub(super) fn settle(&mut self, client: ClientId, number: u32) {
        let Some(pipe) = self.pipes.get_mut(&(client, number)) else { return };
        let Some(now) = self.agent.counts(pipe.id) else { return };
        let was = std::mem::replace(&mut pipe.settled, now);
        let violation = self.agent.violation(pipe.id);
        let broke = pipe.ended.is_none().then_some(violation).flatten();
        let payer = pipe.payer;
        if let Some(violation) = broke {
            self.note_end(client, number, violation.to_string());
        }
        let tenant = self.tenant(payer.0);
        add(&mut tenant.account, &counts(&now), &counts(&was));
        if let Some(violation) = broke {
            tenant.cut_off += 1;
            if self.log.may_say((CUT_OFF, payer), self.clock.now()) {
                tracing::warn!(%client, number, %violation, "{CUT_OFF}");
            }
        }
    }

    /// Moves spent tokens from the meters of tenants with rates, and fills their purses. Returns the time at which the first has
    /// tokens again.
    pub(super) fn fill_purses(&mut self) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        for id in &self.rated {
            let (index, tenant) = (id.index(), &mut self.tenants[id.index()]);
            let Some(budget) = tenant.budget.as_ref().filter(|b| b.bytes.is_some() || b.messages.is_some())
            else {
                continue;
            };
            let now = self.clock.now();
            let left = self.agent.fill_purse(index, Tokens::ALL);
            if let Some(granted) = tenant.granted.take() {
                let bytes = granted.bytes.saturating_sub(left.bytes).max(0) as u64;
                tenant.debt += bytes.saturating_sub(granted.bytes.max(0) as u64);
                tenant.bytes.spend(bytes.min(granted.bytes.max(0) as u64));
                tenant.messages.spend(granted.frames.saturating_sub(left.frames));
            }
            let mut wait = |ready: Result<u64, Duration>| {
                ready.unwrap_or_else(|at| {
                    next = Some(next.map_or(at, |next| next.min(at)));
                    0
                })
            };
            let ask = |meter: &mut Meter, bucket: &Option<Bucket>| {
                bucket.as_ref().map(|bucket| meter.ready(bucket, 1, now))
            };
            let mut bytes = ask(&mut tenant.bytes, &budget.bytes).map_or(i64::MAX as u64, &mut wait);
            let frames = ask(&mut tenant.messages, &budget.messages).map_or(u64::MAX, &mut wait);
            if budget.bytes.is_some() {
                let paid = tenant.debt.min(bytes);
                tenant.bytes.spend(paid);
                tenant.debt -= paid;
                bytes -= paid;
                if bytes == 0 && paid > 0 {
                    // The next look draws more.
                    wait(Err(now));
                }
            }
            let tokens = Tokens { frames, bytes: bytes.min(i64::MAX as u64) as i64 };
            self.agent.fill_purse(index, tokens);
            tenant.granted = Some(tokens);
            if frames == 0 || bytes == 0 {
                budget.waits.fetch_add(u64::from(self.agent.lacks_tokens()), Ordering::Relaxed);
            }
        }
        next
    }

    pub(super) fn report(&mut self) -> PipesReport {
        let all: Vec<_> = self.pipes.keys().copied().collect();
        self.agent.count_links();
        all.iter().for_each(|&(client, number)| self.settle(client, number));
        let ports = self.ports.iter().map(|(name, port)| {
            let pipes = self.pipes.values().filter(|pipe| pipe.ended.is_none() && pipe.ports[0] == *name);
            let counts = self.agent.port_counts(port.id);
            let gen = match self.agent.port(port.id) {
                pd_pipe::Port::Gen(gen) => gen.counts(),
                _ => Default::default(),
            };
            let path = path(self.agent.is_port_direct(port.id));
            port_report(name, port.kind, path, pipes.count(), counts, (gen.wrong, gen.missing))
        });
        let ports = ports.collect();
        let pipes = self.pipes.iter().map(|(&(client, number), pipe)| PipeReport {
            client: client.get(),
            number,
            tenant: self.tenants[pipe.payer.0.index()].name.clone(),
            ports: pipe.ports.clone(),
            direction: direction(pipe.shape).to_owned(),
            unit: if pipe.shape.unit() == Unit::Frames { "frames" } else { "bytes" }.to_owned(),
            ring_bytes: pipe.shape.ring_bytes(),
            ended: pipe.ended.clone(),
            path: path(self.agent.is_direct(pipe.id)),
            counts: counts(&pipe.settled),
        });
        let pipes = pipes.collect();
        let tenants =
            self.tenants.iter().enumerate().filter(|(_, tenant)| tenant.opened + tenant.refused > 0);
        let open =
            |id| self.pipes.values().filter(|pipe| pipe.payer.0 == id && pipe.ended.is_none()).count() as u64;
        let tenants = tenants.map(|(index, tenant)| TenantPipes {
            name: tenant.name.clone(),
            pipes_open: open(TenantId::at(index)),
            pipes_opened: tenant.opened,
            pipes_refused: tenant.refused,
            pipes_cut_off: tenant.cut_off,
            counts: tenant.account,
        });
        let (tenants, taps) = (tenants.collect(), self.taps.report(&self.agent));
        PipesReport { ports, pipes, tenants, taps }
    }
}

/// Returns the number by which the agent of pipes knows a payer. The payer pays for the agent's time, and its pipes trust each other.
pub(super) fn number_of((tenant, uid): Payer) -> u64 {
    let uid = uid.map_or(0, |uid| 1 << 32 | u64::from(uid));
    (tenant.index() as u64) << 33 | uid
}

fn path(is_direct: bool) -> String {
    if is_direct { "direct" } else { "agent" }.to_owned()
}

fn direction(shape: Shape) -> &'static str {
    match shape.direction() {
        Direction::Receive => "receive",
        Direction::Send => "send",
        Direction::Forward => "forward",
    }
}

fn counts(of: &PipeCounts) -> TenantCounts {
    TenantCounts {
        frames_received: of.frames_received,
        bytes_received: of.bytes_received,
        frames_sent: of.frames_sent,
        bytes_sent: of.bytes_sent,
        frames_dropped: of.frames_dropped,
        frames_refused: of.frames_refused + of.frames_foreign,
        frames_unbound: of.frames_unbound,
        frames_lost: of.frames_lost,
        frames_unsent: of.frames_unsent,
        notifications: of.notifications,
    }
}

/// Adds the difference of `now` and `was`.
fn add(to: &mut TenantCounts, now: &TenantCounts, was: &TenantCounts) {
    // Clients say what goes directly: no sum overflows.
    let add = |to: &mut u64, now: u64, was: u64| *to = to.saturating_add(now.saturating_sub(was));
    add(&mut to.frames_received, now.frames_received, was.frames_received);
    add(&mut to.bytes_received, now.bytes_received, was.bytes_received);
    add(&mut to.frames_sent, now.frames_sent, was.frames_sent);
    add(&mut to.bytes_sent, now.bytes_sent, was.bytes_sent);
    add(&mut to.frames_dropped, now.frames_dropped, was.frames_dropped);
    add(&mut to.frames_refused, now.frames_refused, was.frames_refused);
    add(&mut to.frames_unbound, now.frames_unbound, was.frames_unbound);
    add(&mut to.frames_lost, now.frames_lost, was.frames_lost);
    add(&mut to.frames_unsent, now.frames_unsent, was.frames_unsent);
    add(&mut to.notifications, now.notifications, was.notifications);
}

fn port_report(
    name: &str,
    kind: &str,
    path: String,
    pipes: usize,
    counts: PortCounts,
    (frames_wrong, frames_missing): (u64, u64),
) -> PortReport {
    PortReport {
        name: name.to_owned(),
        kind: kind.to_owned(),
        path,
        pipes,
        frames_received: counts.frames_received,
        bytes_received: counts.bytes_received,
        frames_sent: counts.frames_sent,
        bytes_sent: counts.bytes_sent,
        frames_unbound: counts.frames_unbound,
        frames_lost: counts.frames_lost,
        frames_unsent: counts.frames_unsent,
        frames_wrong,
        frames_missing,
    }
}
