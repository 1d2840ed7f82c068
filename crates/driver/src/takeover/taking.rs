//! The new driver's part: everything is checked and mapped before it says that it is ready.
use super::early;
use super::offer::{self, Offer, Word};
use super::pack::{make_room, Unpacked, Wrong};
use super::state::{now, State, Stops};
use crate::admin::{Answer, Ask, TakenOver};
use crate::conductor::{Conductor, Doubts};
use crate::crash::kept::Kept;
use crate::crash::marks::Marks;
use crate::door::{Door, Sockets};
use crate::gate::Lasting;
use crate::memory::Cold;
use crate::mover::takeover::Known;
use crate::peer::Peer;
use crate::pipes::nic::Nic;
use crate::policy::Policy;
use crate::settings::Settings;
use crate::StartError;
use rustix::net::{listen, sockopt, AddressFamily, SocketType};
use rustix::process::geteuid;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time until the running driver answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running driver that has made its offer.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
    policy: Option<String>,
    /// About as many descriptors come with the state.
    descriptors: u32,
    /// Maps of its kernel's half, as they have come.
    maps: Vec<OwnedFd>,
}

/// Clients and flows to be begun.
pub struct Ready {
    /// The agent of pipes, if the other driver has one.
    nic: Option<Box<Nic>>,
    /// Highest numbers of sleeps.
    sleeps: Vec<u32>,
    /// Parts that a driver that was killed may have changed after the state. Empty if it was taken over.
    doubts: Doubts,
}

/// Facts of a take-over that is complete but for the first turn of the driver.
#[derive(Debug)]
pub struct Begun {
    stops: Stops,
    taken_over: TakenOver,
}

impl Begun {
    /// Returns the facts, in the moment in which the driver begins to serve.
    pub fn now(self) -> TakenOver {
        let pause_us = now().saturating_sub(self.stops.since).as_micros() as u64;
        let taken_over = TakenOver { pause_us, ..self.taken_over };
        tracing::info!(?taken_over, "this driver has another one's place");
        taken_over
    }
}

impl Predecessor {
    /// Asks the driver of these settings for its place, and puts its policy into them. Returns the sockets that it listens on.
    ///
    /// # Errors
    /// If no driver runs, or it cannot be taken over.
    pub fn ask(settings: &mut Settings) -> Result<(Self, Sockets), StartError> {
        let refused = |why: String| StartError::TakeOver(why);
        let path = &settings.admin_socket;
        let nobody = |error| {
            refused(format!("no driver runs on {}: {error}; start one without --take-over", path.display()))
        };
        let stream = UnixStream::connect(path).map_err(nobody)?;
        check_peer(&stream, path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut asked = serde_json::to_vec(&Ask::TakeOver { format: offer::FORMAT, abi: pd_abi::VERSION })
            .map_err(std::io::Error::from)?;
        asked.push(b'\n');
        (&stream).write_all(&asked)?;
        match serde_json::from_str(&read_line(&stream)?) {
            Ok(Answer::Offer { .. }) => {}
            Ok(Answer::Error(why)) => return Err(refused(why)),
            _ => {
                return Err(refused(
                    "the running driver knows no hand-over: stop it and start this one".to_owned(),
                ))
            }
        }
        let (bytes, fds) = offer::receive(&stream)?;
        let Offer { policy, is_safe, descriptors } =
            serde_json::from_slice(&bytes).map_err(std::io::Error::from)?;
        let mut fds = fds.into_iter();
        let (Some(attach), Some(admin), maps) = (fds.next(), fds.next(), fds.collect()) else {
            return Err(refused("the running driver offers no sockets".to_owned()));
        };
        if !is_listener(&attach, SocketType::SEQPACKET) || !is_listener(&admin, SocketType::STREAM) {
            return Err(refused("the running driver offers other sockets".to_owned()));
        }
        if let Some(text) = &policy {
            settings.policy = Policy::parse(text)?;
        }
        Ok((Self { stream, policy, descriptors, maps }, Sockets { attach, admin, is_safe, maps: Vec::new() }))
    }

    /// Returns the maps of the kernel's half that have come, if the running driver has one.
    ///
    /// # Errors
    /// If they are no such maps.
    pub fn take_maps(&mut self) -> Result<Option<Lasting>, StartError> {
        let maps = Lasting::of_another(std::mem::take(&mut self.maps));
        maps.map_err(|why| self.refuse(&Wrong::of(why)))
    }

    /// Takes everything, with the policy that the running driver has in force. On success this driver owns the state of the running one. On failure the running driver keeps it.
    ///
    /// # Errors
    /// The fault, or the hindrance.
    pub fn take(
        &self,
        policy: Policy,
        conductor: &mut Conductor,
        door: &mut Door,
    ) -> Result<(Ready, Begun), StartError> {
        let stream = &self.stream;
        make_room(self.descriptors);
        offer::say(stream, Word::Early)?;
        let (list, files) =
            offer::receive(stream).map_err(|error| StartError::TakeOver(error.to_string()))?;
        let early = match early::take(&list, files) {
            Ok(early) => early,
            Err(wrong) => return Err(self.refuse(&wrong)),
        };
        let count = early.len();
        offer::say(stream, Word::Now)?;
        let received = offer::receive(stream).map_err(|error| StartError::TakeOver(error.to_string()))?;
        let begun = Instant::now();
        let (state_bytes, descriptors) = (received.0.len(), count + received.1.len());
        let taken = self.check(received, early, policy, (conductor, door));
        tracing::debug!(checked = ?begun.elapsed(), "steps of a take-over at the new driver");
        match taken {
            Ok((ready, stops)) => {
                offer::say(stream, Word::Ready)?;
                offer::expect(stream, Word::Yours)
                    .map_err(|error| StartError::TakeOver(error.to_string()))?;
                let (clients, connections) = conductor.counts();
                let (attempts, earlier_us) = (stops.attempts, stops.earlier.as_micros() as u64);
                let taken_over = TakenOver {
                    pause_us: 0,
                    attempts,
                    earlier_us,
                    clients,
                    connections,
                    descriptors,
                    state_bytes,
                };
                Ok((ready, Begun { stops, taken_over }))
            }
            Err(wrong) => Err(self.refuse(&wrong)),
        }
    }

    /// Tells the running driver of a fault. Returns the error.
    fn refuse(&self, wrong: &Wrong) -> StartError {
        let _ = writeln!(&self.stream, "the other driver cannot go on with this: {wrong}");
        StartError::TakeOver(format!("cannot go on with what the running driver has: {wrong}"))
    }

    fn check(
        &self,
        (bytes, fds): (Vec<u8>, Vec<OwnedFd>),
        early: early::Rings,
        policy: Policy,
        (conductor, door): (&mut Conductor, &mut Door),
    ) -> Result<(Ready, Stops), Wrong> {
        let begun = Instant::now();
        let state: State = State::from_bytes(&bytes)?;
        tracing::debug!(parsed = ?begun.elapsed(), "steps of a take-over at the new driver");
        let is_same = state.policy == self.policy;
        Wrong::unless(is_same, || "another policy was put in force meanwhile; try again".to_owned())?;
        let stops = state.stops;
        Ok((take(state, policy, &mut Unpacked::new(fds, early), conductor, door, None)?, stops))
    }
}

/// Loads a state into the agents, which have no clients and no policy. They go on with [`begin`]. `marks`: those of a driver that was killed.
///
/// # Errors
/// The fault in the state. The agents are of no use then.
pub fn take(
    state: State,
    policy: Policy,
    fds: &mut Unpacked,
    conductor: &mut Conductor,
    door: &mut Door,
    marks: Option<&Marks>,
) -> Result<Ready, Wrong> {
    let State { stops: _, policy: _, conductor: of_conductor, movers, door: of_door, nic: of_nic } = state;
    let came = conductor.take(of_conductor, policy, fds)?;
    let mut known: HashMap<_, _> = came
        .iter()
        .map(|(id, came)| {
            let payer = crate::ids::payer(came.tenant, came.uid);
            let (account, memory) = (Arc::clone(&came.account), Arc::clone(&came.memory));
            (
                *id,
                Known {
                    payer,
                    account,
                    memory,
                    channels: came.channels,
                    regions: HashMap::new(),
                    files: Vec::new(),
                },
            )
        })
        .collect();
    let (regions, pipes) = door.take(of_door, came, fds)?;
    for (id, regions) in regions {
        if let Some(known) = known.get_mut(&id) {
            known.regions = regions;
        }
    }
    let (sleeps, doubts) = conductor.take_movers(movers, known, fds, marks)?;
    let nic = match of_nic {
        Some(state) => Some(conductor.take_pipes(state, pipes, fds, marks.is_some())?),
        None => Wrong::unless(pipes.is_empty(), || "pipes without an agent".to_owned()).map(|()| None)?,
    };
    Ok(Ready { nic, sleeps, doubts })
}

/// Takes and begins the state of a driver that was killed. What is not proved to be as it was is reset.
///
/// # Errors
/// The fault in it. The agents are of no use then.
pub fn recover(
    kept: &Kept,
    policy: Policy,
    conductor: &mut Conductor,
    door: &mut Door,
    marks: &Arc<Marks>,
) -> Result<Vec<Cold>, Wrong> {
    let (bytes, fds) = kept.read()?;
    make_room(fds.len() as u32);
    let mut state = State::from_bytes(&bytes)?;
    state.door.forget_knocking();
    let fds = &mut Unpacked::new(fds, early::Rings::new());
    let mut ready = take(state, policy.clone(), fds, conductor, door, Some(marks))?;
    let doubts = std::mem::take(&mut ready.doubts);
    let cold = begin(ready, conductor, door);
    conductor.begin_after_crash(policy, doubts, marks, kept.epoch());
    Ok(cold)
}

/// Begins to serve clients: everything is this driver's. Returns the memory for [`super::warming::warm`].
pub fn begin(ready: Ready, conductor: &mut Conductor, door: &mut Door) -> Vec<Cold> {
    let Ready { nic, sleeps, doubts: _ } = ready;
    conductor.begin(&sleeps);
    door.begin();
    if let Some(nic) = nic {
        conductor.begin_pipes(nic);
    }
    conductor.cold_regions().chain(door.cold_regions()).collect()
}

/// Calls `listen` again, so that the kernel names this process as the listener. To be called before it is confined.
///
/// # Errors
/// Errors of `listen`.
pub fn announce(sockets: &Sockets) -> rustix::io::Result<()> {
    [&sockets.attach, &sockets.admin].into_iter().try_for_each(|socket| listen(socket, 1024))
}

/// Tells whether this is a Unix socket of a kind that listens.
pub fn is_listener(socket: &OwnedFd, kind: SocketType) -> bool {
    sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(socket) == Ok(kind)
        && sockopt::socket_acceptconn(socket) == Ok(true)
}

/// Checks the owner of the state, which is trusted: root, or the user of this process.
fn check_peer(stream: &UnixStream, path: &Path) -> Result<(), StartError> {
    let peer = Peer::of(stream)?;
    match peer.uid() == 0 || peer.uid() == geteuid().as_raw() {
        true => Ok(()),
        false => Err(StartError::TakeOver(format!(
            "user {} listens on {}: neither root nor this user",
            peer.uid(),
            path.display()
        ))),
    }
}

fn read_line(stream: &UnixStream) -> std::io::Result<String> {
    // Read byte by byte: the bytes that follow come with descriptors.
    let mut line = Vec::new();
    let mut reader = BufReader::with_capacity(1, stream);
    reader.by_ref().take(1 << 16).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}
