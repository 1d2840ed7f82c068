//! A client's word that it listens ([`pd_abi::TwinOperation::Listen`]), and its proof: the payer's helper compares it with the kernel's.
use crate::ids::ClientId;
use crate::image::Image;
use crate::kernel_socket::{Holder, SocketDiag};
use pd_abi::TwinRequest;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Statement of a client, and facts about its process.
#[derive(Debug)]
pub struct Claim {
    /// The client, its serial, and the channel of the answer.
    pub client: ClientId,
    pub serial: u64,
    pub channel: usize,
    pub asked: TwinRequest,
    pub pid: u32,
    pub uid: u32,
    pub image: Option<Image>,
    pub pidfd: Arc<OwnedFd>,
    /// The client's network namespace.
    pub namespace: Arc<OwnedFd>,
}

/// A claim, and the user of the kernel's listener if it is true.
#[derive(Debug)]
pub struct Proved {
    pub claim: Claim,
    pub user: Result<u32, Errno>,
}

impl Claim {
    /// Compares the claim with what the kernel says. Takes as long as a walk over all listeners.
    pub fn prove(self) -> Proved {
        let user = self.user();
        Proved { claim: self, user }
    }

    /// Returns the user of the kernel's listener.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if no listener of the namespace has this address and cookie, `EACCES` if the process does not hold it. `EOPNOTSUPP` if the
    /// kernel cannot be asked.
    fn user(&self) -> Result<u32, Errno> {
        let local = self.asked.local.to_socket_addr().ok_or(Errno::AFNOSUPPORT)?;
        let diag = SocketDiag::new(&self.namespace).map_err(|_| Errno::OPNOTSUPP)?;
        let found = diag.own_listener(local, self.asked.cookie).map_err(|_| Errno::OPNOTSUPP)?;
        let listener = found.ok_or(Errno::ADDRNOTAVAIL)?;
        let holder = Holder { pid: self.pid, uid: self.uid, image: self.image, pidfd: &self.pidfd };
        match holder.inode(self.asked.descriptor) == Ok(listener.inode) {
            true => Ok(listener.uid),
            false => Err(Errno::ACCESS),
        }
    }
}
