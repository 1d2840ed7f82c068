//! Time for which a connection goes on after a new policy denies it, while its sender never sleeps by itself.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use serde_json::json;

use super::MESSAGE_BYTES;
use crate::catalogue::{Cores, Scheme};
use crate::row::{Metrics, Params};
use crate::run::interleave::{is_interrupted, Cell};
use crate::run::stand::Stand;

/// Number of the pair; the victim's connection goes on.
const PAIR: usize = 1;
/// Longest time for which the sender sends.
const STREAM: Duration = Duration::from_secs(3);
/// Time from the sender's start to the new policy.
const BEFORE: Duration = Duration::from_millis(200);

pub(super) struct DeniedCell(pub Scheme);

impl Cell for DeniedCell {
    fn scheme(&self) -> Scheme {
        self.0
    }

    fn pair(&self) -> Option<usize> {
        Some(PAIR)
    }

    fn params(&self) -> Params {
        vec![("attack", json!("denied"))]
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        stand.pair_of(self.0, PAIR)?;
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        let pair = stand.pair_of(self.0, PAIR)?;
        pair.open(MESSAGE_BYTES, 1, Cores::default(), signals)?;
        pair.start_sharing(MESSAGE_BYTES, STREAM.as_millis() as u64)?;
        sleep(BEFORE);
        let begun = Instant::now();
        stand.deny(self.0)?;
        let ended = stand.pair_of(self.0, PAIR)?.shares(signals);
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        stand.end_pair(self.0, PAIR);
        stand.allow()?;
        match ended {
            Err(error) if is_interrupted(&error) => Err(error),
            Err(_) => Ok(Metrics::from([("ended_ms", ms)])),
            Ok(_) => bail!("the connection went on for {STREAM:?} although the policy denies it"),
        }
    }

    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        stand.end_pair(self.0, PAIR);
        Ok(())
    }
}
