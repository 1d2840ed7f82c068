//! Members: descriptors of kernel sockets behind native ones. The kernel says once that something has come; then their items are
//! looked at.
use super::item::Item;
use super::Epoll;
use crate::error::Result;
use crate::kernel::HeldFd;
use crate::turn::lock;
use std::sync::Arc;

/// The descriptor of a kernel socket behind a native one, and what is to be looked at when it has news.
#[derive(Debug)]
pub(super) struct Member {
    fd: Arc<HeldFd>,
    items: Vec<Arc<Item>>,
}

impl Epoll {
    /// Makes a descriptor a member.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`.
    pub(crate) fn join(&self, serial: u64, fd: Arc<HeldFd>, item: &Arc<Item>) -> Result<()> {
        let kernel = self.kernel()?;
        let mut members = lock(&self.members);
        if let Some(member) = members.get_mut(&serial) {
            if !member.items.iter().any(|known| Arc::ptr_eq(known, item)) {
                member.items.push(item.clone());
            }
            return Ok(());
        }
        kernel.add_member(serial, &fd)?;
        members.insert(serial, Member { fd, items: vec![item.clone()] });
        drop(members);
        // A thread may sleep on words of the driver's alone.
        self.wake_all();
        Ok(())
    }

    /// An item is taken out of the instance.
    pub(super) fn part(&self, serial: u64, item: &Arc<Item>) {
        let mut members = lock(&self.members);
        let Some(member) = members.get_mut(&serial) else { return };
        member.items.retain(|known| !Arc::ptr_eq(known, item));
        if member.items.is_empty() {
            self.ready.kernel.get().iter().for_each(|kernel| kernel.remove_member(&member.fd));
            members.remove(&serial);
        }
    }

    /// Queues what may have news.
    pub(super) fn called(&self, serials: &[u64]) {
        if serials.is_empty() {
            return;
        }
        let items: Vec<_> = {
            let members = lock(&self.members);
            let called = serials.iter().filter_map(|serial| members.get(serial));
            called.flat_map(|member| member.items.iter().cloned()).collect()
        };
        items.iter().for_each(|item| self.ready.push(item));
    }
}
