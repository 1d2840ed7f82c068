//! Nodes of the machine's memory (NUMA). With several, a client's memory lies on the node of its mover, which reads and writes all of it,
//! if there is room. With one, nothing is chosen and no call is made.
use pd_shm::{Access, Region};
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

/// Folder in which the kernel lists nodes.
const FOLDER: &str = "/sys/devices/system/node";
/// Processors that a list may name: more than any kernel has.
const PROCESSORS_MAX: usize = 1 << 16;

/// Nodes that have processors, and the processors of each.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Number of a node, and its processors as the kernel lists them.
    lists: Vec<(u32, String)>,
    of_processor: Vec<Option<u32>>,
}

impl Nodes {
    /// Returns the nodes of this machine.
    pub fn system() -> &'static Self {
        static SYSTEM: OnceLock<Nodes> = OnceLock::new();
        SYSTEM.get_or_init(|| Self::read(Path::new(FOLDER)))
    }

    /// Reads the nodes that a folder lists. Unreadable entries are left out.
    fn read(folder: &Path) -> Self {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let number =
            |entry: &std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok();
        let mut numbers: Vec<u32> = entries.filter_map(|entry| number(&entry)).collect();
        numbers.sort_unstable();
        let mut this = Self::default();
        for number in numbers {
            let file = folder.join(format!("node{number}/cpulist"));
            let list = std::fs::read_to_string(file).unwrap_or_default();
            // A node of memory alone has no processors, and runs no threads.
            let Some(processors) = processors(&list).filter(|found| !found.is_empty()) else { continue };
            for processor in processors {
                if this.of_processor.len() <= processor {
                    this.of_processor.resize(processor + 1, None);
                }
                this.of_processor[processor] = Some(number);
            }
            this.lists.push((number, list.trim().to_owned()));
        }
        this
    }

    /// Tells whether there are several nodes.
    pub fn are_several(&self) -> bool {
        self.lists.len() > 1
    }

    /// Returns the node for memory of a thread on this processor; none where there is one node.
    fn near(&self, processor: usize) -> Option<u32> {
        self.of_processor.get(processor).copied().flatten().filter(|_| self.are_several())
    }

    /// Returns the node for memory of the calling thread.
    pub(crate) fn here() -> Option<u32> {
        let nodes = Self::system();
        if !nodes.are_several() {
            return None;
        }
        nodes.near(rustix::thread::sched_getcpu())
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.are_several() {
            return f.write_str("one: nothing to choose");
        }
        for (number, list) in &self.lists {
            write!(f, "node {number} with processors {list}; ")?;
        }
        f.write_str("memory of a client lies on its mover's")
    }
}

/// Asks the kernel to place memory on a node, if one is given and has room. Otherwise the kernel chooses.
pub(crate) fn place<A: Access>(map: &Region<A>, node: Option<u32>) {
    if let Some(Err(error)) = node.map(|node| map.prefer_node(node)) {
        tracing::debug!(%error, "the kernel places memory itself");
    }
}

/// Parses a list of processors as the kernel writes it: `0-3,8,10-11`.
fn processors(list: &str) -> Option<Vec<usize>> {
    let list = list.trim();
    let mut found = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= PROCESSORS_MAX {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(nodes: &[(&str, &str)]) -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        for (name, list) in nodes {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("cpulist"), list).unwrap();
        }
        Nodes::read(folder.path())
    }

    #[test]
    fn lists_of_processors_are_understood() {
        assert_eq!(processors("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(processors("5\n"), Some(vec![5]));
        assert_eq!(processors("\n"), Some(vec![]));
        for bad in ["3-1", "a", "1-", "0-99999999", "-1"] {
            assert_eq!(processors(bad), None, "{bad}");
        }
    }

    #[test]
    fn memory_lies_on_the_movers_node_where_there_are_several() {
        let two =
            machine(&[("node1", "2-3,6\n"), ("node0", "0-1\n"), ("possible", "0-1\n"), ("node2", "\n")]);
        assert!(two.are_several());
        let near: Vec<_> = (0..8).map(|processor| two.near(processor)).collect();
        let (zero, one) = (Some(0), Some(1));
        assert_eq!(near, [zero, zero, one, one, None, None, one, None]);
        assert_eq!(
            two.to_string(),
            "node 0 with processors 0-1; node 1 with processors 2-3,6; memory of a client lies on its mover's"
        );
    }

    #[test]
    fn on_one_node_nothing_is_chosen() {
        for nodes in [&[("node0", "0-63\n")][..], &[("node0", "0-63\n"), ("node1", "\n")], &[]] {
            let one = machine(nodes);
            assert!(!one.are_several());
            assert_eq!((0..64).find_map(|processor| one.near(processor)), None);
            assert_eq!(one.to_string(), "one: nothing to choose");
        }
    }
}
