//! The first process of a container's pid namespace: mounts `/proc`, starts the command, forwards
//! signals to it, reaps orphans, and ends with the command. When it ends, the kernel kills all others.

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{bail, Context, Result};
use rustix::mount::{mount, mount_change, MountFlags, MountPropagationFlags};
use rustix::process::{set_parent_process_death_signal, wait, Pid, Signal, WaitOptions};

use super::confine::{self, Inside};
use super::control::{Channel, Message};
use super::{jobs, NOT_STARTED};

/// Arguments of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// Control socket of the holder.
    #[arg(long)]
    pub control: PathBuf,
    /// The command.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Runs the helper; returns the status to exit with.
pub fn main(args: &InitArgs) -> Result<i32> {
    // Without its parent, which passes the exit status on, the container has no one to end for.
    set_parent_process_death_signal(Some(Signal::KILL)).context("prctl failed")?;
    let stream = UnixStream::connect(&args.control)
        .with_context(|| format!("cannot reach the holder at {}", args.control.display()))?;
    let mut channel = Channel::new(stream);
    // The holder answers once it has recorded this container, for the driver to find.
    let inside = match channel.receive()? {
        Some(Message::Begin { inside }) => inside,
        // The holder has given up, and says why.
        None => return Ok(NOT_STARTED.into()),
        other => bail!("expected the beginning on the container's control socket, got {other:?}"),
    };
    match start(args, inside) {
        Ok(child) => {
            channel.send(&Message::Started)?;
            let told = channel.try_clone()?;
            std::thread::spawn(move || serve(channel, child));
            reap_until(child, &told)
        }
        Err(e) => {
            channel.send(&Message::Failed { reason: format!("{e:#}") })?;
            Ok(127)
        }
    }
}

fn start(args: &InitArgs, inside: Inside) -> Result<Pid> {
    let folder = std::env::current_dir();
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .context("cannot separate the mount namespace")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).context("cannot mount /proc")?;
    confine::confine(&inside)?;
    confine::return_to(folder)?;
    let (program, arguments) = args.command.split_first().expect("clap requires one");
    let mut command = Command::new(program);
    command.args(arguments).envs(inside.environment);
    if !inside.privileged {
        confine::confine_command(&mut command)?;
    }
    let child = jobs::in_own_group(&mut command, inside.terminal)
        .spawn()
        .with_context(|| format!("cannot run '{}'; check the path", program.to_string_lossy()))?;
    Ok(Pid::from_raw(child.id() as i32).expect("a child has a number"))
}

/// Carries out the holder's orders on the command. Ends this process, and with it the container, when the holder has gone.
fn serve(mut channel: Channel, child: Pid) {
    while let Ok(Some(message)) = channel.receive() {
        match message {
            Message::Signal { signal, group } => jobs::signal(child, signal, group),
            Message::Continue { terminal } => jobs::resume(child, terminal),
            _ => {}
        }
    }
    std::process::exit(128 + libc::SIGKILL);
}

/// Waits for the command's end, and tells the holder when it is stopped.
fn reap_until(child: Pid, holder: &Channel) -> Result<i32> {
    loop {
        match wait(WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid == child && status.stopped() => {
                if let Some(signal) = status.stopping_signal() {
                    holder.send(&Message::Stopped { signal })?;
                }
            }
            Ok(Some((pid, status))) if pid == child => return Ok(jobs::exit_code(status)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).context("cannot wait for the command"),
        }
    }
}
