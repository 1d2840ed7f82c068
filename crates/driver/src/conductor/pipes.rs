//! Messages of the conductor to the agent of pipes: tenants, policies, and questions of administrators, which that agent answers.
use super::Conductor;
use crate::admin::{Answer, Ask};
use crate::door::Asked;
use crate::pipes::nic::Nic;
use crate::pipes::{NicState, Pipes, PipesCame, ToNic};
use crate::takeover::pack::{Unpacked, Wrong};
use std::sync::mpsc::Sender;
use std::sync::Arc;

impl Conductor {
    /// Returns the access to the agent of pipes.
    pub fn pipes(&self) -> &Arc<Pipes> {
        &self.pipes
    }

    /// Makes the agent of pipes with the state that another driver has given. `pipes` are the memory of its clients' pipes. What a driver that
    /// `is_killed` has done since nobody knows: its pipes end, and its ports stay.
    ///
    /// # Errors
    /// The fault in it.
    pub fn take_pipes(
        &self,
        state: NicState,
        pipes: PipesCame,
        fds: &mut Unpacked,
        is_killed: bool,
    ) -> Result<Box<Nic>, Wrong> {
        let mut nic = self.pipes.make().map_err(|errno| Wrong::of(format!("the agent of pipes: {errno}")))?;
        let (binds, tenants) = self.tenants.of_pipes();
        nic.apply(binds, tenants);
        nic.take(state, pipes, fds, is_killed)?;
        Ok(nic)
    }

    /// Begins to serve the pipes that have come. Without a thread for their agent all end.
    pub fn begin_pipes(&self, mut nic: Box<Nic>) {
        nic.begin();
        if let Err(error) = self.pipes.start_with(nic) {
            tracing::error!(%error, "cannot start a thread: pipes end, and ports are gone");
        }
    }

    /// Sends the agent of pipes all tenants, and the bindings of the policy.
    pub(super) fn tell_pipes(&self) {
        if self.pipes.is_started() {
            let (binds, tenants) = self.tenants.of_pipes();
            self.pipes.send(ToNic::Policy { binds, tenants });
        }
    }

    /// Passes an administrator's question about ports and pipes to the agent, which answers.
    pub(super) fn hear_of_pipes(&mut self, asked: Asked, reply: Sender<Answer>) {
        let message = match asked {
            Asked::AddPort { name, kind, port } => {
                if let Err(error) = self.pipes.start() {
                    let _ = reply.send(Answer::Error(format!("port {name}: {error}")));
                    return;
                }
                self.tell_pipes();
                self.marks.mark_others();
                ToNic::AddPort { name, kind, port, reply }
            }
            Asked::Show { name, tenant, copies } => {
                let shown = self.add_mirror(name, tenant.as_deref(), copies);
                let _ = reply.send(shown.map_or_else(Answer::Error, |()| Answer::Done));
                return;
            }
            Asked::AddTap(tap) if self.pipes.is_started() => ToNic::AddTap { tap, reply },
            Asked::Plain(Ask::PortRemove { name }) if self.pipes.is_started() => {
                self.remove_mirror(&name);
                self.marks.mark_others();
                ToNic::RemovePort { name, reply }
            }
            Asked::Plain(Ask::MayUse { tenant, ports }) if self.pipes.is_started() => {
                ToNic::MayUse { tenant, ports, reply }
            }
            Asked::Plain(Ask::Pipes) if self.pipes.is_started() => ToNic::Report { reply },
            Asked::Plain(Ask::Pipes) => {
                let _ = reply.send(Answer::Pipes(Box::default()));
                return;
            }
            _ => {
                let _ =
                    reply.send(Answer::Error("the driver has no ports: pd port add makes one".to_owned()));
                return;
            }
        };
        self.pipes.send(message);
    }
}
