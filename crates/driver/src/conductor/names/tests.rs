use super::*;
use crate::ids::{ClientId, Slot, TenantId};
use crate::policy::AddressMap;
use pd_abi::limits::EPHEMERAL_PORT_LAST;
use std::net::Ipv4Addr;

fn id(inode: u64) -> NamespaceId {
    NamespaceId::for_test(inode)
}

/// Returns a file that nobody reads.
fn file() -> Arc<OwnedFd> {
    Arc::new(std::fs::File::open("/dev/null").unwrap().into())
}

fn names(list: &[(u64, &[&str])]) -> Names {
    let mut names = Names::default();
    for &(inode, addresses) in list {
        names.enter(id(inode), &file());
        hold(&mut names, inode, addresses);
    }
    names
}

/// Has a namespace hold these addresses, as if they had been read.
fn hold(names: &mut Names, inode: u64, addresses: &[&str]) {
    let found = addresses.iter().map(|a| (a.parse().unwrap(), 24)).collect();
    names.learn(id(inode), Some(found), Duration::ZERO, Duration::ZERO);
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn registration(addresses: &[&str]) -> Registration {
    let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
    Registration { name: "a".into(), tenant: "t".into(), addresses, network: None }
}

#[test]
fn a_list_is_used_until_it_is_old() {
    let (mut names, now) = (Names::default(), Duration::from_secs(1));
    let (own, other): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap());
    assert!(names.enter(id(1), &file()) && names.enter(id(2), &file()), "nobody has read them");
    assert_eq!(names.unread(id(1), own, false, now), [id(1)]);
    names.learn(id(1), Some([(own, 24)].into_iter().collect()), Duration::ZERO, now);
    assert!(!names.enter(id(1), &file()));
    assert!(names.holds(id(1), own) && !names.holds(id(2), own));
    let unread = |names: &Names, inode, ip, reach, as_of| {
        let mut unread = names.unread(id(inode), ip, reach, as_of);
        unread.sort();
        unread
    };
    assert_eq!(unread(&names, 1, own, false, now), []);
    assert_eq!(unread(&names, 2, own, false, now), [id(2)]);
    let late = now + ADDRESSES_FRESH;
    assert_eq!(unread(&names, 1, own, true, late), [id(1)]);
    assert_eq!(unread(&names, 2, own, true, late), [id(1), id(2)]);
    assert_eq!(unread(&names, 1, other, false, late), [id(1)]);
    assert_eq!(unread(&names, 1, other, true, late), [id(1), id(2)], "whose is it?");
    assert_eq!(unread(&names, 1, Ipv4Addr::LOCALHOST.into(), true, late), []);
    assert_eq!(names.unread_owners(&[own, other], late), [id(1)]);
    // A list that came after the request is late enough for it, however long others take.
    names.learn(id(1), None, Duration::ZERO, late);
    assert_eq!(unread(&names, 1, own, true, late), []);
    assert!(names.holds(id(1), own), "it could not be read: what was known holds");
}

#[test]
fn after_a_long_list_there_is_a_pause() {
    let mut names = Names::default();
    names.enter(id(1), &file());
    let address = |n: u32| (IpAddr::from((0x0a00_0001 + n).to_be_bytes()), 8);
    let (now, took, old) = (Duration::from_secs(1), Duration::from_millis(20), address(0).0);
    let unread = |names: &Names, as_of| !names.unread(id(1), old, false, as_of).is_empty();
    for (count, pause) in
        [(addresses::ADDRESSES_MAX as u32, took * PAUSE_FACTOR), (10, ADDRESSES_FRESH - took)]
    {
        names.learn(id(1), Some((0..count).map(address).collect()), took, now);
        let just = Duration::from_nanos(1);
        assert!(!unread(&names, now + pause - just) && unread(&names, now + pause), "{count}");
        assert!(names.holds(id(1), old), "it was the namespace's");
    }
}

fn own(client: u16, slot: u16) -> (ClientId, Slot) {
    (ClientId::new(client), Slot::new(slot))
}

impl Names {
    fn bind_alone(
        &mut self,
        id: NamespaceId,
        wanted: SocketAddr,
        v6_only: bool,
        owner: (ClientId, Slot),
    ) -> Result<SocketAddr, Errno> {
        self.bind(id, &Wish { wanted, v6_only, owner, share: None, payer: (TenantId::default(), None) })
    }
}

#[test]
fn binds_only_what_the_namespace_holds() {
    let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.2"])]);
    assert_eq!(names.bind_alone(id(1), at("10.0.0.2:5"), false, own(1, 1)), Err(Errno::ADDRNOTAVAIL));
    assert_eq!(names.bind_alone(id(1), at("10.0.0.1:5"), false, own(1, 1)), Ok(at("10.0.0.1:5")));
    assert_eq!(names.bind_alone(id(1), at("0.0.0.0:5"), false, own(1, 2)), Err(Errno::ADDRINUSE));
    assert_eq!(names.bind_alone(id(2), at("0.0.0.0:5"), false, own(2, 1)), Ok(at("0.0.0.0:5")));
    names.unbind(id(1), 5, own(1, 1));
    assert_eq!(names.bind_alone(id(1), at("0.0.0.0:5"), false, own(1, 2)), Ok(at("0.0.0.0:5")));
    assert_eq!(names.bind_alone(id(1), at("[::]:5"), false, own(1, 3)), Err(Errno::ADDRINUSE));
    assert_eq!(names.bind_alone(id(1), at("[::]:5"), true, own(1, 3)), Ok(at("[::]:5")));
    let any = names.bind_alone(id(1), at("127.0.0.1:0"), false, own(1, 4)).unwrap();
    assert!((EPHEMERAL_PORT_FIRST..=EPHEMERAL_PORT_LAST).contains(&any.port()));
}

#[test]
fn loopback_stays_at_home_and_addresses_cross() {
    let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.2", "fd00::2"])]);
    names.bind_alone(id(2), at("0.0.0.0:80"), false, own(2, 1)).unwrap();
    assert_eq!(names.listener(id(1), at("10.0.0.2:80")), Err(Errno::CONNREFUSED), "not listening");
    names.listen(id(2), 80, own(2, 1));
    assert_eq!(names.listener(id(1), at("10.0.0.2:80")), Ok(own(2, 1)));
    assert_eq!(names.listener(id(1), at("[::ffff:10.0.0.2]:80")), Ok(own(2, 1)));
    assert_eq!(names.listener(id(1), at("127.0.0.1:80")), Err(Errno::CONNREFUSED));
    assert_eq!(names.listener(id(2), at("127.0.0.1:80")), Ok(own(2, 1)));
    assert_eq!(names.listener(id(1), at("10.0.0.9:80")), Err(Errno::HOSTUNREACH));
    assert_eq!(names.listener(id(1), at("[fd00::2]:80")), Err(Errno::CONNREFUSED), "IPv4 only");
    assert_eq!(names.local_for(id(1), at("10.0.0.2:80").ip()).ip(), at("10.0.0.1:0").ip());
}

/// On the kernel no connection has the port of a socket that is bound to its address.
#[test]
fn connections_have_ports_that_nobody_has_bound() {
    let mut names = names(&[(1, &["10.0.0.1", "10.0.0.3"]), (2, &["10.0.0.2"])]);
    let first = names.local_for(id(1), at("10.0.0.2:0").ip());
    let place = |port: u16| SocketAddr::new(first.ip(), first.port() + port);
    names.bind_alone(id(1), place(1), false, own(1, 1)).unwrap();
    names
        .bind_alone(id(1), SocketAddr::new(at("0.0.0.0:0").ip(), place(2).port()), false, own(1, 2))
        .unwrap();
    // Bound to another address, or in another namespace.
    let other = if first.ip() == at("10.0.0.1:0").ip() { "10.0.0.3:0" } else { "10.0.0.1:0" };
    names.bind_alone(id(1), SocketAddr::new(at(other).ip(), place(3).port()), false, own(1, 3)).unwrap();
    names
        .bind_alone(id(2), SocketAddr::new(at("10.0.0.2:0").ip(), place(4).port()), false, own(2, 1))
        .unwrap();
    assert_eq!([(); 2].map(|()| names.local_for(id(1), at("10.0.0.2:0").ip())), [place(3), place(4)]);
}

/// A program knows a connection by its addresses.
#[test]
fn a_connection_keeps_its_port_as_long_as_it_lives() {
    let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.2"])]);
    let to = at("10.0.0.2:0").ip();
    let first = names.local_for(id(1), to).port();
    assert!(names.lend(id(1), first));
    let ports = usize::from(EPHEMERAL_PORT_LAST - EPHEMERAL_PORT_FIRST) + 1;
    for _ in 0..2 * ports {
        let next = names.local_for(id(1), to).port();
        assert!(next != first && names.lend(id(1), next));
        names.give_back(id(1), next);
    }
    assert_eq!(names.local_for(id(2), to).port(), first, "another namespace");
    for _ in 1..ports {
        let next = names.local_for(id(1), to).port();
        assert!(names.lend(id(1), next), "{next}");
    }
    let shared = names.local_for(id(1), to).port();
    assert!(!names.lend(id(1), shared), "more connections than ports");
    (EPHEMERAL_PORT_FIRST..=EPHEMERAL_PORT_LAST).for_each(|port| names.give_back(id(1), port));
    assert!(names.ports.is_empty());
}

#[test]
fn listeners_of_one_user_share_a_port_and_take_turns() {
    let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.2"])]);
    let wanted = at("0.0.0.0:80");
    let wish = |client, share| Wish {
        wanted,
        v6_only: false,
        owner: own(client, 1),
        share: Some(share),
        payer: (TenantId::default(), None),
    };
    names.bind(id(1), &wish(1, 7)).unwrap();
    names.bind(id(1), &wish(2, 7)).unwrap();
    let others = names.bind(id(1), &wish(3, 8));
    assert_eq!(others, Err(Errno::ADDRINUSE), "another user");
    assert_eq!(names.bind_alone(id(1), wanted, false, own(4, 1)), Err(Errno::ADDRINUSE), "does not share");
    names.listen(id(1), 80, own(1, 1));
    names.listen(id(1), 80, own(2, 1));
    let mut next = || names.listener(id(2), at("10.0.0.1:80")).unwrap().0;
    assert_eq!([next(), next(), next(), next()], [1, 2, 1, 2].map(ClientId::new));
    names.set_listening(id(1), 80, own(1, 1), Takes::None);
    let mut next = || names.listener(id(2), at("10.0.0.1:80")).unwrap().0;
    assert_eq!([next(), next()], [2, 2].map(ClientId::new));
}

#[test]
fn a_stolen_address_gains_nothing() {
    let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    names.bind_alone(id(1), at("10.0.0.1:80"), false, own(1, 1)).unwrap();
    names.listen(id(1), 80, own(1, 1));
    assert_eq!(names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 1)), Err(Errno::ADDRNOTAVAIL));
    names.bind_alone(id(2), at("0.0.0.0:80"), false, own(2, 2)).unwrap();
    names.listen(id(2), 80, own(2, 2));
    assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(1, 1)));
    names.leave(id(1));
    names.unbind(id(1), 80, own(1, 1));
    assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(2, 2)));
}

#[test]
fn registered_addresses_are_taken() {
    let mut names = names(&[(1, &["10.0.0.1", "10.0.0.7"]), (2, &["10.0.0.1"])]);
    names.register(id(1), registration(&["10.0.0.1"])).unwrap();
    assert_eq!(names.register(id(2), registration(&["10.0.0.1"])), Err(Errno::ADDRINUSE));
    assert_eq!(names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 1)), Err(Errno::ADDRNOTAVAIL));
    assert_eq!(names.bind_alone(id(1), at("10.0.0.7:80"), false, own(1, 1)), Err(Errno::ADDRNOTAVAIL));
    assert!(names.bind_alone(id(1), at("10.0.0.1:80"), false, own(1, 1)).is_ok());
}

#[test]
fn an_address_that_moved_is_the_new_holders_at_once() {
    let mut names = names(&[(1, &[]), (2, &[])]);
    hold(&mut names, 1, &["10.0.0.1"]);
    names.bind_alone(id(1), at("10.0.0.1:80"), false, own(1, 1)).unwrap();
    hold(&mut names, 1, &[]);
    hold(&mut names, 2, &["10.0.0.1"]);
    names.bind_alone(id(2), at("0.0.0.0:81"), false, own(2, 1)).unwrap();
    names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 2)).unwrap();
    names.listen(id(2), 80, own(2, 2));
    assert_eq!(names.listener(id(1), at("10.0.0.1:80")), Ok(own(2, 2)));
    assert_eq!(names.bind_alone(id(1), at("10.0.0.1:82"), false, own(1, 2)), Err(Errno::ADDRNOTAVAIL));
    // The address moves back, registered.
    hold(&mut names, 2, &[]);
    hold(&mut names, 1, &["10.0.0.1"]);
    names.register(id(1), registration(&["10.0.0.1"])).unwrap();
    names.bind_alone(id(1), at("10.0.0.1:82"), false, own(1, 2)).unwrap();
}

#[test]
fn what_is_registered_or_cannot_be_read_is_not_given_up() {
    let mut names = names(&[(1, &[]), (2, &[])]);
    let refused = Err(Errno::ADDRNOTAVAIL);
    hold(&mut names, 1, &["10.0.0.1"]);
    hold(&mut names, 2, &["10.0.0.1"]);
    names.bind_alone(id(1), at("10.0.0.1:80"), false, own(1, 1)).unwrap();
    names.learn(id(1), None, Duration::ZERO, Duration::ZERO);
    assert_eq!(names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 1)), refused, "unreadable");
    names.register(id(1), registration(&["10.0.0.1"])).unwrap();
    hold(&mut names, 1, &[]);
    assert_eq!(names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 1)), refused, "registered");
    names.leave(id(1));
    names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 1)).unwrap();
}

#[test]
fn two_networks_use_the_same_addresses() {
    let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.2"]), (3, &["10.0.0.1"]), (4, &["10.0.0.2"])]);
    let (red, blue) = (NetworkId::at(1), NetworkId::at(2));
    for (inode, network) in [(1, red), (2, red), (3, blue), (4, blue)] {
        assert!(names.set_network(id(inode), network));
    }
    for inode in [1, 3] {
        names.bind_alone(id(inode), at("10.0.0.1:80"), false, own(inode as u16, 1)).unwrap();
        names.listen(id(inode), 80, own(inode as u16, 1));
    }
    assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(1, 1)));
    assert_eq!(names.listener(id(4), at("10.0.0.1:80")), Ok(own(3, 1)));
    names.register(id(1), registration(&["10.0.0.1"])).unwrap();
    names.register(id(3), registration(&["10.0.0.1"])).unwrap();
    // A namespace that moves comes after those that are there. Its previous network finds it no more.
    assert!(names.set_network(id(3), red) && !names.set_network(id(3), red));
    assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(1, 1)));
    assert_eq!(names.listener(id(4), at("10.0.0.1:80")), Err(Errno::HOSTUNREACH));
    assert!(!names.holds(id(3), "10.0.0.1".parse().unwrap()));
    names.leave(id(1));
    assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(3, 1)));
}

fn maps(list: &[(u32, &str, u32, &str)]) -> Maps<NetworkId> {
    let map = |&(from, prefix, to, at): &(u32, &str, u32, &str)| AddressMap {
        from: from.to_string(),
        prefix: prefix.parse().unwrap(),
        to: to.to_string(),
        at: at.parse().unwrap(),
    };
    let list: Vec<_> = list.iter().map(map).collect();
    Maps::new(&list, |name| NetworkId::at(name.parse().unwrap()))
}

#[test]
fn a_mapped_address_means_one_of_the_other_network() {
    let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1", "10.9.0.1"]), (3, &["10.0.0.7"])]);
    for (inode, network) in [(1, 1), (2, 2), (3, 2)] {
        names.set_network(id(inode), NetworkId::at(network));
    }
    // The address is network 2's own before it is mapped.
    assert!(names.holds(id(2), "10.9.0.1".parse().unwrap()));
    for inode in [1, 2] {
        names.bind_alone(id(inode), at("10.0.0.1:80"), false, own(inode as u16, 1)).unwrap();
        names.listen(id(inode), 80, own(inode as u16, 1));
    }
    let both = [(2, "10.9.0.0/24", 1, "10.0.0.0/24"), (1, "10.8.0.0/30", 2, "10.0.0.0/30")];
    names.set_maps(maps(&both));
    assert_eq!(names.listener(id(2), at("10.9.0.1:80")), Ok(own(1, 1)));
    assert_eq!(names.listener(id(2), at("[::ffff:10.9.0.1]:80")), Ok(own(1, 1)));
    assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(2, 1)));
    assert_eq!(names.listener(id(1), at("10.8.0.1:80")), Ok(own(2, 1)));
    assert_eq!(names.listener(id(2), at("10.9.0.2:80")), Err(Errno::HOSTUNREACH));
    // The listener takes connections from other networks alone.
    names.set_listening(id(1), 80, own(1, 1), Takes::OtherNetworks);
    assert_eq!(names.listener(id(2), at("10.9.0.1:80")), Ok(own(1, 1)));
    assert_eq!(names.listener(id(1), at("10.0.0.1:80")), Err(Errno::CONNREFUSED), "the kernel brings it");
    names.set_listening(id(1), 80, own(1, 1), Takes::None);
    assert_eq!(names.listener(id(2), at("10.9.0.1:80")), Err(Errno::CONNREFUSED));
    names.listen(id(1), 80, own(1, 1));
    // A mapped address is no namespace's own.
    assert!(!names.holds(id(2), "10.9.0.1".parse().unwrap()));
    assert_eq!(names.local_for(id(2), at("10.9.0.1:80").ip()).ip(), at("10.0.0.1:0").ip());
    let seen =
        |names: &Names, viewer, owner, ip: &str| names.seen(id(viewer), id(owner), ip.parse().unwrap());
    assert_eq!(seen(&names, 1, 2, "10.0.0.1"), Some("10.8.0.1".parse().unwrap()));
    assert_eq!(seen(&names, 1, 3, "10.0.0.7"), None, "beyond the map back");
    assert!(names.local_for(id(3), at("10.9.0.1:80").ip()).ip().is_unspecified());
    // All is as before without the maps.
    names.set_maps(Maps::default());
    assert_eq!(names.listener(id(2), at("10.9.0.1:80")), Err(Errno::CONNREFUSED), "it is its own again");
    assert!(names.holds(id(2), "10.9.0.1".parse().unwrap()));
}

#[test]
fn a_registered_address_yields_to_a_map_and_comes_back() {
    let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.9.0.1"])]);
    names.set_network(id(1), NetworkId::at(1));
    names.set_network(id(2), NetworkId::at(2));
    names.register(id(2), registration(&["10.9.0.1"])).unwrap();
    names.set_maps(maps(&[(2, "10.9.0.0/24", 1, "10.0.0.0/24")]));
    let ip = "10.9.0.1".parse().unwrap();
    assert_eq!(names.namespace_of(id(2), ip), Ok(id(1)));
    assert_eq!(names.register(id(2), registration(&["10.9.0.1"])), Err(Errno::ADDRNOTAVAIL));
    names.set_maps(Maps::default());
    assert_eq!(names.namespace_of(id(2), ip), Ok(id(2)));
}

proptest::proptest! {
    /// A lookup within a network finds the same as a driver for that network alone.
    #[test]
    fn a_network_is_a_driver_of_its_own(
        held in proptest::collection::vec((0u32..3, proptest::collection::btree_set(1u8..5, 0..3)), 1..7),
        moves in proptest::collection::vec((0usize..7, 0u32..3), 0..6),
    ) {
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let list = |set: &std::collections::BTreeSet<u8>| set.iter().map(|&last| (ip(last), 24)).collect();
        let mut all = Names::default();
        let mut network: Vec<u32> = Vec::new();
        // The order in which namespaces came into the network that they are in.
        let mut order: Vec<usize> = Vec::new();
        for (index, (net, addresses)) in held.iter().enumerate() {
            let inode = index as u64 + 1;
            all.enter(id(inode), &file());
            all.set_network(id(inode), NetworkId::at(*net));
            all.learn(id(inode), Some(list(addresses)), Duration::ZERO, Duration::ZERO);
            all.claim(id(inode));
            network.push(*net);
            order.push(index);
        }
        for &(index, net) in moves.iter().filter(|(index, _)| *index < held.len()) {
            if all.set_network(id(index as u64 + 1), NetworkId::at(net)) {
                network[index] = net;
                order.retain(|&other| other != index);
                order.push(index);
            }
            // An address that is free now goes to the namespaces that wait for it, in the order in which they came.
            for &other in &order {
                all.claim(id(other as u64 + 1));
            }
        }
        for net in 0..3u32 {
            let mut alone = Names::default();
            let members: Vec<usize> = order.iter().copied().filter(|&index| network[index] == net).collect();
            for &index in &members {
                alone.enter(id(index as u64 + 1), &file());
                alone.learn(id(index as u64 + 1), Some(list(&held[index].1)), Duration::ZERO, Duration::ZERO);
                alone.claim(id(index as u64 + 1));
            }
            for &index in &members {
                for last in 1..5 {
                    let found = all.namespace_of(id(index as u64 + 1), ip(last));
                    let expected = alone.namespace_of(id(index as u64 + 1), ip(last));
                    proptest::prop_assert_eq!(found.is_ok(), expected.is_ok());
                    // The first of several holders to claim an address owns it. The owner is in the network and holds the address.
                    if let Ok(owner) = found {
                        let owner = owner.number() as usize - 1;
                        proptest::prop_assert!(network[owner] == net && held[owner].1.contains(&last));
                    }
                }
            }
        }
    }
}
