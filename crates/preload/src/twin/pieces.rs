//! Lists of pieces of the program's memory, and what is left of one.
use libc::iovec;

pub(super) fn total(pieces: &[iovec]) -> usize {
    pieces.iter().map(|piece| piece.iov_len).sum()
}

/// The pieces up to so many bytes.
pub(super) fn first(pieces: &[iovec], mut room: usize) -> Vec<iovec> {
    let cut = |piece: &iovec| {
        let len = piece.iov_len.min(room);
        room -= len;
        iovec { iov_base: piece.iov_base, iov_len: len }
    };
    pieces.iter().map(cut).collect()
}

/// Rest of a list of pieces; copied only when a part of it is done.
pub(super) struct Rest<'a> {
    all: &'a [iovec],
    own: Option<Vec<iovec>>,
}

impl<'a> Rest<'a> {
    pub(super) fn new(all: &'a [iovec], thrown_away: bool) -> Self {
        let away = |piece: &iovec| iovec { iov_base: std::ptr::null_mut(), iov_len: piece.iov_len };
        Self { all, own: thrown_away.then(|| all.iter().map(away).collect()) }
    }

    pub(super) fn pieces(&self) -> &[iovec] {
        self.own.as_deref().unwrap_or(self.all)
    }

    pub(super) fn advance(&mut self, mut done: usize) {
        let pieces = self.own.get_or_insert_with(|| self.all.to_vec());
        for piece in pieces.iter_mut() {
            let part = done.min(piece.iov_len);
            if !piece.iov_base.is_null() {
                piece.iov_base = piece.iov_base.wrapping_byte_add(part);
            }
            piece.iov_len -= part;
            done -= part;
        }
    }
}
