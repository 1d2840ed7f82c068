//! Draws of a seed: kernel, settings, engine, clients, and how often events occur. Their order is part of what a seed means.
use super::*;
use crate::addresses::Addresses;
use std::net::IpAddr;

pub(super) fn draw_kernel(random: &mut Random) -> Kernel {
    let mut kernel = Kernel::new(random.next());
    for home in 1..=3 {
        let addresses = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, home])];
        let known: Addresses = addresses.into_iter().map(|ip| (ip, 8)).collect();
        kernel.addresses.insert(NamespaceId::for_test(home.into()), known);
    }
    kernel.slow = Duration::from_micros(random.pick(&[0, 50, 20_000]));
    kernel
}

pub(super) fn draw_settings(random: &mut Random) -> Settings {
    Settings {
        budget_bytes: random.pick(&[3 << 20, 12 << 20, 64 << 20]),
        client_budget_bytes: random.pick(&[2 << 20, 32 << 20]),
        hugepages: HugepageUse::Off,
        ring_bytes_default: 1 << random.between(13, 17),
        movers: random.pick(&[1, 1, 2, 3]),
        movers_auto: random.chance(300),
        movers_shuffled: random.chance(500).then(|| Duration::from_micros(random.between(1, 20_000))),
        spin: Duration::ZERO,
        ring_idle: Duration::from_millis(random.pick(&[10, 100, 1000])),
        connections_max: random.pick(&[4, 1000]),
        clients_max: random.pick(&[3, 64]),
        path: random.pick(&[Path::Offloaded, Path::Direct]),
        ..Settings::default()
    }
}

/// Returns the name of an engine: one with faults half of the time, but not in a run about rates.
pub(super) fn draw_engine(random: &mut Random, is_about_rates: bool) -> String {
    let fault_seed = random.below(1000);
    let drawn = match random.below(6) {
        0 | 1 => format!("fault:seed={fault_seed},delay=4,reorder"),
        2 => format!("fault:seed={fault_seed},fail=100,delay=3,reorder"),
        3 => format!("fault:seed={fault_seed},fail=10,dead_after={}", random.between(1, 60)),
        _ => "cpu".to_owned(),
    };
    if is_about_rates {
        "cpu".to_owned()
    } else {
        drawn
    }
}

impl Weather {
    pub(super) fn draw(random: &mut Random, take_overs: u64) -> Self {
        let mut often = |each: &[u64]| random.pick(each);
        Self {
            deaths: often(&[0, 0, 300, 2000]),
            policies: often(&[0, 300, 2000]),
            restarts: often(&[0, 0, 0, 200]),
            slow: often(&[0, 0, 2000, 30_000]),
            faults: often(&[0, 1000]),
            moves: often(&[0, 0, 2000]),
            stops: often(&[0, 300, 3000]),
            shrinks: often(&[0, 0, 2000]),
            take_overs,
        }
    }
}

/// Subject of a run, which decides what its clients do.
pub(super) struct Subject {
    /// Clients of two rated tenants send a lot, and few events occur.
    is_about_rates: bool,
    is_about_moves: bool,
    has_twins: bool,
    pub(super) is_unlocked: bool,
}

/// Clients of a run, with the families of the honest ones, and the last process number.
pub(super) struct Clients {
    pub(super) honest: Vec<Honest>,
    pub(super) hostile: Vec<Hostile>,
    pub(super) people: Vec<(u32, usize)>,
    pub(super) pids: u32,
}

impl Subject {
    pub(super) fn draw(
        random: &mut Random,
        seed: u64,
        mutation: Option<Mutation>,
        is_about_rates: bool,
    ) -> Self {
        let is_about_moves = mutation.is_some_and(Mutation::is_about_moves);
        let has_twins = !is_about_rates && random.chance(600)
            || is_about_moves
            || mutation == Some(Mutation::ByteNotMoved);
        let is_unlocked = has_twins && (is_about_moves || Random::new(mix(!seed)).chance(500));
        Self { is_about_rates, is_about_moves, has_twins, is_unlocked }
    }

    pub(super) fn draw_clients(&self, random: &mut Random, settings: &Settings) -> Clients {
        let mut all = Clients { honest: Vec::new(), hostile: Vec::new(), people: Vec::new(), pids: 100 };
        let mut before: Option<Person> = None;
        for index in 0..random.between(if self.has_twins { 2 } else { 1 }, 5) as usize {
            all.pids += 1;
            let wishes = random.between(2, 25);
            let mut person = person(all.pids, random);
            let elder = before.filter(|_| self.has_twins && random.chance(850));
            let family = elder.as_ref().and_then(|_| all.people.last()).map_or(index, |&(_, family)| family);
            if let Some(elder) = elder {
                kernel::sockets(|sockets| sockets.parents.insert(all.pids, elder.pid));
                person = Person { pid: all.pids, life: person.life, ..elder };
            }
            all.people.push((all.pids, family));
            before = Some(person.clone());
            let own = Random::new(random.next());
            if self.is_about_rates {
                person.cgroup = Some(random.pick(&["/red/one", "/blue"]).to_owned());
            }
            let mut client = Honest::new(index, person, own, wishes, settings.ring_bytes_default);
            self.set_up(&mut client, random);
            all.honest.push(client);
        }
        for _ in 0..random.pick(&[0, 0, 1, 2, 3]).min(if self.is_about_rates { 0 } else { 3 }) {
            all.pids += 1;
            let person = person(all.pids, random);
            all.hostile.push(Hostile::new(person, Random::new(random.next())));
        }
        all
    }

    /// Sets the length of a client's streams, and how often it uses twins.
    fn set_up(&self, client: &mut Honest, random: &mut Random) {
        if self.is_about_rates {
            client.stream_max = 300_000;
        }
        if !self.has_twins {
            return;
        }
        client.use_twins(random.pick(&[50, 300, 2000]));
        if random.chance(700) {
            client.stream_max = client.stream_max.max(random.pick(&[5_000, 60_000, 300_000]));
        }
        if self.is_unlocked {
            client.use_twins(2000);
            client.stream_max = if self.is_about_moves { 300_000 } else { client.stream_max.max(60_000) };
        }
    }
}
