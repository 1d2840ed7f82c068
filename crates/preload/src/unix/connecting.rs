//! Connecting to a file with a twin, and messages that take a connection to the kernel.
use super::path_in;
use crate::call::{Failure, Outcome};
use crate::connect::Offered;
use crate::entry::{Entry, Socket as Program};
use crate::fabric::NoTwin;
use crate::fallback_cache::{File, Place};
use crate::log::note;
use crate::lookup::attach_twin;
use crate::twin::Twin;
use crate::{address, fabric, table};
use libc::{c_int, sockaddr, sockaddr_un, socklen_t};
use pd_client::core::{KernelReason, Socket};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Begins to connect: returns the end of a twin, or the reason for which there is none.
///
/// # Safety
/// As for `connect`.
pub(crate) unsafe fn begin_to_file(
    fd: c_int,
    socket: &Program,
    address: *const sockaddr,
    len: socklen_t,
) -> Outcome<Result<(Offered, File), KernelReason>> {
    if let Some(reason) = socket.unfit() {
        return Ok(Err(reason));
    }
    // SAFETY: the caller's address.
    match unsafe { twin_towards(fd, address, len) } {
        Err(NoTwin::Denied(errno)) => Err(Failure::Errno(errno)),
        Err(NoTwin::Kernel(reason)) => Ok(Err(reason)),
        // Files are mapped nowhere.
        Err(NoTwin::Mapped) => Ok(Err(KernelReason::Address)),
        Ok((end, file)) => Ok(Ok((Offered::new(end), file))),
    }
}

/// Gives the connection its twin if the kernel's is there.
pub(crate) fn settle_file(
    fd: c_int,
    entry: &Arc<Entry>,
    end: Result<(Offered, File), KernelReason>,
    is_connected: bool,
) {
    match end {
        Ok((offered, file)) if is_connected => {
            note!("descriptor {fd}: connected to a file on the fabric");
            attach_twin(entry, Twin::new(fd, offered.keep(), true).towards(Place::File(file)));
        }
        Err(reason) if is_connected => {
            fabric::stays_on_kernel(fd, reason);
            table::give_up(entry);
        }
        _ => {}
    }
}

unsafe fn twin_towards(
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> Result<(Arc<Socket>, File), NoTwin> {
    // SAFETY: the caller's address.
    let bytes = unsafe {
        if address::family(address, len) != libc::AF_UNIX || len as usize > size_of::<sockaddr_un>() {
            return Err(KernelReason::Address.into());
        }
        std::slice::from_raw_parts(address.cast::<u8>(), len as usize)
    };
    let path = path_in(bytes).ok_or(KernelReason::Address)?;
    let status = std::fs::metadata(path).map_err(|_| KernelReason::Address)?;
    let file = (status.dev(), status.ino());
    fabric::connect_unix(fd, path, file).map(|end| (end, file))
}

/// A message with more than bytes is about to be sent, which only the kernel can.
pub(crate) fn leave_for_control(entry: &Arc<Entry>, twin: &Twin) -> Outcome<()> {
    Err(twin.for_kernel(entry, KernelReason::ControlData, libc::EOPNOTSUPP))
}
