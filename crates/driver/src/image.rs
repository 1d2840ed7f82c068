//! Programs of processes: what a process runs, told apart from what the process becomes (`execve`). The mark is places in its memory, which
//! the kernel chooses anew each time. It tells nothing else.
use pd_shm::procfs;
use rustix::io::{Errno, Result};

/// Mark of a program. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image([u64; 3]);

impl Image {
    /// Returns the program of a process, of which the caller may read such places.
    ///
    /// # Errors
    /// `ESRCH` if there is no such process; errors of reading `/proc`.
    pub fn of(pid: u32) -> Result<Self> {
        // Of the one thread. The process's own file takes a walk of all its threads.
        let text = read(&format!("{pid}/task/{pid}/stat"))?;
        // Behind the name, which may hold anything, are the fields from 3 on.
        let fields = text.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
        let mut fields = fields.split_whitespace().skip(26 - 3).map_while(|field| field.parse().ok());
        let mut next = || fields.next().ok_or(Errno::IO);
        // Begin and end of the code, and begin of the stack.
        Ok(Self([next()?, next()?, next()?]))
    }

    /// Returns the program of a process if the process has no rights but those of this user, and of this group where it is known. A process
    /// that has become a set-id program has others.
    pub fn of_user(pid: u32, uid: u32, gid: Option<u32>) -> Option<Self> {
        let image = Self::of(pid).ok()?;
        // Read afterwards, so that a process that has changed meanwhile is another later.
        let text = read(&format!("{pid}/status")).ok()?;
        let are_all = |label: &str, id: u32| {
            let ids = text.lines().find_map(|line| line.strip_prefix(label));
            ids.is_some_and(|ids| ids.split_whitespace().all(|number| number.parse() == Ok(id)))
        };
        (are_all("Uid:", uid) && gid.is_none_or(|gid| are_all("Gid:", gid))).then_some(image)
    }
}

fn read(path: &str) -> Result<String> {
    procfs::read(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_program_is_another_after_exec_and_the_same_before() {
        // Each of two shells says when it has begun.
        let script = "echo begun; read line; exec sh -c 'echo begun; read line'";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let mut begun = || assert_eq!(lines.next().unwrap().unwrap(), "begun");
        begun();
        let first = Image::of(shell.id()).unwrap();
        assert_eq!(Image::of(shell.id()), Ok(first));
        std::io::Write::write_all(shell.stdin.as_mut().unwrap(), b"go\n").unwrap();
        begun();
        assert_ne!(Image::of(shell.id()), Ok(first));
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }

    #[test]
    fn a_process_with_other_rights_has_no_program() {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let own = std::process::id();
        assert_eq!(Image::of_user(own, uid, Some(gid)), Image::of(own).ok());
        assert!(Image::of_user(own, uid, None).is_some());
        assert_eq!(Image::of_user(own, uid + 1, None), None);
        assert_eq!(Image::of_user(own, uid, Some(gid + 1)), None);
    }
}
