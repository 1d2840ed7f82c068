//! Events that happen to a driver and its clients.
use super::*;
use std::net::IpAddr;

impl World {
    /// Draws an event for the driver or its clients.
    pub(super) fn befall(&mut self) {
        let lot = self.random.below(1_000_000);
        let Weather { deaths, policies, restarts, slow, faults, moves, stops, shrinks, take_overs } =
            self.weather;
        if take_overs > 0 && self.successions.below(1_000_000) < take_overs {
            self.succeed();
        }
        let mut bound = 0;
        let mut falls = |often| {
            let from = bound;
            bound += often;
            (from..bound).contains(&lot)
        };
        if falls(deaths) {
            self.kill_one();
        } else if falls(policies) {
            self.change_policy();
        } else if falls(restarts) {
            self.restart();
        } else if falls(slow) {
            let helped = self.driver().parts.door.helped();
            let files = self.driver().parts.readers.helped();
            let until = self.now() + Duration::from_millis(self.random.pick(&[1, 100, 6000]));
            if !files.is_empty() && self.random.chance(500) {
                let key = self.random.pick(&files);
                self.driver().slow_files.insert(key, until);
                self.note(12);
            } else if !helped.is_empty() {
                let payer = self.random.pick(&helped);
                self.driver().held_up.insert(payer, until);
                self.note(5);
            }
        } else if falls(faults) {
            self.pour_faults();
        } else if falls(moves) {
            self.move_addresses();
        } else if falls(stops) {
            let until = self.now() + Duration::from_millis(self.random.pick(&[1, 50, 2000]));
            let at = self.random.below(self.honest.len() as u64) as usize;
            self.honest[at].stop(until);
            self.note(11);
        } else if falls(shrinks) {
            let at = self.random.below(self.honest.len() as u64) as usize;
            if self.honest[at].cut_file_off(&mut self.book) {
                self.note(13);
            }
        } else if falls(200) {
            self.driver().parts.door.end_helpers();
        }
    }

    /// Gives network namespaces other addresses, or too many to read at once.
    pub(super) fn move_addresses(&mut self) {
        let random = &mut self.random;
        let ids = [random.between(1, 3), random.between(1, 3)].map(NamespaceId::for_test);
        let many = random.chance(200);
        kernel::with(|kernel| {
            let [one, other] = ids.map(|id| kernel.addresses.remove(&id));
            if ids[0] == ids[1] {
                let mut list = one.unwrap_or_default();
                let extra = (0..if many { 1100u32 } else { 1 })
                    .map(|n| IpAddr::from((0x0a01_0000 + n).to_be_bytes()));
                list.extend(extra.map(|ip| (ip, 16)));
                kernel.addresses.insert(ids[0], list);
            } else {
                kernel
                    .addresses
                    .extend(ids.into_iter().zip([other, one]).filter_map(|(id, list)| Some((id, list?))));
            }
        });
        self.note(10);
    }

    pub(super) fn pour_faults(&mut self) {
        let mut faults = BTreeMap::new();
        if self.weather.faults > 0 && self.random.chance(700) {
            for call in 0..=kernel::LAST_CALL {
                let often = self.random.pick(&[0, 0, 0, 0, 1000, 30_000, 300_000]);
                faults.insert(call, often);
            }
        }
        kernel::with(|kernel| kernel.faults = faults);
    }

    pub(super) fn kill_one(&mut self) {
        let now = self.now();
        let at = self.random.below(self.honest.len() as u64) as usize;
        self.honest[at].die(now, &mut self.book);
        if self.random.chance(500) {
            // The process dies, and not only its connection to the driver.
            let _ = rustix::io::write(&self.honest[at].person.life, &1u64.to_ne_bytes());
            self.pids += 1;
            let reborn = person(self.pids, &mut self.random);
            let same = &mut self.honest[at].person;
            for end in kernel::sockets(|all| all.exit(same.pid)) {
                self.book.over(&end);
            }
            kernel::sockets(|all| {
                if let Some(&parent) = all.parents.get(&same.pid) {
                    all.parents.insert(reborn.pid, parent);
                }
            });
            self.book.people[at].0 = reborn.pid;
            self.book.twin_listening.retain(|listening| kernel::sockets(|all| all.exists(listening.inode)));
            (same.pid, same.life) = (reborn.pid, reborn.life);
        }
        self.note(6);
    }

    /// Puts another driver in the place of the one that runs, if nothing hinders it.
    pub(super) fn succeed(&mut self) {
        let faults = kernel::with(|kernel| std::mem::take(&mut kernel.faults));
        match self.try_succeed(|_, _| {}) {
            Ok(()) => {
                self.taken_over += 1;
                self.policy_step = self.steps;
                self.note(14);
            }
            Err(Failed::Hindered(_)) => self.note(15),
            Err(refused) => panic!("a driver's own state: {refused:?}\n{}", self.describe()),
        }
        kernel::with(|kernel| kernel.faults = faults.unwrap_or_default());
    }

    /// Puts another driver in the place of the one that runs, with a state that `shake` may change.
    pub(super) fn try_succeed(
        &mut self,
        shake: impl FnOnce(&mut Vec<u8>, &mut Vec<std::os::fd::OwnedFd>),
    ) -> Result<(), Failed> {
        let early = self.successions.chance(500);
        let shelves = shelves(self.weather.take_overs);
        let Self { driver, settings, engine, is_safe, .. } = self;
        let previous = driver.as_mut().expect("a driver");
        let next = previous.taken_over((settings, &**engine, *is_safe), shelves, early, shake)?;
        *driver = Some(next);
        Ok(())
    }

    pub(super) fn restart(&mut self) {
        let faults = kernel::with(|kernel| std::mem::take(&mut kernel.faults));
        self.driver = None;
        let clock: Arc<dyn Clock> = Arc::clone(&self.clock) as _;
        let shelves = shelves(self.weather.take_overs);
        self.driver = Some(Running::start(&self.settings, clock, &*self.engine, self.is_safe, shelves));
        self.held.clear();
        kernel::with(|kernel| kernel.faults = faults.unwrap_or_default());
        self.note(7);
    }

    /// Gives each of two tenants a rate.
    pub(super) fn set_rates(&mut self) {
        let mut text = String::new();
        for tenant in ["red", "blue"] {
            let rate = self.random.between(100, 1000);
            text += &format!("[[tenant]]\nname = \"{tenant}\"\ncgroups = [\"/{tenant}\"]\n");
            text += &format!("rate = {{ bytes_per_second = \"{rate}KB\" }}\n");
        }
        let policy = Policy::parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
        self.book.cuts = true;
        self.policy_step = self.steps;
        self.driver().apply(policy);
    }

    pub(super) fn change_policy(&mut self) {
        let random = &mut self.random;
        let mut text = String::new();
        if random.chance(200) {
            text += "default = \"deny\"\n";
        }
        text += random.pick(&["", "path = \"offloaded\"\n", "path = \"direct\"\n"]);
        let mut known = Vec::new();
        for tenant in ["red", "blue"] {
            if random.chance(300) {
                continue;
            }
            known.push(tenant);
            text += &format!("[[tenant]]\nname = \"{tenant}\"\ncgroups = [\"/{tenant}\"]\n");
            let mut line = |chance, line: String| {
                if random.chance(chance) {
                    text += &line;
                }
                random.next()
            };
            let drawn = line(300, "weight = 7\n".into());
            line(300, format!("clients_max = {}\n", 1 + drawn % 4));
            line(300, format!("descriptors_max = {}\n", 10 + drawn % 40));
            line(300, format!("memory_bytes_max = \"{}KB\"\n", 200 + drawn % 4000));
            line(200, "connections_max = 2\n".into());
            line(200, format!("rate = {{ bytes_per_second = \"{}KB\" }}\n", 100 + drawn % 3000));
            line(200, "connection_rate = { messages_per_second = 2000 }\n".into());
            line(100, "reserved = { clients = 1, descriptors = 10, memory_bytes = \"200KB\" }\n".into());
        }
        if !known.is_empty() && random.chance(400) {
            text += &format!(
                "[[rule]]\nfrom = \"{}\"\naction = \"{}\"\n",
                random.pick(&known),
                random.pick(&["allow", "deny"])
            );
        }
        let policy = Policy::parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
        self.book.cuts = true;
        self.policy_step = self.steps;
        self.driver().apply(policy);
        self.note(8);
    }
}
