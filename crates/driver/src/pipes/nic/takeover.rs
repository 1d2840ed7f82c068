//! State of ports and pipes for another driver, while everything stands still.
use super::Nic;
use crate::takeover::pack::Hindrance;

impl Nic {
    /// Fails while there are ports.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(&self) -> Result<(), Hindrance> {
        match self.ports.len() {
            0 => Ok(()),
            _ => Err(Hindrance::lasting("ports of pipes are open: without ports it can be taken over")),
        }
    }
}
