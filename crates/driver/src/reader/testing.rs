//! Openers and readers of the simulation, which runs their turns in its own thread.
use super::threads::{Kind, Readers};
use super::Job;
use crate::ids::Payer;

impl Readers {
    /// Returns the threads that have jobs.
    pub fn helped(&self) -> Vec<(Payer, Kind)> {
        self.busy()
    }

    /// Carries out the first job of a thread.
    pub fn help(&self, key: (Payer, Kind)) {
        let Some(job) = self.with_jobs(key, |jobs| jobs.pop_front()).flatten() else { return };
        let Ok(apart) = self.apart() else { return };
        let side = match key.1 {
            Kind::Opener => apart.far(),
            Kind::Reader => Some(&**apart.near()),
        };
        if let Some(side) = side {
            job.run(side);
        }
    }

    /// Loses a read of a disk. Returns whether there was one.
    pub fn lose_read(&self) -> bool {
        let lose = |key| {
            self.with_jobs(key, |jobs| {
                let lost = jobs.iter().position(|job| matches!(job, Job::Read { .. }));
                lost.and_then(|at| jobs.remove(at))
            })
        };
        self.busy().into_iter().any(|key| lose(key).flatten().is_some())
    }
}
