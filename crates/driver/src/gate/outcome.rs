//! Outcome of putting a policy in force.
use crate::admin::Answer;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

/// Connections that a policy has ended, here and on the kernel. Told to the asker, or to the log, when the last of those who count them drops
/// it.
#[derive(Debug)]
pub struct Outcome {
    reply: Mutex<Option<Sender<Answer>>>,
    /// Reason why the policy does not bind connections on the kernel.
    not_on_kernel: Option<String>,
    /// Set if the policy is no news: the log has nothing of it.
    is_silent: AtomicBool,
    cut: AtomicU64,
    cut_on_kernel: AtomicU64,
    kept_on_kernel: AtomicU64,
}

impl Outcome {
    /// Makes an outcome without ended connections.
    pub fn new(reply: Option<Sender<Answer>>, not_on_kernel: Option<String>) -> Self {
        Self {
            reply: Mutex::new(reply),
            not_on_kernel,
            is_silent: AtomicBool::new(false),
            cut: AtomicU64::new(0),
            cut_on_kernel: AtomicU64::new(0),
            kept_on_kernel: AtomicU64::new(0),
        }
    }

    /// Counts connections that were ended on the fabric.
    pub fn add_cut(&self, count: u64) {
        self.cut.fetch_add(count, Relaxed);
    }

    /// Counts connections that were ended on the kernel, and those that the kernel would not end.
    pub fn add_on_kernel(&self, cut: u64, kept: u64) {
        self.cut_on_kernel.fetch_add(cut, Relaxed);
        self.kept_on_kernel.fetch_add(kept, Relaxed);
    }

    /// Keeps it out of the log.
    pub fn silence(&self) {
        self.is_silent.store(true, Relaxed);
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        let (cut, cut_on_kernel) = (*self.cut.get_mut(), *self.cut_on_kernel.get_mut());
        let kept_on_kernel = *self.kept_on_kernel.get_mut();
        let reply = self.reply.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        match reply {
            Some(reply) => {
                let not_on_kernel = self.not_on_kernel.take();
                // The asker may have gone.
                let _ = reply.send(Answer::Applied { cut, cut_on_kernel, kept_on_kernel, not_on_kernel });
            }
            None if *self.is_silent.get_mut() => {}
            None => tracing::info!(cut, cut_on_kernel, kept = kept_on_kernel, "policy applied"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::sync::Arc;

    #[test]
    fn it_is_told_when_all_have_counted() {
        let (reply, answers) = channel();
        let outcome = Arc::new(Outcome::new(Some(reply), Some("why".to_owned())));
        let other = Arc::clone(&outcome);
        outcome.add_cut(2);
        drop(outcome);
        assert!(answers.try_recv().is_err());
        other.add_cut(3);
        other.add_on_kernel(5, 7);
        drop(other);
        let answer = answers.try_recv();
        let Ok(Answer::Applied { cut: 5, cut_on_kernel: 5, kept_on_kernel: 7, not_on_kernel: Some(_) }) =
            answer
        else {
            panic!("{answer:?}")
        };
    }
}
