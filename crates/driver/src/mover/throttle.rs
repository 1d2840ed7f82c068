//! Rates: the allowance of flows now, and the flows that wait for tokens.
//!
//! A flow without tokens is parked like one whose receive ring is full, and an alarm resumes it. Flows of a tenant wait in one queue. The
//! alarm wakes the first, and each flow that had its turn wakes the next. Flows thus take turns, and a thousand of them cost no more than
//! one. An alarm is set as long as the queue is not empty.
use super::flow::{Allowance, Flow};
use super::Mover;
use crate::ids::{FlowId, TenantId};
use crate::policy::budget::Budget;
use crate::policy::rate::{Bucket, Meter};
use crate::policy::Limits;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Time for which the next in a queue waits if the one woken before it has no turn: that one may have ended.
const NEXT_AFTER: Duration = Duration::from_millis(4);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waiter {
    Flow(FlowId),
    Tenant(TenantId),
}

#[derive(Debug)]
struct Tenant {
    budget: Arc<Budget>,
    bytes: Meter,
    messages: Meter,
    waiting: VecDeque<FlowId>,
    alarm: bool,
}

/// A mover's tenants, and its flows without tokens.
#[derive(Debug, Default)]
pub struct Throttle {
    tenants: Vec<Option<Tenant>>,
    alarms: BinaryHeap<Reverse<(Duration, Waiter)>>,
    limited: bool,
}

impl Throttle {
    /// Tells whether any tenant has limits.
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// Forgets a flow that goes to another mover. The alarm wakes those that wait behind it.
    pub fn forget(&mut self, flow: FlowId) {
        for tenant in self.tenants.iter_mut().flatten() {
            tenant.waiting.retain(|known| *known != flow);
        }
        self.alarms.retain(|Reverse((_, waiter))| *waiter != Waiter::Flow(flow));
    }

    /// Returns the time of the next alarm.
    pub fn next(&self) -> Option<Duration> {
        self.alarms.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns the allowance of a flow now. `has_tokens`: it was the first of those that waited.
    ///
    /// # Errors
    /// The flow is parked until an alarm. The error holds the flow, of those that waited behind it, that may go in its place.
    pub fn allow(
        &mut self,
        flow: &mut Flow,
        has_tokens: bool,
        bytes: u64,
        now: Duration,
    ) -> Result<Allowance, Option<FlowId>> {
        let Some(Some(tenant)) = self.tenants.get_mut(flow.tenant.index()) else {
            return Ok(Allowance::ALL);
        };
        let mut next = None;
        if !tenant.waiting.is_empty() && !has_tokens {
            tenant.waiting.push_back(flow.id);
        } else {
            let want = (flow.pending().min(bytes), flow.messages_wanted());
            match flow.ready(tenant.budget.limits.connection, want, now) {
                Ok(mut own) => match tenant.ready(want, now) {
                    Ok(all) => {
                        own.limit_to(all);
                        return Ok(own);
                    }
                    Err(at) => {
                        tenant.waiting.push_front(flow.id);
                        tenant.set_alarm(&mut self.alarms, at, flow.tenant);
                    }
                },
                Err(at) => {
                    self.alarms.push(Reverse((at, Waiter::Flow(flow.id))));
                    next = tenant.waiting.pop_front();
                }
            }
        }
        flow.schedule.throttle();
        tenant.budget.waits.fetch_add(1, Ordering::Relaxed);
        Err(next)
    }

    /// Counts bytes and messages that a flow has put under way. Returns the next flow that may have tokens.
    pub fn spend(&mut self, flow: &mut Flow, spent: Allowance) -> Option<FlowId> {
        let tenant = self.tenants.get_mut(flow.tenant.index())?.as_mut()?;
        flow.spend(spent);
        tenant.bytes.spend(spent.bytes);
        tenant.messages.spend(spent.messages);
        tenant.waiting.pop_front()
    }
}

impl Tenant {
    fn ready(&mut self, (bytes, messages): (u64, u64), now: Duration) -> Result<Allowance, Duration> {
        let of = |bucket: &Option<Bucket>, meter: &mut Meter, want| match bucket {
            Some(bucket) => meter.ready(bucket, want, now),
            None => Ok(u64::MAX),
        };
        Ok(Allowance {
            bytes: of(&self.budget.bytes, &mut self.bytes, bytes)?,
            messages: of(&self.budget.messages, &mut self.messages, messages)?,
        })
    }

    fn set_alarm(
        &mut self,
        alarms: &mut BinaryHeap<Reverse<(Duration, Waiter)>>,
        at: Duration,
        id: TenantId,
    ) {
        if !std::mem::replace(&mut self.alarm, true) {
            alarms.push(Reverse((at, Waiter::Tenant(id))));
        }
    }
}

impl Mover {
    /// Resumes the flows and tenants whose alarm has come.
    pub(super) fn take_alarms(&mut self) {
        while let Some(&Reverse((at, waiter))) = self.throttle.alarms.peek() {
            if at > self.now {
                return;
            }
            self.throttle.alarms.pop();
            match waiter {
                Waiter::Flow(id) => {
                    self.unpark(id, false);
                }
                Waiter::Tenant(id) => self.wake_first(id),
            }
        }
    }

    fn wake_first(&mut self, id: TenantId) {
        loop {
            let Some(Some(tenant)) = self.throttle.tenants.get_mut(id.index()) else { return };
            tenant.alarm = false;
            let Some(first) = tenant.waiting.pop_front() else { return };
            if !tenant.waiting.is_empty() {
                tenant.set_alarm(&mut self.throttle.alarms, self.now + NEXT_AFTER, id);
            }
            if self.unpark(first, true) {
                return;
            }
        }
    }

    /// Gives a parked flow its turn. `is_first`: as the first of those that wait. Returns whether it then has anything to send.
    pub(super) fn unpark(&mut self, id: FlowId, is_first: bool) -> bool {
        let Some(flow) = self.flows.get(id) else { return false };
        if !flow.schedule.unthrottle() {
            return false;
        }
        let has_tokens = is_first && flow.pending() > 0;
        self.resume(id);
        if let Some(flow) = self.flows.get(id).filter(|_| has_tokens) {
            flow.schedule.keep_tokens();
        }
        has_tokens
    }

    /// Sets the limits of a tenant.
    pub(super) fn set_budget(&mut self, id: TenantId, budget: Arc<Budget>) {
        let tenants = &mut self.throttle.tenants;
        if tenants.len() <= id.index() {
            tenants.resize_with(id.index() + 1, || None);
        }
        let limited = budget.limits != Limits::default();
        let (bytes, messages) = Default::default();
        tenants[id.index()] =
            limited.then(|| Tenant { budget, bytes, messages, waiting: VecDeque::new(), alarm: false });
        self.throttle.alarms.retain(|Reverse((_, waiter))| *waiter != Waiter::Tenant(id));
        self.throttle.limited = tenants.iter().any(Option::is_some);
        for flow in self.flows.ids() {
            if self.flows.used(flow).is_some_and(|f| f.tenant == id) {
                self.unpark(flow, false);
            }
        }
    }

    /// Changes the tenant of a flow.
    pub(super) fn set_tenant(&mut self, id: FlowId, tenant: TenantId) {
        if self.flows.set_tenant(id, tenant) {
            self.unpark(id, false);
        }
    }
}
