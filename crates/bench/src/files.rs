//! Files that are streamed: one or more, read as one, over and over.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use memmap2::Mmap;

use crate::protocol::Files;

/// Files read as one.
pub struct Source {
    files: Vec<Piece>,
    bytes: u64,
    maps: Vec<Mmap>,
    read_bytes: usize,
}

/// A file of a source.
pub struct Piece {
    /// Path of the file.
    pub path: PathBuf,
    /// The file.
    pub file: File,
    /// Size of the file when it was opened; later growth is not seen.
    pub bytes: u64,
}

/// A place in a source.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    /// The index of the file.
    pub file: usize,
    /// Offset in the file.
    pub offset: u64,
}

impl Source {
    /// Opens files, in this order.
    pub fn open(paths: &[PathBuf]) -> Result<Source> {
        let mut files = Vec::new();
        for path in paths {
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            let metadata = file.metadata()?;
            ensure!(metadata.is_file(), "{} is no regular file; choose another --file", path.display());
            ensure!(metadata.len() > 0, "{} is empty; choose another --file", path.display());
            files.push(Piece { path: path.clone(), file, bytes: metadata.len() });
        }
        ensure!(!files.is_empty(), "no file to stream; name one with --file");
        let bytes = files.iter().map(|f| f.bytes).sum();
        Ok(Source { files, bytes, maps: Vec::new(), read_bytes: 0 })
    }

    /// Returns the source's files.
    pub fn files(&self) -> &[Piece] {
        &self.files
    }

    /// Bytes of one pass.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Opens and maps the files to send.
    pub fn open_mapped(files: &Files) -> Result<Source> {
        let source = Source::open(&files.paths)?;
        let map = |piece: &Piece| {
            let map = pd_harness::sys::map_file(&piece.file);
            map.with_context(|| format!("cannot map {}", piece.path.display()))
        };
        let maps = source.files.iter().map(map).collect::<Result<_>>()?;
        Ok(Source { maps, read_bytes: files.read_bytes, ..source })
    }

    /// Bytes to checksum and send at a time, where the scheme does not read whole messages.
    pub fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// Returns the `bytes` at `at` of a mapped source, which lie in one file.
    pub fn mapped(&self, at: Cursor, bytes: u64) -> &[u8] {
        &self.maps[at.file][at.offset as usize..(at.offset + bytes) as usize]
    }

    /// Bytes from `at` to the end of its file, at most `max`.
    pub fn contiguous(&self, at: Cursor, max: u64) -> u64 {
        (self.files[at.file].bytes - at.offset).min(max)
    }

    /// Moves `at` within its file; at the file's end on to the next, after the last to the first.
    pub fn advance(&self, at: &mut Cursor, bytes: u64) {
        at.offset += bytes;
        if at.offset == self.files[at.file].bytes {
            *at = Cursor { file: (at.file + 1) % self.files.len(), offset: 0 };
        }
    }

    /// Fills `buffer` with the bytes at `at` and moves on.
    pub fn fill(&self, at: &mut Cursor, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let piece = &self.files[at.file];
            let max = self.contiguous(*at, buffer.len() as u64) as usize;
            let n = piece
                .file
                .read_at(&mut buffer[..max], at.offset)
                .with_context(|| format!("cannot read {}", piece.path.display()))?;
            ensure!(n > 0, "{} became shorter while it was read", piece.path.display());
            self.advance(at, n as u64);
            buffer = &mut buffer[n..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn several_files_read_as_one_endless_one() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        fs::write(&paths[0], b"12345").unwrap();
        fs::write(&paths[1], b"67").unwrap();
        let source = Source::open(&paths).unwrap();
        assert_eq!(source.bytes(), 7);
        let mut at = Cursor::default();
        let mut out = [0; 9];
        source.fill(&mut at, &mut out).unwrap();
        assert_eq!(&out, b"123456712");
        source.fill(&mut at, &mut out[..3]).unwrap();
        assert_eq!(&out[..3], b"345");
        assert_eq!(at.file, 1);
    }

    #[test]
    fn a_file_that_shrinks_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shrinks");
        fs::write(&path, b"12345").unwrap();
        let source = Source::open(std::slice::from_ref(&path)).unwrap();
        fs::write(&path, b"12").unwrap();
        let error = source.fill(&mut Cursor::default(), &mut [0; 5]).unwrap_err();
        assert!(error.to_string().contains("shrinks became shorter"));
    }
}
