//! New sockets: the driver opens them, and the process takes them in.
use crate::attachment::Attachment;
use crate::error::Result;
use crate::link::Link;
use crate::process;
use crate::socket::{Control, Socket, State, Takes};
use crate::sockets;
use pd_abi::limits::ANSWERS_MAX;
use std::sync::Arc;

impl Socket {
    /// Makes a socket of the family given. Attaches the process if it is not.
    ///
    /// # Errors
    /// `ENETDOWN` without a driver, `EMFILE` with too many sockets, `EACCES` by policy.
    pub fn new(v6: bool) -> Result<Arc<Self>> {
        Self::make(v6, false)
    }

    /// Makes a socket beside one of the kernel's, which is the only one that the program knows. Such listeners of one user
    /// and network namespace may share a port.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn beside_kernel(v6: bool) -> Result<Arc<Self>> {
        Self::make(v6, true)
    }

    fn make(v6: bool, beside_kernel: bool) -> Result<Arc<Self>> {
        let attachment = process::attachment()?;
        Self::new_at(&attachment, v6, beside_kernel)
    }

    /// Several new sockets, with few round trips to the driver.
    ///
    /// # Errors
    /// The errors of [`Self::new`]; then there is none.
    pub fn new_several(v6: bool, count: usize) -> Result<Vec<Arc<Self>>> {
        let attachment = process::attachment()?;
        let channel = attachment.channel()?;
        let mut sockets = Vec::with_capacity(count);
        while sockets.len() < count {
            let wanted = count - sockets.len();
            if wanted > 1 && channel.pooled(v6) == 0 {
                channel.fill_pool(&attachment, v6, wanted.min(ANSWERS_MAX as usize) as u32)?;
            }
            match Self::new_at(&attachment, v6, false) {
                Ok(socket) => sockets.push(socket),
                Err(error) => {
                    sockets.iter().for_each(|socket| drop(socket.close()));
                    return Err(error);
                }
            }
        }
        Ok(sockets)
    }

    fn new_at(attachment: &Arc<Attachment>, v6: bool, beside_kernel: bool) -> Result<Arc<Self>> {
        let (link, ring_bytes) = Self::open(attachment, v6)?;
        let control = Control {
            link: Arc::new(link),
            state: State::New,
            v6,
            v6_only: false,
            beside_kernel,
            receives_shared: beside_kernel,
            takes: Takes::All,
            local: None,
            local_inexact: false,
            peer: None,
            backlog: 0,
            send_ring_bytes: ring_bytes,
            receive_ring_bytes: ring_bytes,
            error: 0,
            attach_tried: None,
            bound: None,
            kernel_options: Vec::new(),
        };
        Ok(Self::assemble(control, false))
    }

    /// Has the driver open a socket. Also returns the size of its rings.
    pub(crate) fn open(attachment: &Arc<Attachment>, v6: bool) -> Result<(Link, u64)> {
        let channel = attachment.channel()?;
        let (id, ring_bytes) = channel.open(attachment, v6)?;
        Ok((Link::new(attachment.clone(), id, channel), ring_bytes))
    }

    /// A socket object around a link.
    pub(crate) fn assemble(control: Control, adoptable: bool) -> Arc<Self> {
        let socket = Arc::new(Self::with(control, adoptable, sockets::next_serial()));
        sockets::register(&socket);
        socket
    }
}
