//! Names of containers: each bridge has a file in the form of hosts(5) with its containers, which each of them sees as its
//! `/etc/hosts`. A container thus finds itself and the others by name, and those of other networks that have an address in its
//! own.
//!
//! Containers hold the file itself, not its name. The file is changed in place, by one write: a reader meanwhile gets
//! the old text or the new.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::overlay;
use super::state::{self, Lock, Record, RUN_DIR};

const LOCALHOST: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/// Returns the folder of these files.
pub fn folder() -> PathBuf {
    Path::new(RUN_DIR).join("hosts")
}

/// Returns the file of a bridge.
pub fn file(bridge: &str) -> PathBuf {
    folder().join(bridge)
}

fn text(records: &[Record], bridge: &str) -> String {
    let mut text = LOCALHOST.to_owned();
    for record in records.iter().filter(|record| record.bridge == bridge) {
        for address in [&record.address, &record.address6] {
            let address = address.split('/').next().unwrap_or_default();
            let _ = writeln!(text, "{address}\t{}", record.name);
        }
    }
    if let Some(network) = overlay::placed(bridge) {
        for (address, name) in network.others(records) {
            let _ = writeln!(text, "{address}\t{name}");
        }
    }
    text
}

/// Writes the containers on `bridge`; removes the file of an empty bridge. Containers of a network have names in other networks,
/// too.
pub fn refresh(bridge: &str, _lock: &Lock) -> Result<()> {
    let records = state::records()?;
    let networks = overlay::bridges();
    if !networks.iter().any(|other| other == bridge) {
        return rewrite(bridge, &records);
    }
    networks.iter().try_for_each(|bridge| rewrite(bridge, &records))
}

/// Updates the names that containers see to those of the policy in force, after a change.
///
/// # Errors
/// If they cannot be written.
pub fn renew(admin_socket: &Path) -> Result<()> {
    if overlay::bridges().is_empty() || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let lock = Lock::acquire()?;
    for bridge in overlay::bridges() {
        let Some(placed) = overlay::placed(&bridge).filter(|placed| placed.admin_socket == admin_socket)
        else {
            continue;
        };
        // A network that the policy has no more sees nobody.
        let maps =
            overlay::Overlay::ask(admin_socket, &placed.name).map(|overlay| overlay.maps).unwrap_or_default();
        overlay::write(&bridge, &overlay::Placed { maps, ..placed })?;
        refresh(&bridge, &lock)?;
    }
    Ok(())
}

fn rewrite(bridge: &str, records: &[Record]) -> Result<()> {
    let path = file(bridge);
    if !records.iter().any(|record| record.bridge == bridge) {
        let _ = fs::remove_file(&path);
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder())
        .and_then(|()| File::options().create(true).truncate(false).write(true).mode(0o644).open(&path))
        .and_then(|file| replace(&file, &text(records, bridge)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the text of nsswitch.conf(5) `text` with `/etc/hosts` asked first for names of hosts; none if it is already.
///
/// An earlier service may answer that there is no such name, and end the search: systemd-resolved does, which knows
/// the host's table only.
pub fn files_first(text: &str) -> Option<String> {
    let services = |line: &str| line.strip_prefix("hosts:").map(str::to_owned);
    let is_first =
        |line: &str| services(line).is_some_and(|rest| rest.split_whitespace().next() == Some("files"));
    if text.lines().any(is_first) {
        return None;
    }
    let others: Vec<_> = text.lines().filter(|line| services(line).is_none()).collect();
    let rest = text.lines().find_map(services).unwrap_or_else(|| "dns".to_owned());
    Some(format!("{}\nhosts: files {}\n", others.join("\n"), rest.trim()))
}

/// Replaces the text. Empty lines pad a shorter text, until the file is cut.
fn replace(file: &File, text: &str) -> std::io::Result<()> {
    let old = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    let mut padded = text.as_bytes().to_vec();
    padded.resize(old.max(text.len()), b'\n');
    file.write_all_at(&padded, 0)?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_hosts_is_asked_first() {
        assert_eq!(files_first("passwd: files\nhosts:\tfiles dns\n"), None);
        let other = "# x\nhosts: mymachines resolve [!UNAVAIL=return] files dns\npasswd: files\n";
        let expected = "# x\npasswd: files\nhosts: files mymachines resolve [!UNAVAIL=return] files dns\n";
        assert_eq!(files_first(other).as_deref(), Some(expected));
        assert_eq!(files_first("passwd: files").as_deref(), Some("passwd: files\nhosts: files dns\n"));
    }

    #[test]
    fn a_file_keeps_its_place_and_has_the_new_text_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        let file = File::options().create_new(true).write(true).open(&path).unwrap();
        for text in ["short\n", "a longer text\n", "x\n", ""] {
            replace(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
