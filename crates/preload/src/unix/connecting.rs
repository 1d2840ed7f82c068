//! Connecting to a file with a twin, and messages that take a connection to the kernel.
use super::path_in;
use crate::call::{errno, Failure, Outcome};
use crate::entry::Entry;
use crate::fabric::NoTwin;
use crate::fallback_cache::{File, Place};
use crate::log::note;
use crate::lookup::attach_twin;
use crate::twin::Twin;
use crate::{address, fabric, real, table};
use libc::{c_int, sockaddr, sockaddr_un, socklen_t};
use pd_client::core::{outside, KernelReason, Socket};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// `connect`.
///
/// # Safety
/// As for `connect`.
pub(crate) unsafe fn connect_to_file(
    fd: c_int,
    entry: &Arc<Entry>,
    address: *const sockaddr,
    len: socklen_t,
) -> Outcome<c_int> {
    let socket = entry.socket().ok_or(Failure::Plain)?;
    let end = match socket.unfit() {
        Some(reason) => Err(reason),
        // SAFETY: the caller's address.
        None => match unsafe { twin_towards(fd, address, len) } {
            Err(NoTwin::Denied(errno)) => return Err(Failure::Errno(errno)),
            Err(NoTwin::Kernel(reason)) => Err(reason),
            // Files are mapped nowhere.
            Err(NoTwin::Mapped) => Err(KernelReason::Address),
            Ok(end) => Ok(end),
        },
    };
    // SAFETY: the caller's promise.
    let result = outside(|| unsafe { real::connect(fd, address, len) });
    let failed = errno();
    match (end, result) {
        (Ok((end, file)), 0) => {
            note!("descriptor {fd}: connected to a file on the fabric");
            attach_twin(entry, Twin::new(fd, end, true).towards(Place::File(file)));
        }
        (Ok((end, _)), _) => {
            fabric::withdraw(&end);
            let _ = end.close();
        }
        (Err(reason), 0) => {
            fabric::stays_on_kernel(fd, reason);
            table::give_up(entry);
        }
        (Err(_), _) => {}
    }
    match result {
        0 => Ok(0),
        _ => Err(Failure::Errno(failed)),
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
